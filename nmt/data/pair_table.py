"""Looking up many pairs of integers at once, and random bits for many numbers at once."""

import numpy as np
import numpy.typing as npt

from nmt.data.ragged import Integers

Bits = npt.NDArray[np.uint64]

ABSENT = np.iinfo(np.int64).max
FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F], dtype=np.uint64)  # of two hashes


def mix(words: Bits) -> Bits:
    """Random bits for each of many different numbers: the last step of splitmix64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


class PairTable:
    """The numbers of pairs (left, right) of integers below 2**31; pair i has the number i.

    Pairs that share a slot of the first hash table are in the second one. The tables grow until no
    two pairs share a slot there.
    """

    def __init__(self, left: Integers, right: Integers) -> None:
        self._pairs = pack(left, right)
        bits = max(8, (8 * len(left)).bit_length())
        while not self._build(bits):
            bits += 1

    def _build(self, bits: int) -> bool:
        self._shift = np.uint64(64 - bits)
        numbers = np.arange(len(self._pairs))
        self._tables = []
        for factor in FACTORS:
            table = np.full(1 << bits, -1, dtype=np.int32)
            slots = self._slots(self._pairs[numbers], factor)
            table[slots] = numbers
            self._tables.append(table)
            numbers = numbers[table[slots] != numbers]
        return len(numbers) == 0

    def _slots(self, pairs: Bits, factor: np.uint64) -> Integers:
        return ((pairs * factor) >> self._shift).view(np.int64)

    def find(self, left: Integers, right: Integers) -> Integers:
        """The number of each pair, or ABSENT."""
        pairs = pack(left, right)
        found = np.full(len(pairs), ABSENT)
        for table, factor in zip(self._tables, FACTORS, strict=True):
            numbers = table[self._slots(pairs, factor)]
            hits = np.flatnonzero(numbers >= 0)
            hits = hits[self._pairs[numbers[hits]] == pairs[hits]]
            found[hits] = numbers[hits]
        return found


def pack(left: Integers, right: Integers) -> Bits:
    """Both integers of each pair in one."""
    return (left.view(np.uint64) << np.uint64(32)) | right.view(np.uint64)
