"""Word alignments made by people, and how far others are from them.

Sure links S are those on which the annotators agree, possible links P contain them. For links A,
precision = |A & P| / |A|, recall = |A & S| / |S| and the alignment error rate (Och and Ney, 2000)
AER = 1 - (|A & S| + |A & P|) / (|A| + |S|), over all sentences together. What would be 0 / 0 counts
as 0, and so the AER of nothing where nothing is sure.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nmt.analysis.symmetrization import Link
from nmt.data.text import read_text
from nmt.errors import DataError

Order = Literal["source-target", "target-source"]
LINK = re.compile(r"([0-9]{1,6})([-p])([0-9]{1,6})")


@dataclass(frozen=True)
class GoldLinks:
    """The links of one sentence pair, (source word, target word) from 0; possible holds sure."""

    sure: frozenset[Link]
    possible: frozenset[Link]

    def swapped(self) -> "GoldLinks":
        """The same seen from the other language."""
        sure, possible = (
            frozenset((target, source) for source, target in links)
            for links in (self.sure, self.possible)
        )
        return GoldLinks(sure, possible)


@dataclass(frozen=True)
class AlignmentCounts:
    """What precision, recall and AER are made of; counts of sentences add up."""

    links: int = 0
    in_sure: int = 0
    in_possible: int = 0
    sure: int = 0

    @property
    def precision(self) -> float:
        """Share of the links that are possible."""
        return self.in_possible / self.links if self.links else 0.0

    @property
    def recall(self) -> float:
        """Share of the sure links that were found."""
        return self.in_sure / self.sure if self.sure else 0.0

    @property
    def error_rate(self) -> float:
        """AER, 0 to 1."""
        total = self.links + self.sure
        return 1.0 - (self.in_sure + self.in_possible) / total if total else 0.0

    def __add__(self, other: "AlignmentCounts") -> "AlignmentCounts":
        return AlignmentCounts(
            self.links + other.links,
            self.in_sure + other.in_sure,
            self.in_possible + other.in_possible,
            self.sure + other.sure,
        )


def compare(links: Iterable[Link], gold: GoldLinks) -> AlignmentCounts:
    """The counts of one sentence pair."""
    found = set(links)
    return AlignmentCounts(
        links=len(found),
        in_sure=len(found & gold.sure),
        in_possible=len(found & gold.possible),
        sure=len(gold.sure),
    )


def read_gold(
    path: Path, possible: Path | None = None, *, order: Order = "source-target", first: int = 0
) -> Iterator[GoldLinks]:
    """The links of a file in the Pharaoh form, a line for each pair.

    `i-j` is sure and `ipj` possible; all links of a second file `possible` are possible. Words are
    counted from `first`; `order` says which side comes first.
    """
    sure_lines = list(_read_links(path, order=order, first=first))
    more_lines = None
    if possible is not None:
        more_lines = list(_read_links(possible, order=order, first=first))
        if len(more_lines) != len(sure_lines):
            raise DataError(
                f"{path} has {len(sure_lines)} lines but {possible} has {len(more_lines)}: "
                "line n of both must belong to pair n"
            )
    for index, links in enumerate(sure_lines):
        sure = frozenset(link for link, kind in links if kind == "-")
        everything = {link for link, _ in links}
        if more_lines is not None:
            everything |= {link for link, _ in more_lines[index]}
        yield GoldLinks(sure, frozenset(everything))


def _read_links(path: Path, *, order: Order, first: int) -> Iterator[list[tuple[Link, str]]]:
    """The links of each line, (source, target) from 0, with `-` or `p`."""
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


def check_gold(
    gold: GoldLinks, *, num_source: int, num_target: int, path: Path, line: int, first: int
) -> None:
    """Complain of links to words that a pair does not have: gold of other text, or misread."""
    for source, target in sorted(gold.possible):
        if source < num_source and target < num_target:
            continue
        advice = "" if first else "--gold-index 1 if words are counted from 1, "
        raise DataError(
            f"{path}:{line}: a link joins source word {source + first} and target word "
            f"{target + first}, but the pair has {num_source} and {num_target} words; give "
            f"{advice}--gold-order for the order of the sides, or the text that was annotated"
        )
