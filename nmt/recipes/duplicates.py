"""A set of hashes that takes 8 to 32 bytes for each, for corpora of tens of millions of pairs."""

import hashlib

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
SMALLEST = 1 << 16
NEXT_SLOT = np.uint64(1)


def hash_pair(source: str, target: str) -> int:
    """64 bits for a pair: among 36 million the odds of one wrong match are 1 in 30,000."""
    digest = hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1  # 0 marks an empty place


class HashSet:
    """A table with open addressing that is filled at most half."""

    def __init__(self) -> None:
        self._table: Hashes = np.zeros(SMALLEST, dtype=np.uint64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Add hashes; returns for each whether it is new. Only the first of equal ones is."""
        while 2 * (self._count + len(hashes)) > len(self._table):
            self._grow()
        unique, first = np.unique(hashes, return_index=True)
        new = self._insert(unique)
        self._count += int(new.sum())
        result = np.zeros(len(hashes), dtype=np.bool_)
        result[first[new]] = True
        return result

    def _insert(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Put different hashes into the table; says which were not there yet."""
        table, mask = self._table, np.uint64(len(self._table) - 1)
        new = np.zeros(len(hashes), dtype=np.bool_)
        waiting = np.arange(len(hashes))
        places = hashes & mask
        while len(waiting):
            empty = table[places] == 0
            # Of several that want one empty place the last written has it; the others go on.
            table[places[empty]] = hashes[waiting[empty]]
            mine = table[places] == hashes[waiting]
            new[waiting[empty & mine]] = True
            waiting, places = waiting[~mine], (places[~mine] + NEXT_SLOT) & mask
        return new

    def _grow(self) -> None:
        old = self._table
        self._table = np.zeros(2 * len(old), dtype=np.uint64)
        size = 1 << 20  # in pieces, so that the workings take little memory beside the table
        for start in range(0, len(old), size):
            piece = old[start : start + size]
            self._insert(piece[piece != 0])
