"""Measures models on sentence pairs: one pass over them a model, and one with false targets.

Shapes: B sentences, H heads, Q queries, K keys.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from nmt.analysis.aligner import check_words
from nmt.analysis.alignment import HeadGrid, all_links
from nmt.analysis.gold import GoldLinks
from nmt.analysis.head_choice import GridCounts, error_rate_table
from nmt.analysis.measures import HeadCounts, count_heads, unnormalised_sites
from nmt.analysis.pairs import (
    BATCH_TOKENS,
    MAX_LENGTH,
    PairAttention,
    PairBatch,
    map_pairs,
    non_finite_pairs,
    run_batch,
    shuffle_targets,
    split_attention,
)
from nmt.analysis.results import TYPES, ModelResult
from nmt.analysis.statistics import AttentionStatistics
from nmt.checkpoint.model_directory import LoadedModel
from nmt.config.config import AttentionConfig, SublayerAttentionConfig
from nmt.errors import DivergedError
from nmt.model.observe import Site, learned_alphas
from nmt.model.summary import summarize

TextPair = tuple[str, str]
Reader = Callable[[], Iterable[TextPair]]

SHUFFLE_WINDOW = 10_000  # pairs held in memory to exchange their targets
LINES_NAMED = 10  # in a message about lines
SHOWN_WORDS = 40  # in a longer sentence nobody can read a heat map
SHOWN_CHARACTERS = 300  # for text without blanks


@dataclass(frozen=True)
class Input:
    """The sentence pairs, which can be read again and again."""

    read: Reader
    count: int
    shown: frozenset[int]  # places of the pairs whose attention is kept to be looked at
    seed: int = 1
    batch_tokens: int = BATCH_TOKENS
    max_length: int = MAX_LENGTH


@dataclass(frozen=True)
class Gold:
    """Links made by people, one entry a pair; the first `development` ones choose heads."""

    links: Sequence[GoldLinks]
    path: Path  # this and the number of the first word are for messages
    first: int = 0
    development: int = 0


@dataclass(frozen=True)
class ModelAnalysis:
    """What one model shows: its measures, and the attention of the pairs to be looked at."""

    result: ModelResult
    shown: dict[int, PairAttention]  # by place; a pair that is too long for the model is missing
    skipped: int  # pairs that are too long


def look_ahead(pairs: Iterable[TextPair], *, shown: int) -> tuple[int, frozenset[int]]:
    """How many pairs there are, and the places of the first `shown` ones that can be shown well."""
    count = 0
    places: set[int] = set()
    for source, target in pairs:
        if len(places) < shown and can_be_shown(source) and can_be_shown(target):
            places.add(count)
        count += 1
    return count, frozenset(places)


def can_be_shown(text: str) -> bool:
    """Whether a sentence is neither blank nor too long to be looked at."""
    return 0 < len(text.split()) <= SHOWN_WORDS and len(text) <= SHOWN_CHARACTERS


def analyze_model(
    loaded: LoadedModel,
    text: Input,
    *,
    name: str,
    gold: Gold | None = None,
    advance: Callable[[int], object] = lambda _pairs: None,
) -> ModelAnalysis:
    """All measures of a model; `advance` hears of pairs that are done, each one twice."""
    observation = Observation(loaded, text, gold)
    skipped = 0
    for done in observation.run(text.read()):
        skipped += not done
        advance(1)
    if observation.non_finite:
        raise DivergedError(non_finite_message(loaded.path, observation.non_finite))
    statistics = observation.statistics.summary()
    nullable = {site.type for site in observation.statistics.unnormalised}
    if nullable - {"encoder_self"} and text.count > 1:
        for site, counts in shuffled_counts(loaded, text, advance).items():
            layer = statistics[site.type][f"layer_{site.layer}"]
            layer["shuffled_null_rate"] = float(counts.null_rate.mean())
            layer["heads"]["shuffled_null_rate"] = counts.null_rate.tolist()
    else:
        advance(text.count)
    for site, alphas in learned_alphas(loaded.model).items():
        statistics[site.type][f"layer_{site.layer}"]["heads"]["alpha"] = alphas.tolist()
    result = ModelResult(
        name=name,
        path=str(loaded.path),
        parameters=summarize(loaded.model).total,
        attention=describe_attention(loaded),
        nullable={type_: type_ in nullable for type_ in TYPES},
        statistics=statistics,
        aer=observation.error_rates(),
    )
    return ModelAnalysis(result, observation.shown, skipped)


def non_finite_message(path: Path, indices: Sequence[int]) -> str:
    """Names the pairs for which a model computes NaN, and says what to do."""
    lines = [str(index + 1) for index in sorted(indices)]
    named = ", ".join(lines[:LINES_NAMED]) + (", ..." if len(lines) > LINES_NAMED else "")
    return (
        f"{path}: the model computes numbers that are not finite for {len(lines)} of the pairs "
        f"(lines {named}); nothing was written. Use an earlier checkpoint of its run"
    )


class Observation:
    """What accumulates while the pairs stream through a model."""

    def __init__(self, loaded: LoadedModel, text: Input, gold: Gold | None) -> None:
        config = loaded.config.model
        self.loaded = loaded
        self.text = text
        self.gold = gold
        self.statistics = AttentionStatistics(unnormalised_sites(loaded.model))
        self.shown: dict[int, PairAttention] = {}
        self.non_finite: list[int] = []  # indices of pairs for which the model computes NaN
        grid = HeadGrid(config.decoder_layers, config.heads)
        self.choosing, self.reported = GridCounts(grid), GridCounts(grid)

    def run(self, pairs: Iterable[TextPair]) -> Iterator[bool]:
        """Whether each pair could be used: false if it is too long."""
        return map_pairs(
            self.loaded.codec,
            pairs,
            self.look,
            lambda _problem: False,
            device=self.loaded.model.target_embedding.device,
            batch_tokens=self.text.batch_tokens,
            max_length=self.text.max_length,
        )

    def look(self, batch: PairBatch) -> list[bool]:
        """Take in a batch."""
        shown = [row for row, pair in enumerate(batch.pairs) if pair.index in self.text.shown]
        add = self.statistics.observer(batch.source_visible, batch.target_visible)
        seen: dict[Site, npt.NDArray[np.float32]] = {}  # of the pairs to be shown
        cross: dict[Site, npt.NDArray[np.float32]] = {}  # of all pairs

        def observer(site: Site, weights: Tensor, visible: Tensor) -> None:
            add(site, weights, visible)
            if shown:
                seen[site] = weights[shown].float().cpu().numpy()
            if self.gold is not None and site.type == "cross":
                cross[site] = weights.float().cpu().numpy()

        hidden = run_batch(self.loaded.model, batch, observer)
        self.non_finite += non_finite_pairs(batch, hidden)
        for attention in split_attention([batch.pairs[row] for row in shown], seen):
            self.shown[attention.pair.index] = attention
        if self.gold is not None:
            for attention in split_attention(batch.pairs, cross):
                self.compare(attention, self.gold)
        return [True] * len(batch.pairs)

    def compare(self, attention: PairAttention, gold: Gold) -> None:
        """Count how far the links of every head are from the gold ones."""
        pair = attention.pair
        links = gold.links[pair.index]
        check_words(links, pair, reverse=False, path=gold.path, first=gold.first)
        counts = self.choosing if pair.index < gold.development else self.reported
        counts.add(all_links(attention), links)

    def error_rates(self) -> dict[str, Any] | None:
        """Table 5 and Figure 4."""
        if self.gold is None:
            return None
        return error_rate_table(
            self.choosing if self.gold.development else self.reported, self.reported
        )


def shuffled_counts(
    loaded: LoadedModel, text: Input, advance: Callable[[int], object]
) -> dict[Site, HeadCounts]:
    """Counts for the null rate on false targets, of the sublayers that can be null.

    The encoder does not see targets, so nothing changes for it.
    """
    sites = {site for site in unnormalised_sites(loaded.model) if site.type != "encoder_self"}
    counts: dict[Site, HeadCounts] = {}

    def look(batch: PairBatch) -> list[bool]:
        def observer(site: Site, weights: Tensor, visible: Tensor) -> None:
            if site in sites:
                new = count_heads(weights, visible, batch.target_visible)
                counts[site] = counts[site] + new if site in counts else new

        run_batch(loaded.model, batch, observer)
        return [True] * len(batch.pairs)

    for _ in map_pairs(
        loaded.codec,
        exchange_targets(text.read(), seed=text.seed),
        look,
        lambda _problem: False,
        device=loaded.model.target_embedding.device,
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
        if len(after) == 1:  # alone it could only stay as it is
            chunk += after
            after = []
        for pair in shuffle_targets(chunk, seed=seed):
            yield pair.source, pair.target
        chunk = after


def describe_attention(loaded: LoadedModel) -> dict[str, str]:
    """By type the kind of attention, and the layers that differ from it."""
    config = loaded.config.model
    numbers = {"encoder_self": config.encoder_layers}
    descriptions = {}
    for type_ in TYPES:
        sublayer: SublayerAttentionConfig = getattr(config.attention, type_)
        usual = describe_kind(sublayer)
        others = [
            f"layer {layer}: {describe_kind(sublayer.at(layer))}"
            for layer in range(numbers.get(type_, config.decoder_layers))
            if describe_kind(sublayer.at(layer)) != usual
        ]
        descriptions[type_] = usual + (f" ({', '.join(others)})" if others else "")
    return descriptions


def describe_kind(attention: AttentionConfig) -> str:
    """A kind and the options that make it another one."""
    options = {
        "alpha": attention.alpha,
        "activation": attention.activation,
        "norm": attention.norm,
        "gate": attention.gate,
        "threshold": attention.threshold,
        "k": attention.k,
    }
    given = [f"{key} {value}" for key, value in options.items() if value is not None]
    return " ".join([attention.kind, *given])
