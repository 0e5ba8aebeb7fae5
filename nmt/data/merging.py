"""BPE-dropout (Provilkov et al., 2020): the characters of many words merged at once.

N characters of all words in a row. A symbol is a character or what merges make of several.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nmt.data.pair_table import ABSENT, Bits, PairTable, mix
from nmt.data.ragged import Integers

STEP_FACTOR = 0xD6E8FEB86659FD93  # between the random bits of two steps


@dataclass(frozen=True)
class Merger:
    """The merges of BPE, of which each may be left out at random."""

    pairs: PairTable  # in the order of their rank
    merged: Integers  # the symbol that each merge makes

    def segment(
        self, characters: Integers, last: npt.NDArray[np.bool_], random: Bits, *, strength: float
    ) -> Integers:
        """[N] the symbol that begins at each character, or -1 where none begins.

        `last` marks the last character of each word, and `random` has bits for each character. In
        each step and word, each possible merge is left out with the probability `strength`. Of
        the others, the one of the lowest rank is made, wherever it was not left out. A word is
        complete when no merge is left.
        """
        state = Merging(self.pairs, characters, last)
        threshold = np.uint64(int(strength * 2**64))
        step = 0
        candidates = np.flatnonzero(state.open)
        while len(candidates):
            step = (step + STEP_FACTOR) % 2**64
            kept = candidates[mix(random[candidates] + np.uint64(step)) >= threshold]
            chosen = lowest(kept, state.rank[kept], state.word[kept])
            chosen = disjoint(chosen, state.following[chosen])
            state.close_other_words(candidates, chosen)
            state.replace(chosen, self.merged[state.rank[chosen]])
            candidates = np.flatnonzero(state.open)
        return state.symbols[:-1]


class Merging:
    """Words in the course of merging: a linked list of symbols, and the rank of each pair.

    Every array has an entry for each character and one more, which stands for the end.
    """

    def __init__(self, pairs: PairTable, characters: Integers, last: npt.NDArray[np.bool_]) -> None:
        count = len(characters)
        self.pairs = pairs
        self.symbols = np.append(characters, -1)
        self.word = np.concatenate([[0], np.cumsum(last)])
        self.following = np.arange(1, count + 2).clip(max=count)
        self.before = np.arange(-1, count)
        self.rank = np.full(count + 1, ABSENT)  # of a symbol and the one that follows
        self.open = np.zeros(count + 1, dtype=np.bool_)  # whether they can be merged
        self._active = np.zeros(int(self.word[-1]) + 1, dtype=np.bool_)
        self._find_ranks(np.flatnonzero(~last))

    def _find_ranks(self, positions: Integers) -> None:
        following = self.following[positions]
        ranks = self.pairs.find(self.symbols[positions], self.symbols[following])
        ranks[self.word[positions] != self.word[following]] = ABSENT
        self.rank[positions] = ranks
        self.open[positions] = ranks != ABSENT

    def close_other_words(self, candidates: Integers, chosen: Integers) -> None:
        """Complete the words with candidates of which none was chosen."""
        self._active[self.word[chosen]] = True
        self.open[candidates[~self._active[self.word[candidates]]]] = False
        self._active[self.word[chosen]] = False

    def replace(self, positions: Integers, symbols: Integers) -> None:
        """Put a symbol in the place of each pair at `positions`."""
        second = self.following[positions]
        after = self.following[second]
        self.symbols[positions] = symbols
        self.symbols[second] = -1
        self.open[second] = False
        self.following[positions] = after
        self.before[after] = positions
        self._find_ranks(np.concatenate([positions, self.before[positions]]))


def lowest(positions: Integers, ranks: Integers, words: Integers) -> Integers:
    """The positions of the lowest rank of each word; the words ascend."""
    if not len(positions):
        return positions
    starts = np.flatnonzero(np.concatenate([[True], words[1:] != words[:-1]]))
    best = np.minimum.reduceat(ranks, starts)
    is_best = ranks == np.repeat(best, np.diff(np.append(starts, len(words))))
    found: Integers = positions[is_best]
    return found


def disjoint(positions: Integers, following: Integers) -> Integers:
    """The merges to make, from left to right, where neighbours may share a symbol."""
    touching = following[:-1] == positions[1:]
    if not touching.any():
        return positions
    index = np.arange(len(positions))
    run = np.maximum.accumulate(np.where(np.concatenate([[True], ~touching]), index, 0))
    made: Integers = positions[(index - run) % 2 == 0]
    return made
