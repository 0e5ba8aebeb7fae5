"""Which pairs go together into which batch: a pure function of seed, epoch and position.

Letters in shapes: B sentences of a batch, S source positions, T target positions.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmt.data.corpus import EncodedCorpus, Integers
from nmt.data.vocabulary import BOS, PAD

Indices = npt.NDArray[np.int64]
Positions = npt.NDArray[np.uint32]  # half the memory of int64, for arrays as long as the corpus

LONGEST_SORTED = (1 << 16) - 1  # longer sentences count as this long when neighbours are chosen
POSITION_BITS = 31

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

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """The same batch with its tensors on `device`."""
        tensors = self._tensors().items()
        moved = {name: value.to(device, non_blocking=non_blocking) for name, value in tensors}
        return replace(self, **moved)

    def pin_memory(self) -> "Batch":
        """The same batch in page-locked memory, from which copies to a GPU need not wait."""
        return replace(
            self, **{name: value.pin_memory() for name, value in self._tensors().items()}
        )

    def _tensors(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def make_batch(corpus: EncodedCorpus, indices: npt.NDArray[np.integer[Any]]) -> Batch:
    """The pairs at `indices` of a corpus, padded to the longest sentence of each side."""
    source, source_visible = corpus.padded("source", indices, padding=PAD)
    target, target_visible = corpus.padded("target", indices, padding=PAD)
    shifted = np.full_like(target, BOS)
    shifted[:, 1:] = np.where(target_visible[:, 1:], target[:, :-1], PAD)
    return Batch(
        source=torch.from_numpy(source),
        source_visible=torch.from_numpy(source_visible),
        target_input=torch.from_numpy(shifted),
        target_output=torch.from_numpy(target),
        target_visible=torch.from_numpy(target_visible),
        indices=np.asarray(indices, dtype=np.int64),
        num_target_tokens=int(np.count_nonzero(target_visible)),
    )


class EpochPlan(Sequence[Indices]):
    """The batches of one epoch in their order; plan[i] is an int64 array of corpus positions."""

    def __init__(self, pairs: Positions, bounds: Indices, order: Positions) -> None:
        self._pairs = pairs  # [pairs] sorted so that batches are slices
        self._bounds = bounds  # [batches + 1] where they start and end
        self._order = order  # [batches] which slice comes when

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, position: int) -> Indices: ...
    @overload
    def __getitem__(self, position: slice) -> list[Indices]: ...
    def __getitem__(self, position: int | slice) -> Indices | list[Indices]:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        start, end = self._bounds[self._order[position] :][:2]
        return self._pairs[start:end].astype(np.int64)


def plan_epoch(
    source_lengths: Integers, target_lengths: Integers, *, batch_tokens: int, seed: int, epoch: int
) -> EpochPlan:
    """The batches of an epoch: every pair once, similar lengths together, in random order.

    In each batch sentences times the longest sentence of either side is at most `batch_tokens`,
    but a pair that is longer by itself is a batch of its own. Which of the pairs of equal lengths
    meet, where batches begin and in which order they come changes with the epoch.
    """
    assert len(source_lengths) == len(target_lengths) < 1 << POSITION_BITS
    # Raw random bits and sorting only: numpy keeps those the same from version to version.
    random = np.random.Philox(np.random.SeedSequence([seed, epoch]))
    shuffled = random_order(random, len(source_lengths))
    pairs = order_by_length(source_lengths, target_lengths, shuffled)
    longest = longest_sides(source_lengths, target_lengths, pairs)
    first_share = 1.0 - int(random.random_raw()) / 2**64
    bounds = cut_batches(longest, batch_tokens=batch_tokens, first_share=first_share)
    return EpochPlan(pairs, bounds, random_order(random, len(bounds) - 1))


def random_order(random: np.random.Philox, count: int) -> Positions:
    """[count] the numbers below `count` (at most 2**31) in random order."""
    keys = np.asarray(random.random_raw(count), dtype=np.uint64)
    keys >>= np.uint64(POSITION_BITS)
    return sorted_positions(keys)


def order_by_length(
    source_lengths: Integers, target_lengths: Integers, pairs: Positions
) -> Positions:
    """[pairs] the given pairs, neighbours alike in both lengths; equals keep their order.

    Sorted by the longer side, and among equals by the difference of the sides, upwards and
    downwards in turn: so where one length ends and the next begins the differences agree too.
    """
    keys = np.empty(len(pairs), dtype=np.uint64)
    for part in parts(len(pairs)):
        source = np.minimum(source_lengths[pairs[part]], LONGEST_SORTED)
        target = np.minimum(target_lengths[pairs[part]], LONGEST_SORTED)
        longest = np.maximum(source, target)
        difference = np.where(longest % 2 == 0, source - target, target - source)
        keys[part] = (longest << 17) + (difference + LONGEST_SORTED)
    return pairs[sorted_positions(keys)]


def sorted_positions(keys: npt.NDArray[np.uint64]) -> Positions:
    """The stable order of keys below 2**33, overwriting them.

    With its position in the low bits each key is unique and is sorted in place, which is quicker
    than argsort and takes half the memory.
    """
    keys <<= np.uint64(POSITION_BITS)
    for part in parts(len(keys)):
        keys[part] |= np.arange(part.start, part.stop, dtype=np.uint64)
    keys.sort()
    keys &= np.uint64((1 << POSITION_BITS) - 1)
    return keys.astype(np.uint32)


def longest_sides(
    source_lengths: Integers, target_lengths: Integers, pairs: Positions
) -> npt.NDArray[np.int32]:
    """[pairs] the length of the longer side of each of the given pairs."""
    longest = np.empty(len(pairs), dtype=np.int32)
    for part in parts(len(pairs)):
        longest[part] = np.maximum(source_lengths[pairs[part]], target_lengths[pairs[part]])
    return longest


def parts(count: int) -> Iterator[slice]:
    """Slices of a million elements that cover `count`: intermediate arrays stay small."""
    for start in range(0, count, 1 << 20):
        yield slice(start, min(start + (1 << 20), count))


def cut_batches(
    longest: npt.NDArray[np.int32], *, batch_tokens: int, first_share: float = 1.0
) -> Indices:
    """[batches + 1] bounds of slices that hold as many rows as `batch_tokens` allows.

    `longest` has the longer side of each pair. The first batch is filled to `first_share` only.
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
    """All pairs of a corpus, sorted by length; always the same batches."""
    source_lengths, target_lengths = corpus.source_lengths, corpus.target_lengths
    everything = np.arange(len(corpus), dtype=np.uint32)
    pairs = order_by_length(source_lengths, target_lengths, everything)
    longest = longest_sides(source_lengths, target_lengths, pairs)
    bounds = cut_batches(longest, batch_tokens=batch_tokens)
    for start, end in pairwise(bounds):
        yield corpus.gather(pairs[start:end].astype(np.int64))


