"""Measures the attention of a model: one pass over the sentence pairs, one with shuffled targets.

Shapes: B sentences, H heads, Q queries, K keys.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from nmt.analysis.aligner import Aligner
from nmt.analysis.alignment import HeadGrid, all_links
from nmt.analysis.gold import Gold
from nmt.analysis.head_choice import LinkInformation
from nmt.analysis.key_classes import BatchPositions
from nmt.analysis.measures import HeadCounts, count_heads, nullable_sites, unnormalised_sites
from nmt.analysis.norm_weights import Weighting
from nmt.analysis.pairs import (
    ANALYSIS_BATCH_TOKENS,
    ANALYSIS_MAX_LENGTH,
    PairAttention,
    PairBatch,
    map_pairs,
    non_finite_pairs,
    run_batch,
    shuffle_targets,
    split_attention,
)
from nmt.analysis.results import ATTENTION_TYPES, ModelResult
from nmt.analysis.roles import AlignmentRoles, RoleStatistics
from nmt.analysis.sinks import SinkFreeStatistics
from nmt.analysis.statistics import AttentionStatistics
from nmt.analysis.word_classes import NullAfterWords, WordClasses
from nmt.checkpoint.model_directory import LoadedModel
from nmt.decoding.translator import Translator
from nmt.errors import DataError, DivergedError
from nmt.model.observe import Observer, Site, learned_parameters
from nmt.model.summary import summarize
from nmt.storage.manifest import manifest_digest

TextPair = tuple[str, str]

ALIGNED_PAIRS = 1000  # from which the heads that align words are found, as in nmt-align
SHUFFLE_WINDOW = 10_000  # pairs held in memory to shuffle their targets
LINES_NAMED = 10  # in a message about lines
SHOWN_WORDS = 40  # heat maps of longer sentences cannot be read
SHOWN_CHARACTERS = 300  # for text without spaces


@dataclass(frozen=True)
class SentencePairs:
    """The sentence pairs; `read` begins anew with every call."""

    read: Callable[[], Iterable[TextPair]]
    count: int
    shown: frozenset[int]  # indices of the pairs whose attention is kept for the report
    word_classes: WordClasses | None = None  # after which null rates are counted
    seed: int = 1
    batch_tokens: int = ANALYSIS_BATCH_TOKENS
    max_length: int = ANALYSIS_MAX_LENGTH


@dataclass(frozen=True)
class ModelAnalysis:
    """The measures of one model, and its attention for the pairs in the report."""

    result: ModelResult
    shown: dict[int, PairAttention]  # by index; pairs that are too long are missing
    translations: dict[int, str]  # the model's own of the same sources
    skipped: int  # number of pairs that are too long


def look_ahead(pairs: Iterable[TextPair], *, shown: int) -> tuple[int, frozenset[int]]:
    """The number of pairs, and the indices of the first `shown` ones that can be shown."""
    count = 0
    places: set[int] = set()
    for source, target in pairs:
        if len(places) < shown and can_be_shown(source) and can_be_shown(target):
            places.add(count)
        count += 1
    return count, frozenset(places)


def can_be_shown(text: str) -> bool:
    """Whether a sentence is neither blank nor too long for a heat map."""
    return 0 < len(text.split()) <= SHOWN_WORDS and len(text) <= SHOWN_CHARACTERS


def analyze_model(
    loaded: LoadedModel,
    text: SentencePairs,
    *,
    name: str,
    gold: Gold | None = None,
    weighting: Weighting = "attention",
    advance: Callable[[int], object] = lambda _pairs: None,
) -> ModelAnalysis:
    """All measures of a model; `advance` is told of every pair twice.

    `weighting` says which weights give the links that are compared with the gold ones.
    """
    observation = Observation(loaded, text)
    skipped = 0
    for done in observation.run(text.read()):
        skipped += not done
        advance(1)
    if skipped == text.count:
        raise DataError(
            f"all {text.count} pairs have more subwords on a side than --max-length allows"
        )
    if observation.non_finite:
        raise DivergedError(non_finite_message(loaded.path, observation.non_finite))
    aligner = Aligner(
        loaded, batch_tokens=text.batch_tokens, max_length=text.max_length, weighting=weighting
    )
    aer = None if gold is None else aligner.evaluate(text.read(), gold).table()
    statistics = observation.summary()
    nullable = {site.type for site in nullable_sites(loaded.model)}
    if nullable - {"encoder_self"} and text.count > 1:
        for site, counts in shuffled_counts(loaded, text, advance).items():
            layer = statistics[site.type][f"layer_{site.layer}"]
            layer["shuffled_null_rate"] = float(counts.null_rate.mean())
            layer["heads"]["shuffled_null_rate"] = counts.null_rate.tolist()
    else:
        advance(text.count)
    for site, parameters in learned_parameters(loaded.model).items():
        heads = statistics[site.type][f"layer_{site.layer}"]["heads"]
        heads |= {name: values.tolist() for name, values in parameters.items()}
    result = ModelResult(
        name=name,
        path=str(loaded.path),
        parameters=summarize(loaded.model).total,
        attention=loaded.config.model.attention_labels(),
        nullable={type_: type_ in nullable for type_ in ATTENTION_TYPES},
        statistics=statistics,
        aer=aer,
        digest=manifest_digest(loaded.files),
    )
    translations = translate_shown(loaded, text, observation.shown)
    return ModelAnalysis(result, observation.shown, translations, skipped)


def translate_shown(
    loaded: LoadedModel, text: SentencePairs, shown: Mapping[int, PairAttention]
) -> dict[int, str]:
    """The model's own translations of the sources in the report, by index."""
    sources = {place: source for place, (source, _) in enumerate(text.read()) if place in shown}
    translator = Translator.from_model(
        loaded.model,
        loaded.codec,
        loaded.config.decode,
        max_source_length=loaded.config.data.max_length,
    )
    translations = translator.translate(list(sources.values()))
    return {place: one.text for place, one in zip(sources, translations, strict=True)}


