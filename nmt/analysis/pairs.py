"""Streams sentence pairs through a model and observes its attention, in constant memory.

The model reads pairs with their given targets, in batches of similar length. Lengths are padded to
multiples for which matrix products give the same bits, so that no number depends on which pairs
share a batch. Query i of the decoder reads token i of `target_input` and predicts token i of
`target_output`, whose last token is EOS.

Shapes: B sentences, S source positions, T target positions (both with EOS), H heads.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmt.checkpoint.model_directory import LoadedModel
from nmt.data.codec import Segmentation
from nmt.data.text import AnyLine, BadLine, Pair, side_by_side
from nmt.decoding.batching import length_batches
from nmt.decoding.ensemble import chosen_log_probabilities, decoder_input, pad
from nmt.decoding.streaming import always, windows
from nmt.errors import UserError
from nmt.model.observe import Observer, Site, observe_attention
from nmt.model.transformer import Transformer

# With more padding, matrix products give the same bits if lengths are multiples of 16, and so do
# the sums over keys in entmax if they are multiples of 32.
ANALYSIS_LENGTH_MULTIPLE = 32
ANALYSIS_BATCH_TOKENS = 2048
SORTED_PAIRS = 2048  # pairs that are sorted by length at a time
ANALYSIS_MAX_LENGTH = 512  # subwords per side; attention weights need memory quadratic in it

ReadLine = str | BadLine
Result = TypeVar("Result")


@dataclass(frozen=True)
class SegmentedPair:
    """A pair as words and token ids, with its index in the input."""

    index: int
    source: Segmentation
    target: Segmentation

    @property
    def length(self) -> int:
        """Token ids of the longer side, with EOS."""
        return max(len(self.source.ids), len(self.target.ids))


@dataclass(frozen=True)
class PairBatch:
    """Pairs of similar length as padded tensors."""

    pairs: Sequence[SegmentedPair]
    source: Tensor  # [B, S] int64
    source_visible: Tensor  # [B, S] bool, false in the padding
    target_input: Tensor  # [B, T] int64
    target_output: Tensor  # [B, T] int64
    target_visible: Tensor  # [B, T] bool

    @classmethod
    def of(cls, pairs: Sequence[SegmentedPair], device: torch.device | str) -> "PairBatch":
        """A batch padded to its longest pair."""
        multiple = ANALYSIS_LENGTH_MULTIPLE
        source, source_visible = pad(
            [pair.source.ids for pair in pairs], multiple=multiple, device=device
        )
        target, target_visible = pad(
            [pair.target.ids for pair in pairs], multiple=multiple, device=device
        )
        return cls(pairs, source, source_visible, decoder_input(target), target, target_visible)


@dataclass(frozen=True)
class PairAttention:
    """The attention of one pair: weights [H, Q, K] of each sublayer, without padding."""

    pair: SegmentedPair
    weights: dict[Site, npt.NDArray[np.float32]]
    finite: bool = True  # whether the model computes finite numbers for the pair

    def cross(self) -> npt.NDArray[np.float32]:
        """The cross-attention [L, H, T, S] of all layers."""
        layers = sorted(site.layer for site in self.weights if site.type == "cross")
        return np.stack([self.weights[Site("cross", layer)] for layer in layers])


def run_batch(model: Transformer, batch: PairBatch, observer: Observer) -> Tensor:
    """Call the observer for every attention sublayer; returns the hidden states [B, T, D].

    All hidden states of a pair become NaN if any of its attention weights is not finite.
    """
    broken = torch.zeros(len(batch.pairs), dtype=torch.bool, device=batch.source.device)

    def watch(site: Site, weights: Tensor, visible: Tensor) -> None:
        queries = batch.source_visible if site.type == "encoder_self" else batch.target_visible
        real = queries[:, None, :, None] & visible
        broken.logical_or_((real & ~weights.isfinite()).flatten(1).any(dim=1))
        observer(site, weights, visible)

    with torch.inference_mode(), observe_attention(model, watch):
        hidden: Tensor = model(batch.source, batch.source_visible, batch.target_input)
        return hidden.masked_fill(broken[:, None, None], torch.nan)


def non_finite_pairs(batch: PairBatch, hidden: Tensor) -> list[int]:
    """Indices of the pairs with a hidden state [B, T, D] that is not finite."""
    broken = (batch.target_visible & ~hidden.isfinite().all(dim=-1)).any(dim=1).tolist()
    return [pair.index for pair, failed in zip(batch.pairs, broken, strict=True) if failed]


def log_probabilities(model: Transformer, batch: PairBatch, hidden: Tensor) -> Tensor:
    """The log probability [B, T] of each target token, 0 in the padding."""
    with torch.inference_mode():
        chosen = chosen_log_probabilities(model.logits, hidden, batch.target_output)
        return chosen.masked_fill(~batch.target_visible, 0.0)


def cut_window(
    window: Sequence[SegmentedPair], *, batch_tokens: int, device: torch.device | str
) -> Iterator[PairBatch]:
    """Batches of pairs of similar length."""
    batches = length_batches(
        [pair.length for pair in window],
        batch_tokens=batch_tokens,
        multiple=ANALYSIS_LENGTH_MULTIPLE,
    )
    for positions in batches:
        yield PairBatch.of([window[position] for position in positions], device)


def map_pairs(
    loaded: LoadedModel,
    pairs: Iterable[tuple[ReadLine, ReadLine]],
    compute: Callable[[PairBatch], Sequence[Result]],
    unusable: Callable[[str], Result],
    *,
    batch_tokens: int = ANALYSIS_BATCH_TOKENS,
    max_length: int = ANALYSIS_MAX_LENGTH,
    window: int = SORTED_PAIRS,
) -> Iterator[Result]:
    """One result per pair, in order: that of `compute` for its batch, or `unusable(reason)`.

    Pairs with a bad line or with more than `max_length` subwords on a side are unusable. When
    reading fails, the results before come out first, and then the error.
    """
    codec, device = loaded.codec, loaded.model.target_embedding.device
    for chunk in windows(enumerate(pairs), always, size=window):
        results: dict[int, Result] = {}
        usable = []
        for index, (source, target) in chunk:
            if isinstance(source, BadLine):
                results[index] = unusable(source.reason)
                continue
            if isinstance(target, BadLine):
                results[index] = unusable(target.reason)
                continue
            pair = SegmentedPair(index, codec.source.segment(source), codec.target.segment(target))
            if pair.length - 1 > max_length:
                results[index] = unusable(f"longer than {max_length} subwords")
            else:
                usable.append(pair)
        for batch in cut_window(usable, batch_tokens=batch_tokens, device=device):
            for pair, result in zip(batch.pairs, compute(batch), strict=True):
                results[pair.index] = result
        for index, _ in chunk:
            yield results.pop(index)


def batch_attention(
    model: Transformer,
    batch: PairBatch,
    *,
    types: Sequence[str] = ("encoder_self", "decoder_self", "cross"),
) -> list[PairAttention]:
    """The attention of each pair of a batch, in sublayers of these types."""
    seen: dict[Site, npt.NDArray[np.float32]] = {}

    def observer(site: Site, weights: Tensor, _visible: Tensor) -> None:
        if site.type in types:
            seen[site] = weights.float().cpu().numpy()

    broken = set(non_finite_pairs(batch, run_batch(model, batch, observer)))
    return [
        replace(one, finite=one.pair.index not in broken)
        for one in split_attention(batch.pairs, seen)
    ]


def split_attention(
    pairs: Sequence[SegmentedPair], seen: Mapping[Site, npt.NDArray[np.float32]]
) -> list[PairAttention]:
    """The attention of each pair, without padding, from the weights [B, H, Q, K] of a batch."""
    results = []
    for row, pair in enumerate(pairs):
        source, target = len(pair.source.ids), len(pair.target.ids)
        weights = {}
        for site, values in seen.items():
            num_queries = source if site.type == "encoder_self" else target
            num_keys = target if site.type == "decoder_self" else source
            weights[site] = values[row, :, :num_queries, :num_keys].copy()
        results.append(PairAttention(pair, weights))
    return results


def read_side_by_side(
    source: Path, target: Path, reader: Callable[[Path], Iterator[AnyLine]]
) -> Iterator[tuple[AnyLine, AnyLine]]:
    """The lines of two files, with blank ones; line n goes with line n."""
    return side_by_side(reader(source), reader(target), (str(source), str(target)))


def derangement(count: int, *, seed: int) -> npt.NDArray[np.int64]:
    """A random permutation [count] that leaves nothing in its place (a single cycle)."""
    if count < 2:
        raise UserError(f"shuffled targets need at least 2 sentence pairs, got {count}")
    # numpy promises the same raw random bits in every version, but not the same permutations.
    keys = np.random.Philox(np.random.SeedSequence(seed)).random_raw(count)
    cycle = np.argsort(keys, kind="stable")
    permutation = np.empty(count, dtype=np.int64)
    permutation[cycle] = np.roll(cycle, -1)
    return permutation


def shuffle_targets(pairs: Sequence[tuple[str, str]], *, seed: int) -> list[Pair]:
    """Every source with the target of another pair: the paper's hallucinated translations."""
    order = derangement(len(pairs), seed=seed)
    return [Pair(source, pairs[other][1]) for (source, _), other in zip(pairs, order, strict=True)]
