"""Scores that tell good training pairs from bad ones.

Shapes: B sentences, H heads, S source and T target positions, L decoder layers.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmt.analysis.pairs import (
    PairBatch,
    ReadLine,
    log_probabilities,
    map_pairs,
    non_finite_pairs,
    run_batch,
)
from nmt.checkpoint.model_directory import LoadedModel
from nmt.data.text import EMPTY, BadLine
from nmt.decoding.translation import Failure
from nmt.errors import DataError
from nmt.model.observe import Site
from nmt.model.transformer import Transformer

Values = npt.NDArray[np.float64]

ALL_KINDS = "all kinds"  # cannot be a label, because labels are single words
SMALLEST_SCALE = 0.01  # of log ratios, for text in which most pairs have the same ratio


@dataclass(frozen=True)
class PairScores:
    """The scores of one pair; all are NaN if `problem` says why it could not be scored."""

    null_rate_by_layer: tuple[float, ...]  # of cross-attention, mean over the heads
    log_probability: float  # of the target, per subword (with EOS)
    length_ratio: float  # words of the shorter side divided by words of the longer side
    coverage: float  # share of source words that a target word attends to, mean over the heads
    problem: str = ""
    length_deviation: float = math.nan  # see `length_deviations`; a pair alone has none

    @property
    def null_rate(self) -> float:
        """The share of cross-attention queries that are null, mean over layers and heads."""
        return sum(self.null_rate_by_layer) / len(self.null_rate_by_layer)

    @property
    def combined(self) -> float:
        """The log probability per subword plus the log density of the lengths."""
        return self.log_probability - self.length_deviation

    @classmethod
    def unscored(cls, problem: str, *, layers: int) -> "PairScores":
        """The scores of a pair that cannot be scored."""
        return cls((math.nan,) * layers, math.nan, math.nan, math.nan, problem)


@dataclass(frozen=True)
class ScoreColumn:
    """A column of the table of scores."""

    name: str
    value: Callable[[PairScores], float]
    higher_is_better: bool

    def goodness(self, scores: PairScores) -> float:
        """A number that is higher for better pairs; -inf for a pair that was not scored."""
        value = self.value(scores)
        if math.isnan(value):
            return -math.inf
        return value if self.higher_is_better else -value


def score_columns(layers: int) -> list[ScoreColumn]:
    """The columns for a model with this number of decoder layers."""
    return [
        ScoreColumn("null_rate", lambda scores: scores.null_rate, higher_is_better=False),
        *(
            ScoreColumn(
                f"null_rate_layer_{layer}",
                lambda scores, layer=layer: scores.null_rate_by_layer[layer],  # type: ignore[misc]
                higher_is_better=False,
            )
            for layer in range(layers)
        ),
        ScoreColumn(
            "log_probability", lambda scores: scores.log_probability, higher_is_better=True
        ),
        ScoreColumn("length_ratio", lambda scores: scores.length_ratio, higher_is_better=True),
        ScoreColumn("coverage", lambda scores: scores.coverage, higher_is_better=True),
        ScoreColumn(
            "length_deviation", lambda scores: scores.length_deviation, higher_is_better=False
        ),
        ScoreColumn("combined", lambda scores: scores.combined, higher_is_better=True),
    ]


def score_batch(model: Transformer, batch: PairBatch) -> list[PairScores]:
    """The scores of the pairs of a batch."""
    null_rates: dict[int, Tensor] = {}  # by layer, [B]
    touched: dict[int, Tensor] = {}  # by layer, [B, H, S] keys with weight from a target subword
    lengths = batch.target_visible.sum(dim=1)
    # The last query predicts EOS, which is not a word.
    producing = batch.target_visible.clone()
    producing[torch.arange(len(lengths), device=lengths.device), lengths - 1] = False

    def observer(site: Site, weights: Tensor, visible: Tensor) -> None:
        if site.type != "cross":
            return
        used = (weights != 0) & visible
        null = ~used.any(dim=-1) & batch.target_visible[:, None]
        rates = null.sum(dim=-1).double() / lengths[:, None]
        null_rates[site.layer] = rates.mean(dim=1).cpu()
        touched[site.layer] = (used & producing[:, None, :, None]).any(dim=2).cpu()

    hidden = run_batch(model, batch, observer)
    totals = log_probabilities(model, batch, hidden).double().sum(dim=1)
    per_token = (totals / lengths).tolist()
    broken = set(non_finite_pairs(batch, hidden))
    layers = sorted(null_rates)
    keys = torch.stack([touched[layer] for layer in layers], dim=1).numpy()  # [B, L, H, S]
    scores = [
        PairScores(
            tuple(float(null_rates[layer][row]) for layer in layers),
            per_token[row],
            length_ratio(len(pair.source.words), len(pair.target.words)),
            coverage(keys[row], pair.source.word_of_piece, len(pair.source.words)),
        )
        for row, pair in enumerate(batch.pairs)
    ]
    return [
        PairScores.unscored(Failure.NON_FINITE, layers=len(layers))
        if pair.index in broken or not math.isfinite(of_pair.log_probability)
        else of_pair
        for pair, of_pair in zip(batch.pairs, scores, strict=True)
    ]


def scored_pairs(
    loaded: LoadedModel,
    pairs: Iterable[tuple[ReadLine, ReadLine]],
    *,
    batch_tokens: int,
    max_length: int,
) -> Iterator[PairScores]:
    """The scores of all pairs, in order."""
    layers = loaded.config.model.decoder_layers
    return map_pairs(
        loaded,
        itertools.starmap(without_blanks, pairs),
        lambda batch: score_batch(loaded.model, batch),
        lambda problem: PairScores.unscored(problem, layers=layers),
        batch_tokens=batch_tokens,
        max_length=max_length,
    )


def without_blanks(source: ReadLine, target: ReadLine) -> tuple[ReadLine, ReadLine]:
    """The pair, with a blank side marked as bad."""
    blank = BadLine(EMPTY, 0, 0)
    sides = [
        blank if isinstance(side, str) and not side.strip() else side for side in (source, target)
    ]
    return sides[0], sides[1]


def length_ratio(source: int, target: int) -> float:
    """The shorter length divided by the longer one; 1 if both are 0."""
    return min(source, target) / max(source, target) if max(source, target) else 1.0


def length_deviations(pairs: Iterable[tuple[ReadLine, ReadLine]]) -> Values:
    """How unusual the lengths of each of N pairs are, [N]: 0 for the usual ratio; NaN without text.

    The log ratio of target to source length in characters is taken to have a Laplace distribution.
    Its centre is the median over the pairs and its scale follows from the median distance to it,
    which bad pairs hardly move. The deviation is the distance to the centre divided by the scale:
    the negative log density, up to a constant.
    """
    ratios = np.fromiter(itertools.starmap(log_length_ratio, pairs), dtype=np.float64)
    if np.isnan(ratios).all():
        return ratios
    distances = np.abs(ratios - np.nanmedian(ratios))
    scale = float(np.nanmedian(distances)) / math.log(2)
    return distances / max(scale, SMALLEST_SCALE)


def log_length_ratio(source: ReadLine, target: ReadLine) -> float:
    """The log of target by source characters; NaN if a side is bad or blank."""
    lengths = [len(side.strip()) if isinstance(side, str) else 0 for side in (source, target)]
    return math.log(lengths[1] / lengths[0]) if all(lengths) else math.nan


def with_deviations(
    results: Iterable[PairScores], deviations: Values, path: Path
) -> Iterator[PairScores]:
    """The scores of all pairs with their length deviations; `path` names the text in an error."""
    for scores, deviation in itertools.zip_longest(results, deviations):
        if scores is None or deviation is None:
            raise DataError(f"{path}: changed while it was read")
        yield scores if scores.problem else replace(scores, length_deviation=float(deviation))


def coverage(keys: npt.NDArray[np.bool_], word_of_piece: Sequence[int], num_words: int) -> float:
    """The share of words with a subword that is true in keys [L, H, S], mean over the heads."""
    if num_words == 0:
        return 0.0
    words = np.zeros((num_words, *keys.shape[:2]), dtype=bool)
    np.logical_or.at(words, list(word_of_piece), np.moveaxis(keys, -1, 0)[: len(word_of_piece)])
    return float(words.mean())


def area_under_curve(good: Values, bad: Values) -> float:
    """The area under the ROC curve, computed exactly from ranks.

    It is the probability that a good pair has a higher value than a bad one, where ties count half;
    0.5 is chance.
    """
    assert len(good) > 0, "expected good pairs"
    assert len(bad) > 0, "expected bad pairs"
    ordered = np.sort(bad)
    below = int(np.searchsorted(ordered, good, side="left").sum())
    not_above = int(np.searchsorted(ordered, good, side="right").sum())
    return (below + not_above) / (2 * len(good) * len(bad))


def areas_by_label(
    goodness: dict[str, Values], labels: Sequence[str], *, clean_label: str
) -> dict[str, Any]:
    """By score the areas under the ROC curve of clean pairs against each label and all others."""
    names = np.array(labels)
    good = names == clean_label
    kinds = sorted(set(labels) - {clean_label})
    result: dict[str, Any] = {}
    for score, values in goodness.items():
        areas = {kind: area_under_curve(values[good], values[names == kind]) for kind in kinds}
        result[score] = {**areas, ALL_KINDS: area_under_curve(values[good], values[~good])}
    return result


def best_pairs(goodness: Values, share: float) -> npt.NDArray[np.int64]:
    """The indices of the best `share` of all pairs, in order; the first of equal pairs are taken.

    Pairs that could not be scored are never taken.
    """
    order = np.argsort(-goodness, kind="stable")[: math.floor(share * len(goodness) + 0.5)]
    return np.sort(order[np.isfinite(goodness[order])])