def non_finite_message(path: Path, indices: Sequence[int]) -> str:
    """The error of a model that does not compute finite numbers for these pairs."""
    lines = [str(index + 1) for index in sorted(indices)]
    named = ", ".join(lines[:LINES_NAMED]) + (", ..." if len(lines) > LINES_NAMED else "")
    return (
        f"{path}: the model computes numbers that are not finite for {len(lines)} of the pairs "
        f"(lines {named}); nothing was written. Use an earlier checkpoint of its run"
    )


class Observation:
    """The sums that grow while the pairs stream through a model."""

    def __init__(self, loaded: LoadedModel, text: SentencePairs) -> None:
        config = loaded.config.model
        self.loaded = loaded
        self.text = text
        grid = HeadGrid(config.decoder_layers, config.heads)
        self.statistics = AttentionStatistics(unnormalised_sites(loaded.model))
        self.sink_free = SinkFreeStatistics(unnormalised_sites(loaded.model))
        self.roles = RoleStatistics()
        self.alignment = AlignmentRoles(LinkInformation(grid))
        classes, nullable = text.word_classes, nullable_sites(loaded.model)
        self.after_words = (
            None if classes is None else NullAfterWords(classes, loaded.codec.target, nullable)
        )
        self.shown: dict[int, PairAttention] = {}
        self.non_finite: list[int] = []  # indices of pairs without finite numbers

    def run(self, pairs: Iterable[TextPair]) -> Iterator[bool]:
        """Add all pairs; yields for each whether it was used, false if it is too long."""
        return map_pairs(
            self.loaded,
            pairs,
            self.look,
            lambda _problem: False,
            batch_tokens=self.text.batch_tokens,
            max_length=self.text.max_length,
        )

    def observers(self, batch: PairBatch) -> list[Observer]:
        """The observers of all measures, for one batch."""
        positions = BatchPositions.of(batch, self.loaded.codec)
        observers = [
            self.statistics.observer(batch.source_visible, batch.target_visible),
            self.sink_free.observer(batch, positions),
            self.roles.observer(batch, positions),
        ]
        if self.after_words is not None:
            observers.append(self.after_words.observer(batch))
        return observers

    def look(self, batch: PairBatch) -> list[bool]:
        """Add a batch."""
        shown = [row for row, pair in enumerate(batch.pairs) if pair.index in self.text.shown]
        aligned = [row for row, pair in enumerate(batch.pairs) if pair.index < ALIGNED_PAIRS]
        observers = self.observers(batch)
        seen: dict[Site, npt.NDArray[np.float32]] = {}  # of the pairs in the report
        cross: dict[Site, npt.NDArray[np.float32]] = {}  # of the pairs whose words are aligned

        def observer(site: Site, weights: Tensor, visible: Tensor) -> None:
            for observe in observers:
                observe(site, weights, visible)
            if shown:
                seen[site] = weights[shown].float().cpu().numpy()
            if aligned and site.type == "cross":
                cross[site] = weights[aligned].float().cpu().numpy()

        hidden = run_batch(self.loaded.model, batch, observer)
        self.non_finite += non_finite_pairs(batch, hidden)
        for attention in split_attention([batch.pairs[row] for row in shown], seen):
            self.shown[attention.pair.index] = attention
        for attention in split_attention([batch.pairs[row] for row in aligned], cross):
            self.alignment.add(attention.pair, all_links(attention))
        return [True] * len(batch.pairs)

    def summary(self) -> dict[str, dict[str, Any]]:
        """The measures of all sublayers, by type of attention and `layer_N`."""
        summary = self.statistics.summary()
        for measure in (self.sink_free, self.roles, self.alignment, self.after_words):
            if measure is not None and not self.non_finite:
                measure.add_to(summary)
        return summary


def shuffled_counts(
    loaded: LoadedModel, text: SentencePairs, advance: Callable[[int], object]
) -> dict[Site, HeadCounts]:
    """The counts behind the null rate with shuffled targets, for sublayers that can be null.

    The encoder does not see the targets and is left out.
    """
    sites = {site for site in nullable_sites(loaded.model) if site.type != "encoder_self"}
    counts: dict[Site, HeadCounts] = {}

    def look(batch: PairBatch) -> list[bool]:
        def observer(site: Site, weights: Tensor, visible: Tensor) -> None:
            if site in sites:
                new = count_heads(weights, visible, batch.target_visible)
                counts[site] = counts[site] + new if site in counts else new

        broken = non_finite_pairs(batch, run_batch(loaded.model, batch, observer))
        if broken:
            raise DivergedError(non_finite_message(loaded.path, broken))
        return [True] * len(batch.pairs)

    for _ in map_pairs(
        loaded,
        exchange_targets(text.read(), seed=text.seed),
        look,
        lambda _problem: False,
        batch_tokens=text.batch_tokens,
        max_length=text.max_length,
    ):
        advance(1)
    return counts


def exchange_targets(
    pairs: Iterable[TextPair], *, seed: int, window: int = SHUFFLE_WINDOW
) -> Iterator[TextPair]:
    """Every source with the target of another pair that is less than two windows away."""
    following = iter(pairs)
    chunk = list(itertools.islice(following, window))
    while chunk:
        after = list(itertools.islice(following, window))
        if len(after) == 1:  # there is nothing to exchange a single target with
            chunk += after
            after = []
        for pair in shuffle_targets(chunk, seed=seed):
            yield pair.source, pair.target
        chunk = after
