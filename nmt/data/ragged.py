"""Lists of integers of different lengths, in a row in one array."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """List i is values[offsets[i]:offsets[i + 1]]."""

    values: Integers
    offsets: Integers

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Integers:
        """The length of each list."""
        return np.diff(self.offsets)

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> "Ragged":
        """The given lists."""
        offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        return cls(np.array([value for row in lists for value in row], dtype=np.int64), offsets)

    def take(self, indices: Integers) -> "Ragged":
        """The lists at these indices."""
        starts = self.offsets[indices]
        lengths = self.offsets[indices + 1] - starts
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        positions = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Ragged(self.values[positions], offsets)

    def rows(self, start: int, end: int) -> "Ragged":
        """The lists from `start` to `end`."""
        offsets = self.offsets[start : end + 1]
        return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    def padded(self, padding: int) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """The lists as rows that are padded at the end [B, L], and the mask of values [B, L]."""
        lengths = self.lengths
        visible = np.arange(int(lengths.max(initial=0))) < lengths[:, None]
        ids = np.full(visible.shape, padding, dtype=np.int64)
        ids[visible] = self.values
        return ids, visible
