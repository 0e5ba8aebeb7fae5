"""The attention of one sentence pair, in the structure that the explorer of the report page reads.

A sentence without a given target is read with its translation, by the token ids of the search.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from nmt.analysis.alignment import HeadGrid, chosen_links
from nmt.analysis.explorer_data import model_data
from nmt.analysis.measures import nullable_sites, unnormalised_sites
from nmt.analysis.pairs import (
    PairAttention,
    PairBatch,
    SegmentedPair,
    log_probabilities,
    non_finite_pairs,
    run_batch,
    split_attention,
)
from nmt.analysis.results import ATTENTION_TYPES, ModelResult, learned_names
from nmt.analysis.statistics import AttentionStatistics
from nmt.checkpoint.model_directory import LoadedModel
from nmt.config.search_options import SearchOptions
from nmt.decoding.alignment import AlignmentHead, links_of
from nmt.decoding.translation import Failure, Line, Translation
from nmt.decoding.translator import Translator
from nmt.errors import DataError, DivergedError
from nmt.model.observe import Site, learned_parameters

MAX_LENGTH = 128  # subwords per side; an answer grows with the square of it


def attention_of_pair(
    loaded: LoadedModel,
    translator: Translator,
    options: SearchOptions,
    alignment: AlignmentHead,
    *,
    name: str,
    source: str,
    target: str | None,
) -> dict[str, Any]:
    """All heads of a pair, its links and probabilities, and the translations of its source."""
    codec = loaded.codec
    line = codec.source.segment(source)
    check_length(len(line.ids) - 1, "text")
    nbest = find_translations(translator, options, source)
    best = codec.target.segment_ids(nbest[0].ids)
    pair = SegmentedPair(0, line, best if target is None else codec.target.segment(target))
    check_length(len(pair.target.ids) - 1, "target text")
    seen, statistics, logs = observe_pair(loaded, pair)
    for site, parameters in learned_parameters(loaded.model).items():
        heads = statistics[site.type][f"layer_{site.layer}"]["heads"]
        heads |= {key: values.tolist() for key, values in parameters.items()}
    nullable = {site.type for site in nullable_sites(loaded.model)}
    result = ModelResult(
        name=name,
        path="",
        parameters=0,
        attention=loaded.config.model.attention_labels(),
        nullable={type_: type_ in nullable for type_ in ATTENTION_TYPES},
        statistics=statistics,
    )
    grid = HeadGrid(loaded.config.model.decoder_layers, loaded.config.model.heads)
    head = grid.choice(grid.place(alignment))
    return {
        "types": ATTENTION_TYPES,
        "learned": learned_names([result]),
        "sentences": [source],
        "models": [model_data(0, result, codec, [seen])],
        "translation": nbest[0].text,
        "nbest": [
            {"text": one.text, "score": one.score, "log_probability": one.log_probability}
            for one in nbest
        ],
        "source_words": pair.source.words,
        "target_words": word_probabilities(pair, logs),
        "end_probability": math.exp(logs[-1]),
        "log_probability": sum(logs),
        "links": [list(link) for link in links_of(chosen_links(seen, head))],
        "alignment_head": {"layer": head.layer, "head": head.head, "shifted": head.shifted},
        "null_rates": {
            type_: [layer["heads"]["null_rate"] for layer in result.layers(type_)]
            for type_ in ATTENTION_TYPES
            if type_ in nullable
        },
    }


def check_length(length: int, what: str) -> None:
    """Raise for a sentence that is too long to show."""
    if length > MAX_LENGTH:
        raise DataError(
            f"{what}: attention is shown for at most {MAX_LENGTH} subwords, got {length}"
        )


def find_translations(
    translator: Translator, options: SearchOptions, source: str
) -> Sequence[Translation]:
    """The translation that `options` lead to, and the other hypotheses of its search."""
    best, several = (
        dict(translator.translate_lines([Line(0, source)], replace(options, nbest=nbest)))[0]
        for nbest in (1, options.beam)
    )
    if best.failure is not None:
        raise DivergedError(f"not translated: {best.failure}")
    return [best, *(one for one in several.nbest if one.ids != best.ids)]


def observe_pair(
    loaded: LoadedModel, pair: SegmentedPair
) -> tuple[PairAttention, dict[str, dict[str, Any]], list[float]]:
    """The attention of a pair, its measures, and the log probability of each target token."""
    batch = PairBatch.of([pair], loaded.model.target_embedding.device)
    statistics = AttentionStatistics(unnormalised_sites(loaded.model))
    add = statistics.observer(batch.source_visible, batch.target_visible)
    weights_of: dict[Site, npt.NDArray[np.float32]] = {}

    def observer(site: Site, weights: Tensor, visible: Tensor) -> None:
        add(site, weights, visible)
        weights_of[site] = weights.float().cpu().numpy()

    hidden = run_batch(loaded.model, batch, observer)
    if non_finite_pairs(batch, hidden):
        raise DivergedError(str(Failure.NON_FINITE))
    (seen,) = split_attention(batch.pairs, weights_of)
    logs = log_probabilities(loaded.model, batch, hidden)[0, : len(pair.target.ids)].tolist()
    return seen, statistics.summary(), logs


def word_probabilities(pair: SegmentedPair, logs: Sequence[float]) -> list[dict[str, Any]]:
    """The words of the target with their probability, given the source and the words before."""
    parts = zip(pair.target.word_of_piece, logs[:-1], strict=True)
    sums = dict.fromkeys(range(len(pair.target.words)), 0.0)
    for word, group in itertools.groupby(parts, key=lambda part: part[0]):
        sums[word] += sum(log for _, log in group)
    return [
        {"text": text, "probability": math.exp(sums[word])}
        for word, text in enumerate(pair.target.words)
    ]
