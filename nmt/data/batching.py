"""The batches of a corpus: their content and order are a pure function of seed, epoch and position.

Shapes: B sentences of a batch, S source positions, T target positions.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmt.data.corpus import EncodedCorpus
from nmt.data.loss_inputs import PackedInputs, pack_inputs
from nmt.data.mixture import Mixture
from nmt.data.permutation import POSITION_BITS, Positions, parts, random_order, sorted_positions
from nmt.data.ragged import Integers
from nmt.data.sampling import MOST_GROWTH, SubwordSampling, even_cuts
from nmt.data.shares import Share, divide
from nmt.data.vocabulary import BOS, PAD

Indices = npt.NDArray[np.int64]
Padded = tuple[Integers, npt.NDArray[np.bool_]]  # ids and the mask of tokens

LONGEST_SORTED = (1 << 16) - 1  # longer sentences are sorted as if they had this length

Item = TypeVar("Item")


@dataclass(frozen=True)
class Batch:
    """Padded sentence pairs as tensors; `visible` is true where there is a token."""

    source: Tensor  # [B, S] int64, with final EOS
    source_visible: Tensor  # [B, S] bool
    target_input: Tensor  # [B, T] int64, BOS and all tokens but the last
    target_output: Tensor  # [B, T] int64, with final EOS
    target_visible: Tensor  # [B, T] bool
    indices: Indices  # [B] positions in the corpus
    num_target_tokens: int  # padding not counted
    packed: PackedInputs | None = None  # made in advance for the loss

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch with its tensors on `device`."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        moved: dict[str, Any] = {name: tensor.to(device) for name, tensor in tensors.items()}
        return replace(self, **moved)

    def pack(self, *, pinned: bool) -> "Batch":
        """The same batch with the arguments of its loss packed, in pinned memory or not."""
        inputs = pack_inputs(
            self.source,
            self.source_visible,
            self.target_input,
            self.target_output,
            self.target_visible,
            pinned=pinned,
        )
        return replace(self, packed=inputs)


def make_batch(corpus: EncodedCorpus, indices: npt.NDArray[np.integer[Any]]) -> Batch:
    """The pairs at `indices` of a corpus, padded to the longest sentence of each side."""
    source = corpus.padded("source", indices, padding=PAD)
    target = corpus.padded("target", indices, padding=PAD)
    return batch_of(source, target, indices)


def batch_of(source: Padded, target: Padded, indices: npt.NDArray[np.integer[Any]]) -> Batch:
    """The batch of padded ids of both sides."""
    (source_ids, source_visible), (target_ids, target_visible) = source, target
    shifted = np.full_like(target_ids, BOS)
    shifted[:, 1:] = np.where(target_visible[:, 1:], target_ids[:, :-1], PAD)
    return Batch(
        source=torch.from_numpy(source_ids),
        source_visible=torch.from_numpy(source_visible),
        target_input=torch.from_numpy(shifted),
        target_output=torch.from_numpy(target_ids),
        target_visible=torch.from_numpy(target_visible),
        indices=np.asarray(indices, dtype=np.int64),
        num_target_tokens=int(np.count_nonzero(target_visible)),
    )


class EpochPlan:
    """The batches of one epoch in order; plan[i] is an int64 array of positions in the corpus."""

    def __init__(self, pairs: Positions, bounds: Indices, order: Positions) -> None:
        self._pairs = pairs  # [pairs] sorted, so that each batch is a slice
        self._bounds = bounds  # [batches + 1] the start of each slice, and the end
        self._order = order  # [batches] the slice at each position of the epoch

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Indices]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, position: int) -> Indices:
        start, end = self._bounds[self._order[position] :][:2]
        return self._pairs[start:end].astype(np.int64)


def plan_epoch(
    source_lengths: Integers,
    target_lengths: Integers,
    *,
    batch_tokens: int,
    seed: int,
    epoch: int,
    pairs: Positions | None = None,
) -> EpochPlan:
    """The batches of an epoch: similar lengths together, in random order.

    The epoch has the given `pairs`, or every pair once. The number of sentences of a batch times
    its longest sentence on either side is at most `batch_tokens`; a longer pair makes a batch of
    its own. Each epoch groups pairs of equal lengths anew, and changes where batches begin and the
    order of the batches.
    """
    assert len(source_lengths) == len(target_lengths) < 1 << POSITION_BITS
    # Only raw random bits and sorting: numpy keeps these the same from version to version.
    random = np.random.Philox(np.random.SeedSequence([seed, epoch]))
    shuffled = random_order(random, len(source_lengths) if pairs is None else len(pairs))
    if pairs is not None:
        shuffled = pairs[shuffled]
    pairs = order_by_length(source_lengths, target_lengths, shuffled)
    longest = longest_sides(source_lengths, target_lengths, pairs)
    first_share = 1.0 - int(random.random_raw()) / 2**64
    bounds = cut_batches(longest, batch_tokens=batch_tokens, first_share=first_share)
    return EpochPlan(pairs, bounds, random_order(random, len(bounds) - 1))


def order_by_length(
    source_lengths: Integers, target_lengths: Integers, pairs: Positions
) -> Positions:
    """[pairs] the given pairs, sorted so that neighbours have similar lengths on both sides.

    The sort is stable. The first key is the length of the longer side, the second the difference of
    the sides. The difference ascends for even lengths and descends for odd ones, so that it also
    agrees where one length ends and the next begins.
    """
    keys = np.empty(len(pairs), dtype=np.uint64)
    for part in parts(len(pairs)):
        source = np.minimum(source_lengths[pairs[part]], LONGEST_SORTED)
        target = np.minimum(target_lengths[pairs[part]], LONGEST_SORTED)
        longest = np.maximum(source, target)
        difference = np.where(longest % 2 == 0, source - target, target - source)
        keys[part] = (longest << 17) + (difference + LONGEST_SORTED)
    return pairs[sorted_positions(keys)]


def longest_sides(
    source_lengths: Integers, target_lengths: Integers, pairs: Positions
) -> npt.NDArray[np.int32]:
    """[pairs] the length of the longer side of each of the given pairs."""
    longest = np.empty(len(pairs), dtype=np.int32)
    for part in parts(len(pairs)):
        longest[part] = np.maximum(source_lengths[pairs[part]], target_lengths[pairs[part]])
    return longest


def cut_batches(
    longest: npt.NDArray[np.int32], *, batch_tokens: int, first_share: float = 1.0
) -> Indices:
    """[batches + 1] bounds of slices that hold as many pairs as `batch_tokens` allows.

    `longest` has the length of the longer side of each pair. The first batch gets only the share
    `first_share` of `batch_tokens`.
    """
    bounds = [0]
    room = batch_tokens * first_share
    while bounds[-1] < len(longest):
        start = bounds[-1]
        most = max(1, int(room // max(1, longest[start])))
        widths = np.maximum.accumulate(longest[start : start + most])
        needed = widths * np.arange(1, len(widths) + 1)  # grows, as both factors do
        bounds.append(start + max(1, int(np.searchsorted(needed, room, side="right"))))
        room = batch_tokens
    return np.array(bounds, dtype=np.int64)


def validation_batches(corpus: EncodedCorpus, *, batch_tokens: int) -> Iterator[Batch]:
    """All pairs of a corpus in batches sorted by length, the same batches at each call."""
    source_lengths, target_lengths = corpus.source_lengths, corpus.target_lengths
    everything = np.arange(len(corpus), dtype=np.uint32)
    pairs = order_by_length(source_lengths, target_lengths, everything)
    longest = longest_sides(source_lengths, target_lengths, pairs)
    bounds = cut_batches(longest, batch_tokens=batch_tokens)
    for start, end in pairwise(bounds):
        yield make_batch(corpus, pairs[start:end])


class StreamState(NamedTuple):
    """A position in the stream of batches; a checkpoint needs no more to continue it."""

    epoch: int  # counted from 0
    position: int  # batches of the epoch that all processes together have used


STREAM_START = StreamState(0, 0)


class Update(NamedTuple):
    """The share of one process in one update."""

    epoch: int
    position: int  # of the update's first batch in the plan of the epoch
    batches: list[Batch]  # of this process; empty if the update has fewer rows than processes
    shares: list[Share]  # which rows of which batch of the update each of `batches` is
    tokens: int  # target tokens of the whole update, of all processes
    following: StreamState  # where the next update begins


class SampledShares(NamedTuple):
    """The share of one process in an update with subword sampling."""

    batches: list[Batch]
    shares: list[Share]
    tokens: int  # target tokens of the whole update


@dataclass(frozen=True)
class BatchStream:
    """The endless stream of batches of a corpus, which can start at any position.

    An update is `accumulate` consecutive batches of an epoch, or what is left at its end. With a
    `mixture` of corpora, an epoch also ends where another set of corpora begins to be used. Each of
    `world_size` processes computes an equal share of its tokens; a batch can be divided by rows.
    With `sampling`, sentences are segmented anew; batches and shares go by the plain lengths. A
    background thread makes `prefetch` batches in advance (0: no thread); the stream does not depend
    on it. With `pinned` it also packs the inputs of the loss in pinned memory, from which a GPU
    copies them.
    """

    corpus: EncodedCorpus
    batch_tokens: int
    seed: int
    mixture: Mixture | None = None
    sampling: SubwordSampling | None = None
    accumulate: int = 1
    rank: int = 0
    world_size: int = 1
    prefetch: int = 0
    pinned: bool = False

    def plan(self, epoch: int, *, done: int = 0) -> EpochPlan:
        """The batches of the epoch that is under way after `done` updates.

        Raises DataError if the files have changed.
        """
        self.corpus.check_unchanged()
        pairs = None
        if self.mixture is not None:
            pairs = self.mixture.pairs_of_epoch(epoch, done=done, seed=self.seed)
        return plan_epoch(
            self.corpus.source_lengths,
            self.corpus.target_lengths,
            batch_tokens=self.batch_tokens,
            seed=self.seed,
            epoch=epoch,
            pairs=pairs,
        )

    def updates(self, start: StreamState = STREAM_START, *, done: int = 0) -> Iterator[Update]:
        """The updates from `start` on, without end, after `done` updates.

        Closing the iterator stops its thread.
        """
        updates = self._updates(start, done)
        if self.pinned:
            updates = map(pin_inputs, updates)
        if self.prefetch == 0:
            return updates
        batches_per_update = -(-self.accumulate // self.world_size)
        return ahead(updates, depth=-(-self.prefetch // batches_per_update))

    def _updates(self, start: StreamState, done: int) -> Iterator[Update]:
        epoch, position = start
        while True:
            plan = self.plan(epoch, done=done)
            border = None if self.mixture is None else self.mixture.border_after(done)
            source_lengths = self.corpus.source_lengths
            target_lengths = self.corpus.target_lengths
            while position < len(plan) and done != border:
                end = min(position + self.accumulate, len(plan))
                rows = [plan[index] for index in range(position, end)]
                pair_tokens = [source_lengths[row] + target_lengths[row] for row in rows]
                shares = divide(pair_tokens, rank=self.rank, world_size=self.world_size)
                done += 1
                if self.sampling is None:
                    batches = [
                        make_batch(self.corpus, rows[batch][start:end])
                        for batch, start, end in shares
                    ]
                    tokens = sum(int(target_lengths[indices].sum()) for indices in rows)
                else:
                    batches, shares, tokens = self._sample(self.sampling, done, rows, shares)
                ended = end == len(plan) or done == border
                following = StreamState(epoch + 1, 0) if ended else StreamState(epoch, end)
                yield Update(epoch, position, batches, shares, tokens, following)
                position = end
            epoch, position = epoch + 1, 0

    def _sample(
        self, sampling: SubwordSampling, update: int, rows: list[Indices], shares: list[Share]
    ) -> SampledShares:
        """The batches of an update whose sentences are segmented anew.

        Each process samples all targets, as the tokens of the whole update are part of its loss.
        """
        batches, parts = [], []
        targets = [
            sampling.sample(
                "target", self.corpus.ragged("target", own), update=update, batch=batch, row=0
            )
            for batch, own in enumerate(rows)
        ]
        for batch, start, end in shares:
            indices = rows[batch][start:end]
            target = targets[batch].rows(start, end)
            plain = self.corpus.ragged("source", indices)
            source = sampling.sample("source", plain, update=update, batch=batch, row=start)
            longest = np.maximum(source.lengths, target.lengths)
            for low, high in pairwise(even_cuts(longest, most=MOST_GROWTH * self.batch_tokens)):
                padded = [side.rows(low, high).padded(PAD) for side in (source, target)]
                batches.append(batch_of(padded[0], padded[1], indices[low:high]))
                parts.append(Share(batch, start + low, start + high))
        return SampledShares(batches, parts, sum(len(target.values) for target in targets))


def pin_inputs(update: Update) -> Update:
    """The update with the inputs of the loss of each batch packed in pinned memory."""
    return update._replace(batches=[batch.pack(pinned=True) for batch in update.batches])


def ahead(items: Iterator[Item], *, depth: int) -> Iterator[Item]:
    """The items of an endless iterator, `depth` of them made in advance by a thread."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as thread:
        pending = deque(thread.submit(next, items) for _ in range(depth))
        try:
            while True:
                item = pending.popleft().result()  # raises what the thread raised
                pending.append(thread.submit(next, items))
                yield item
        finally:
            thread.shutdown(cancel_futures=True)
