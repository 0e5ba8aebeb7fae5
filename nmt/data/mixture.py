"""Several corpora in one training: which pairs each epoch has, by weights and windows of updates.

The pairs of all corpora lie in a row. An epoch has as many pairs as the corpora in use have
together, and a corpus has its share of them by its weight. A corpus is gone through again and
again, each time in another order: the pairs of epoch e are those from e times its share to e + 1
times its share. All of this is a function of (seed, epoch) and of the set of corpora in use.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

import numpy as np

from nmt.config.config import TrainingCorpus
from nmt.data.permutation import Positions, random_order
from nmt.errors import ConfigError, DataError

PASS_ORDER = 1  # tells the seeds of these orders from those of epochs


@dataclass(frozen=True)
class MixturePart:
    """The pairs of one corpus: their place among all, their weight and their window of updates."""

    name: str
    index: int
    first: int  # position of its first pair
    pairs: int
    weight: Fraction
    after: int  # updates before it is used
    until: int | None  # its last update


@dataclass(frozen=True)
class Mixture:
    """The corpora of a training."""

    parts: tuple[MixturePart, ...]

    @classmethod
    def of(cls, corpora: Sequence[TrainingCorpus], sizes: Sequence[int]) -> "Mixture":
        """The mixture that a config describes, for corpora with these numbers of pairs."""
        assert len(corpora) == len(sizes)
        mixture = cls(
            tuple(
                MixturePart(
                    name=corpus.name or "train",
                    index=index,
                    first=first,
                    pairs=size,
                    weight=Fraction(str(size if corpus.weight is None else corpus.weight)),
                    after=corpus.from_update or 0,
                    until=corpus.until_update,
                )
                for index, (corpus, size, first) in enumerate(
                    zip(corpora, sizes, accumulate(sizes, initial=0), strict=False)
                )
            )
        )
        for start in mixture.starts():
            mixture.check_shares(start)
        return mixture

    def active(self, done: int) -> list[MixturePart]:
        """The corpora in use after a number of updates."""
        return [
            part
            for part in self.parts
            if part.after <= done and (part.until is None or done < part.until)
        ]

    def border_after(self, done: int) -> int | None:
        """The number of updates at which the set of corpora changes next, or None."""
        borders = {part.after for part in self.parts}
        borders |= {part.until for part in self.parts if part.until is not None}
        return min((border for border in borders if border > done), default=None)

    def starts(self) -> list[int]:
        """The numbers of updates from which on a set of corpora is used, in order."""
        starts: list[int] = []
        border: int | None = 0
        while border is not None:
            if self.active(border):
                starts.append(border)
            border = self.border_after(border)
        return starts

    def share(self, part: MixturePart, *, done: int) -> Fraction:
        """The share of a corpus in the pairs that are drawn."""
        return part.weight / sum(other.weight for other in self.active(done))

    def pairs_per_epoch(self, *, done: int) -> int:
        """The number of pairs of an epoch."""
        return sum(part.pairs for part in self.active(done))

    def check_shares(self, done: int) -> None:
        """Raise ConfigError for a corpus of which an epoch would have no pair."""
        pairs = self.pairs_per_epoch(done=done)
        for part in self.active(done):
            if self.share(part, done=done) * pairs < 1:
                raise ConfigError(
                    f"data.train: {part.name}: its weight is so small that an epoch of {pairs:,} "
                    "pairs has none of its pairs; raise it, or leave the corpus out"
                )

    def pairs_of_epoch(self, epoch: int, *, done: int, seed: int) -> Positions | None:
        """The pairs of an epoch, some perhaps several times; None for each pair of all corpora."""
        active = self.active(done)
        if not active:
            raise DataError(f"data.train: no corpus is used after update {done}")
        total = self.pairs_per_epoch(done=done)
        drawn = {part: self.share(part, done=done) * total for part in active}
        if active == list(self.parts) and all(drawn[part] == part.pairs for part in active):
            return None
        return np.concatenate(
            [
                endless(part, int(epoch * count), int((epoch + 1) * count), seed=seed)
                for part, count in drawn.items()
            ]
        )


def describe_mixture(mixture: Mixture) -> list[str]:
    """A line on each corpus of several: its pairs, and its share of those drawn in each window."""
    if len(mixture.parts) == 1:
        return []
    lines = []
    for part in mixture.parts:
        shares = [
            f"{float(mixture.share(part, done=start)):.1%} of the pairs drawn from update "
            f"{start + 1:,}"
            for start in mixture.starts()
            if part in mixture.active(start)
        ]
        until = "" if part.until is None else f" to update {part.until:,}"
        lines.append(f"{part.name}: {part.pairs:,} pairs; {', '.join(shares)}{until}")
    return lines


def endless(part: MixturePart, start: int, end: int, *, seed: int) -> Positions:
    """The pairs from `start` to `end` of a corpus that is gone through again and again."""
    pieces: list[Positions] = []
    while start < end:
        number, offset = divmod(start, part.pairs)
        count = min(part.pairs - offset, end - start)
        if count == part.pairs:  # all of it: the epoch shuffles its pairs anyway
            order = np.arange(part.pairs, dtype=np.uint32)
        else:
            words = [seed, number, part.index, PASS_ORDER]
            random = np.random.Philox(np.random.SeedSequence(words))
            order = random_order(random, part.pairs)[offset : offset + count]
        pieces.append(order + np.uint32(part.first))
        start += count
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.uint32)
