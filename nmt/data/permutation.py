"""Random orders of many items, in little memory, the same for every version of numpy."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.uint32]  # half the memory of int64, for arrays as long as the corpus

POSITION_BITS = 31


def random_order(random: np.random.Philox, count: int) -> Positions:
    """[count] a random permutation of the integers below `count`, which is at most 2**31."""
    keys = np.asarray(random.random_raw(count), dtype=np.uint64)
    keys >>= np.uint64(POSITION_BITS)
    return sorted_positions(keys)


def sorted_positions(keys: npt.NDArray[np.uint64]) -> Positions:
    """The stable order of keys below 2**33, overwriting them.

    The position goes into the low bits of each key, and the keys are sorted in place. This is
    faster than argsort and takes half the memory.
    """
    keys <<= np.uint64(POSITION_BITS)
    for part in parts(len(keys)):
        keys[part] |= np.arange(part.start, part.stop, dtype=np.uint64)
    keys.sort()
    keys &= np.uint64((1 << POSITION_BITS) - 1)
    return keys.astype(np.uint32)


def parts(count: int) -> Iterator[slice]:
    """Slices of at most 2**20 elements that cover `count`, to keep intermediate arrays small."""
    for start in range(0, count, 1 << 20):
        yield slice(start, min(start + (1 << 20), count))
