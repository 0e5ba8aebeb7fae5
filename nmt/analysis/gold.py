"""Gold word alignments, and the alignment error rate against them.

The possible links P of a pair contain its sure links S. For links A, precision = |A & P| / |A|,
recall = |A & S| / |S| and the alignment error rate (Och and Ney, 2000)
AER = 1 - (|A & S| + |A & P|) / (|A| + |S|), summed over all sentences. 0 / 0 counts as 0.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nmt.data.text import read_text
from nmt.decoding.alignment import WordLink
from nmt.errors import DataError

Order = Literal["source-target", "target-source"]
LINK = re.compile(r"([0-9]{1,6})([-p])([0-9]{1,6})")


@dataclass(frozen=True)
class GoldLinks:
    """The links (source word, target word), from 0, of one pair; `possible` contains `sure`."""

    sure: frozenset[WordLink]
    possible: frozenset[WordLink]

    def swapped(self) -> "GoldLinks":
        """The same links as (target word, source word)."""
        sure, possible = (
            frozenset((target, source) for source, target in links)
            for links in (self.sure, self.possible)
        )
        return GoldLinks(sure, possible)


@dataclass(frozen=True)
class AlignmentCounts:
    """The counts behind precision, recall and AER; those of several sentences can be added."""

    links: int = 0
    in_sure: int = 0
    in_possible: int = 0
    sure: int = 0

    @property
    def precision(self) -> float:
        """The share of the links that are possible."""
        return self.in_possible / self.links if self.links else 0.0

    @property
    def recall(self) -> float:
        """The share of the sure links that were found."""
        return self.in_sure / self.sure if self.sure else 0.0

    @property
    def error_rate(self) -> float:
        """The AER, from 0 to 1."""
        total = self.links + self.sure
        return 1.0 - (self.in_sure + self.in_possible) / total if total else 0.0

    def __add__(self, other: "AlignmentCounts") -> "AlignmentCounts":
        return AlignmentCounts(
            self.links + other.links,
            self.in_sure + other.in_sure,
            self.in_possible + other.in_possible,
            self.sure + other.sure,
        )


def count_links(links: Iterable[WordLink], gold: GoldLinks) -> AlignmentCounts:
    """The counts of one sentence pair."""
    found = set(links)
    return AlignmentCounts(
        links=len(found),
        in_sure=len(found & gold.sure),
        in_possible=len(found & gold.possible),
        sure=len(gold.sure),
    )


@dataclass(frozen=True)
class Gold:
    """The gold links of all pairs; heads are chosen on the first `development` pairs."""

    links: Sequence[GoldLinks]
    path: Path
    first: int = 0  # the index of the first word in the file, for messages
    development: int = 0

    def check(self, index: int, *, num_source: int, num_target: int) -> None:
        """Reject links to words that pair `index` does not have."""
        for source, target in sorted(self.links[index].possible):
            if source < num_source and target < num_target:
                continue
            advice = "" if self.first else "--gold-index 1 if words are counted from 1, "
            raise DataError(
                f"{self.path}:{index + 1}: a link joins source word {source + self.first} and "
                f"target word {target + self.first}, but the pair has {num_source} and "
                f"{num_target} words; give {advice}--gold-order for the order of the sides, or "
                "the text that was annotated"
            )


def read_gold(
    path: Path, possible: Path | None = None, *, order: Order = "source-target", first: int = 0
) -> list[GoldLinks]:
    """The links of a file in the Pharaoh format, with one line per pair.

    `i-j` is sure and `ipj` is possible; all links of a second file `possible` are possible. Words
    are counted from `first`; `order` says which side comes first.
    """
    sure_lines = list(_read_links(path, order=order, first=first))
    more_lines: list[list[tuple[WordLink, str]]] = [[] for _ in sure_lines]
    if possible is not None:
        more_lines = list(_read_links(possible, order=order, first=first))
        if len(more_lines) != len(sure_lines):
            raise DataError(
                f"{path} has {len(sure_lines)} lines but {possible} has {len(more_lines)}: "
                "line n of both must belong to pair n"
            )
    return [
        GoldLinks(
            sure=frozenset(link for link, kind in links if kind == "-"),
            possible=frozenset(link for link, _ in (*links, *more)),
        )
        for links, more in zip(sure_lines, more_lines, strict=True)
    ]


def _read_links(path: Path, *, order: Order, first: int) -> Iterator[list[tuple[WordLink, str]]]:
    """The links (source, target), from 0, of each line, with `-` or `p`."""
    for number, line in enumerate(read_text(path), start=1):
        links = []
        for text in line.replace("\t", " ").split(" "):
            if not text:
                continue
            match = LINK.fullmatch(text)
            if match is None:
                raise DataError(
                    f"{path}:{number}: expected links like `3-4` (sure) or `3p4` (possible), "
                    f"got {text[:40]!r}"
                )
            left, right = int(match[1]) - first, int(match[3]) - first
            if min(left, right) < 0:
                raise DataError(
                    f"{path}:{number}: {text} has a word below {first}; give --gold-index 0 if "
                    "words are counted from 0"
                )
            link = (left, right) if order == "source-target" else (right, left)
            links.append((link, match[2]))
        yield links