def update_batches(
    plan: Sequence[Indices], update_position: int, accumulate: int, rank: int, world_size: int
) -> list[Indices]:
    """The batches that one process computes for the update that begins at `update_position`.

    Positions count batches of the plan. An update is `accumulate` consecutive batches, fewer at
    the end of the epoch; process `rank` takes every `world_size`-th of them, perhaps none.
    """
    assert 0 <= rank < world_size
    positions = range(update_position, min(update_position + accumulate, len(plan)))
    return [plan[position] for position in positions[rank::world_size]]


class StreamState(NamedTuple):
    """Where a stream is: all that a checkpoint has to keep of the order of the data."""

    epoch: int  # counted from 0
    position: int  # batches of the epoch already used, over all processes


BEGINNING = StreamState(0, 0)


class Update(NamedTuple):
    """What one process computes in one update."""

    epoch: int
    position: int  # of the update's first batch in the plan of the epoch
    batches: list[Batch]  # of this process; may be empty at the end of an epoch
    tokens: int  # target tokens of the whole update, over all processes
    following: StreamState  # continue here after this update


class StreamedBatch(NamedTuple):
    """One batch and its place."""

    epoch: int
    position: int  # in the plan of the epoch
    batch: Batch


@dataclass(frozen=True)
class BatchStream:
    """The endless sequence of batches of a corpus, from any point on.

    What comes out depends on the fields but not on `prefetch`, the number of batches that a
    background thread makes ahead; 0: no thread. Batches of one update go to `world_size`
    processes in turn.
    """

    corpus: EncodedCorpus
    batch_tokens: int
    seed: int
    accumulate: int = 1
    rank: int = 0
    world_size: int = 1
    prefetch: int = 0

    def plan(self, epoch: int) -> EpochPlan:
        """The batches of one epoch; DataError when the files changed since they were opened."""
        self.corpus.check_unchanged()
        return plan_epoch(
            self.corpus.source_lengths,
            self.corpus.target_lengths,
            batch_tokens=self.batch_tokens,
            seed=self.seed,
            epoch=epoch,
        )

    def updates(self, start: StreamState = BEGINNING) -> Iterator[Update]:
        """Updates from `start` on, without end; close the iterator to stop its thread."""
        if self.prefetch == 0:
            return self._updates(start)
        batches_per_update = -(-self.accumulate // self.world_size)
        return ahead(self._updates(start), depth=-(-self.prefetch // batches_per_update))

    def batches(self, start: StreamState = BEGINNING) -> Iterator[StreamedBatch]:
        """The same batches one by one."""
        for update in self.updates(start):
            for number, batch in enumerate(update.batches):
                position = update.position + self.rank + number * self.world_size
                yield StreamedBatch(update.epoch, position, batch)

    def _updates(self, start: StreamState) -> Iterator[Update]:
        epoch, position = start
        while True:
            plan = self.plan(epoch)
            target_lengths = self.corpus.target_lengths
            while position < len(plan):
                mine = update_batches(plan, position, self.accumulate, self.rank, self.world_size)
                after = position + self.accumulate
                following = StreamState(epoch, after)
                if after >= len(plan):
                    following = StreamState(epoch + 1, 0)
                batches = [self.corpus.gather(indices) for indices in mine]
                everyone = plan[position:after]
                tokens = sum(int(target_lengths[indices].sum()) for indices in everyone)
                yield Update(epoch, position, batches, tokens, following)
                position = after
            epoch, position = epoch + 1, 0


def ahead(items: Iterator[Item], *, depth: int) -> Iterator[Item]:
    """The same items of an endless iterator, `depth` of them made in advance by one thread."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as thread:
        pending = deque(thread.submit(next, items) for _ in range(depth))
        try:
            while True:
                item = pending.popleft().result()  # raises here what was raised in the thread
                pending.append(thread.submit(next, items))
                yield item
        finally:
            thread.shutdown(cancel_futures=True)
