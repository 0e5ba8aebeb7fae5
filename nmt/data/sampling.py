"""Subword sampling of training batches: a function of (seed, update, batch, row)."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from nmt.config.config import SubwordConfig
from nmt.data.codec import Codec
from nmt.data.pair_table import FACTORS, mix
from nmt.data.ragged import Integers, Ragged
from nmt.data.resegmentation import Resegmenter, make_resegmenter
from nmt.data.text import SIDES, Side

# A forward pass over a batch has at most this many times train.batch_tokens; a batch that sampling
# made larger is divided. The usual dropout of 0.1 makes sentences longer by a quarter.
MOST_GROWTH = 1.5


@dataclass(frozen=True)
class SubwordSampling:
    """How the sentences of training are segmented anew in each update."""

    resegmenters: dict[Side, Resegmenter]  # of the sides with sampling
    seed: int
    longest: int  # ids with EOS; a sentence that would be longer keeps its segmentation

    @classmethod
    def of(
        cls, subword: SubwordConfig, codec: Codec, *, seed: int, max_length: int
    ) -> "SubwordSampling | None":
        """The sampling that the config asks for, or None."""
        sides = {"source": codec.source, "target": codec.target}
        resegmenters = {
            side: make_resegmenter(sides[side], strength, unigram=subword.model == "unigram")
            for side in SIDES
            if (strength := getattr(subword.dropout, side))
        }
        return cls(resegmenters, seed, max_length + 1) if resegmenters else None

    def sample(self, side: Side, tokens: Ragged, *, update: int, batch: int, row: int) -> Ragged:
        """The ids of rows of a batch, the first of which is `row`, as segmented in an update."""
        if side not in self.resegmenters:
            return tokens
        place = np.random.SeedSequence([self.seed, update, batch, SIDES.index(side)])
        key = place.generate_state(1, np.uint64)[0]
        rows = np.arange(row, row + len(tokens), dtype=np.uint64)
        sampled = self.resegmenters[side].sample(tokens, mix(key + rows * FACTORS[1]))
        long = sampled.lengths > self.longest
        return replace_rows(sampled, tokens, long.nonzero()[0]) if long.any() else sampled


def replace_rows(rows: Ragged, others: Ragged, indices: Integers) -> Ragged:
    """The lists of `rows`, with those of `others` at some indices."""
    both = Ragged(
        np.concatenate([rows.values, others.values]),
        np.concatenate([rows.offsets, others.offsets[1:] + rows.offsets[-1]]),
    )
    taken = np.arange(len(rows))
    taken[indices] += len(rows)
    return both.take(taken)


def even_cuts(lengths: Integers, *, most: float) -> list[int]:
    """The bounds of as few even parts as possible that have at most `most` positions with padding.

    `lengths` are those of the longer side of each row. A row that is longer is a part of its own.
    """
    count = len(lengths)
    for parts in range(1, count + 1):
        bounds = [count * part // parts for part in range(parts + 1)]
        sizes = [(end - start) * int(lengths[start:end].max()) for start, end in pairwise(bounds)]
        if max(sizes) <= most:
            return bounds
    return list(range(count + 1))
