"""How the batches of one update are divided among processes: an equal share of tokens for each."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# A cut moves to the nearest border between batches if that is at most this part of a share away. A
# forward pass over few rows costs far more than its tokens, so a small difference is left alone.
SHARE_TOLERANCE = 1 / 16


Rows = npt.NDArray[np.int64]


class Share(NamedTuple):
    """Rows `start` to `end` of one batch of an update."""

    batch: int
    start: int
    end: int


def divide(tokens: Sequence[Rows], *, rank: int, world_size: int) -> list[Share]:
    """The share of process `rank` in an update, in the order of batches and rows.

    `tokens` has the tokens of each row of each batch. Every row belongs to one process. No process
    is without a row unless there are fewer rows than processes.
    """
    sizes = [len(batch) for batch in tokens]
    borders = np.cumsum([0, *sizes])  # [batches + 1] the first row of each batch, and the end
    before = np.cumsum(np.concatenate([[0], *tokens]))  # [rows + 1] tokens before each row
    start, end = cut_rows(before, borders, world_size)[rank : rank + 2].tolist()
    return [
        Share(batch, max(start - first, 0), min(end - first, size))
        for batch, (first, size) in enumerate(zip(borders.tolist()[:-1], sizes, strict=True))
        if max(start, first) < min(end, first + size)
    ]


def cut_rows(before: Rows, borders: Rows, world_size: int) -> Rows:
    """[world_size + 1] the row at which the share of each process begins, and the end."""
    rows = len(before) - 1
    share = before[-1] / world_size
    numbers = np.arange(world_size + 1)
    wanted = numbers * share
    cuts = nearest(before, wanted)
    close = borders[nearest(before[borders], wanted)]
    cuts = np.where(np.abs(before[close] - wanted) <= SHARE_TOLERANCE * share, close, cuts)
    if rows < world_size:
        return cuts
    cuts = np.maximum.accumulate(cuts - numbers) + numbers  # at least one row for each process
    return np.minimum(cuts, rows - (world_size - numbers))


def nearest(values: Rows, wanted: npt.NDArray[np.float64]) -> Rows:
    """For each of `wanted` the index of the element of ascending `values` that is closest to it."""
    right: Rows = np.searchsorted(values, wanted).clip(1, len(values) - 1)
    left = right - 1
    return np.where(wanted - values[left] <= values[right] - wanted, left, right)
