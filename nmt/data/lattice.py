"""Subword regularization (Kudo, 2018): segmentations drawn from a unigram model, of many words.

N characters of all words in a row. An edge is a piece that the characters of a word can spell; a
path of edges from the beginning of a word to its end is a segmentation. Its probability is the
product of those of its pieces to the power alpha, divided by the sum over all paths.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nmt.data.pair_table import ABSENT, Bits, PairTable, mix
from nmt.data.ragged import Integers

Floats = npt.NDArray[np.float64]

LOG_ZERO = -1e300  # stands for the logarithm of 0 where a difference is taken


class Edges(NamedTuple):
    """Pieces that characters spell, in the order of their ends."""

    starts: Integers
    ends: Integers  # the character after the last
    pieces: Integers
    scores: Floats  # alpha times the log-probability


@dataclass(frozen=True)
class Lattice:
    """The pieces of a unigram model as a trie; node 0 is the root."""

    children: PairTable  # child i + 1 for the pair i of a node and a character
    pieces: Integers  # the symbol of each node, or -1
    scores: Floats  # the log-probability of each node's piece

    def segment(
        self, characters: Integers, last: npt.NDArray[np.bool_], random: Bits, *, strength: float
    ) -> Integers:
        """[N] the symbol that begins at each character, or -1 where none begins.

        `last` marks the last character of each word, and `random` has bits for each character.
        `strength` is alpha. At least one path of pieces spells each word.
        """
        first = np.concatenate([[True], last[:-1]])
        edges = self.edges(characters, last, alpha=strength)
        shares = shares_of_ends(edges, first)
        begun = np.full(len(characters), -1)
        bounds = np.searchsorted(edges.ends, np.arange(1, len(characters) + 2))
        before = np.concatenate([[0.0], np.cumsum(shares)])
        at = np.flatnonzero(last)  # from the end of each word to its beginning
        while len(at):
            low, high = before[bounds[at]], before[bounds[at + 1]]
            uniform = (mix(random[at]) >> np.uint64(11)) * 2.0**-53
            wanted = np.minimum(low + uniform * (high - low), np.nextafter(high, low))
            chosen = np.searchsorted(before, wanted, side="right") - 1
            starts = edges.starts[chosen]
            begun[starts] = edges.pieces[chosen]
            at = starts[~first[starts]] - 1
        return begun

    def edges(self, characters: Integers, last: npt.NDArray[np.bool_], *, alpha: float) -> Edges:
        """All pieces that the characters of words spell."""
        starts = np.arange(len(characters))
        ends, nodes = starts, np.zeros_like(starts)
        found: list[tuple[Integers, Integers, Integers]] = []
        while len(starts):
            nodes = self.children.find(nodes, characters[ends])
            known = nodes != ABSENT
            starts, ends, nodes = starts[known], ends[known] + 1, nodes[known] + 1
            whole = self.pieces[nodes] >= 0
            found.append((starts[whole], ends[whole], nodes[whole]))
            inside = ~last[ends - 1]
            starts, ends, nodes = starts[inside], ends[inside], nodes[inside]
        starts, ends, nodes = (np.concatenate(parts) for parts in zip(*found, strict=True))
        order = np.argsort(ends, kind="stable")
        nodes = nodes[order]
        scores = alpha * self.scores[nodes]
        return Edges(starts[order], ends[order], self.pieces[nodes], scores)


def shares_of_ends(edges: Edges, first: npt.NDArray[np.bool_]) -> Floats:
    """The share of each edge in the weight of all paths to its end, from the beginning of a word.

    `first` marks the first character of each word.
    """
    positions = np.arange(len(first))
    word_start = np.maximum.accumulate(np.where(first, positions, 0))
    level = edges.ends - word_start[edges.starts]
    order = np.argsort(level, kind="stable")
    bounds = np.cumsum(np.bincount(level))
    totals = np.full(len(first), -np.inf)  # log-weight of all paths that end with a character
    weights = np.empty(len(level))  # log-weight of all paths that end with an edge
    with np.errstate(divide="ignore"):  # the logarithm of 0 where no path ends
        for start, end in pairwise(bounds):
            own = order[start:end]
            starts, ends = edges.starts[own], edges.ends[own]
            weights[own] = edges.scores[own] + np.where(first[starts], 0.0, totals[starts - 1])
            groups = np.flatnonzero(np.concatenate([[True], ends[1:] != ends[:-1]]))
            highest = np.maximum.reduceat(weights[own], groups).clip(min=LOG_ZERO)
            sizes = np.diff(np.append(groups, len(ends)))
            sums = np.add.reduceat(np.exp(weights[own] - np.repeat(highest, sizes)), groups)
            totals[ends[groups] - 1] = highest + np.log(sums)
    shares: Floats = np.exp(weights - totals[edges.ends - 1].clip(min=LOG_ZERO))
    return shares
