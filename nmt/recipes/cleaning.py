"""Cleaning of parallel corpora: text is normalised, pairs that are hardly translations left out."""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from nmt.data.encoding import Chunk, map_chunks
from nmt.data.text import (
    EMPTY,
    BadLine,
    LineWriter,
    Pair,
    ReadStatistics,
    Side,
    read_lines,
    read_pairs,
)
from nmt.errors import DataError
from nmt.progress import progress_bar
from nmt.recipes.duplicates import Hashes, HashSet, hash_pair

Script = Literal["any", "latin", "han"]

TOO_SHORT, TOO_LONG, RATIO = "too few words", "too many words", "lengths too different"
OTHER_SCRIPT, DUPLICATE = "in another script", "duplicate"
NO_SEPARATOR = "no separator"

HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]")
SPACES = re.compile("[ \t\u00a0\u3000]+")
HAN_PER_WORD = 1.6  # characters; a usual mean for segmented Chinese news

# Old Romanian text has letters with a cedilla where the language has a comma below.
ROMANIAN = str.maketrans("şţŞŢ", "șțȘȚ")


@dataclass(frozen=True)
class CleaningRules:
    """The rules of normalising text and leaving out pairs; lengths are in words, not subwords."""

    min_words: int = 1
    max_words: int = 250
    max_ratio: float = 9.0  # of the longer side to the shorter; 0: any
    duplicates: Literal["keep", "drop"] = "keep"
    source_script: Script = "any"  # han: some Chinese; latin: most letters are Latin
    target_script: Script = "any"
    remove_non_printing: bool = True
    normalize_punctuation: bool = False  # as the script of that name in Moses
    normalize_romanian: bool = False  # cedilla to comma below, on a side in that language


@dataclass(frozen=True)
class Part:
    """A corpus to clean: two files, or one whose lines hold both sides."""

    name: str
    source: Path
    target: Path | None = None  # None: both sides are in `source`
    separator: str = " ||| "
    first: Side = "source"  # which side stands before the separator


@dataclass
class CleaningReport:
    """How many pairs were read and kept, in all and of each part, and why others were not."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    parts: dict[str, dict[str, int]] = field(default_factory=dict)


class Cleaned(NamedTuple):
    """The pairs of a chunk that are left, with their hashes, and the reasons for the others."""

    source: list[str]
    target: list[str]
    hashes: Hashes
    dropped: Counter[str]

    @property
    def read(self) -> int:
        """The number of pairs of the chunk."""
        return len(self.source) + self.dropped.total()


def clean(
    parts: Sequence[Part],
    output: tuple[Path, Path],
    rules: CleaningRules,
    *,
    languages: tuple[str, str],
    workers: int,
) -> CleaningReport:
    """Write the pairs of all parts that are left to two files, with several processes.

    Memory is bounded by the chunks under way and, where duplicates are dropped, some 16 bytes
    per pair. The result does not depend on the number of processes.
    """
    report = CleaningReport()
    seen = HashSet() if rules.duplicates == "drop" else None
    with ExitStack() as stack:
        source, target = (stack.enter_context(LineWriter(path)) for path in output)
        bar = stack.enter_context(progress_bar(total=None, unit="pair", description="cleaning"))
        for part in parts:
            statistics = ReadStatistics()
            before = report.kept
            make = partial(make_cleaner, rules, languages)
            for chunk in map_chunks(make, _read(part, statistics), workers=workers):
                kept = seen.add(chunk.hashes) if seen is not None else np.ones(len(chunk.source))
                for left, right, keep in zip(chunk.source, chunk.target, kept, strict=True):
                    if keep:
                        source.write(left)
                        target.write(right)
                report.kept += int(kept.sum())
                report.dropped += chunk.dropped
                report.dropped[DUPLICATE] += len(kept) - int(kept.sum())
                bar.update(chunk.read)
            report.read += statistics.read
            report.dropped += statistics.skipped
            report.parts[part.name] = {"read": statistics.read, "kept": report.kept - before}
        if report.kept == 0:
            reasons = ", ".join(f"{count} x {why}" for why, count in report.dropped.items())
            raise DataError(f"{output[0]}: no pair is left after cleaning ({reasons})")
    report.dropped += Counter()  # without the zeros
    return report


def make_cleaner(rules: CleaningRules, languages: tuple[str, str]) -> Callable[[Chunk], Cleaned]:
    """A function that cleans a chunk."""
    normalize_source, normalize_target = (make_normalizer(rules, name) for name in languages)

    def clean_chunk(chunk: Chunk) -> Cleaned:
        source: list[str] = []
        target: list[str] = []
        dropped: Counter[str] = Counter()
        for left, right in chunk.pairs():
            left, right = normalize_source(left), normalize_target(right)
            reason = objection(rules, left, right)
            if reason is not None:
                dropped[reason] += 1
                continue
            source.append(left)
            target.append(right)
        hashes: list[int] = []
        if rules.duplicates == "drop":
            hashes = [hash_pair(*pair) for pair in zip(source, target, strict=True)]
        return Cleaned(source, target, np.array(hashes, dtype=np.uint64), dropped)

    return clean_chunk


def objection(rules: CleaningRules, source: str, target: str) -> str | None:
    """Why a pair is left out, None when it is kept."""
    left, right = count_words(source), count_words(target)
    shorter, longer = min(left, right), max(left, right)
    if shorter == 0:
        return EMPTY
    if shorter < rules.min_words:
        return TOO_SHORT
    if longer > rules.max_words:
        return TOO_LONG
    if rules.max_ratio and longer > rules.max_ratio * shorter:
        return RATIO
    if not in_script(source, rules.source_script) or not in_script(target, rules.target_script):
        return OTHER_SCRIPT
    return None


def count_words(text: str) -> float:
    """The number of space-separated words; Chinese is counted by its characters."""
    words = len(text.split(" ")) if text else 0
    if text.isascii() or not (han := len(HAN.findall(text))):
        return words
    others = HAN.sub(" ", text).split(" ")
    return han / HAN_PER_WORD + sum(1 for word in others if any(map(str.isalnum, word)))


def in_script(text: str, script: Script) -> bool:
    """Whether a line looks as if it were in a language of that script; one of digits always."""
    if script == "any":
        return True
    if script == "han":
        return HAN.search(text) is not None or not any(map(str.isalpha, text))
    if text.isascii():
        return True
    letters = [character for character in text if character.isalpha()]
    return 2 * sum(map(_is_latin, letters)) >= len(letters)


@functools.lru_cache(10_000)
def _is_latin(character: str) -> bool:
    return unicodedata.name(character, "").startswith(("LATIN", "FULLWIDTH LATIN", "FEMININE"))


def make_normalizer(rules: CleaningRules, language: str) -> Callable[[str], str]:
    """A function that normalises a line of a language as the rules say."""
    steps: list[Callable[[str], str]] = []
    if rules.remove_non_printing:
        steps.append(remove_non_printing)
    if rules.normalize_romanian and language == "ro":
        steps.append(lambda text: text.translate(ROMANIAN))
    if rules.normalize_punctuation:
        import sacremoses

        steps.append(sacremoses.MosesPunctNormalizer(lang=language).normalize)

    def normalize(text: str) -> str:
        for step in steps:
            text = step(text)
        # Tabs and the like would become words of their own further on.
        return SPACES.sub(" ", text).strip(" ")

    return normalize


def remove_non_printing(text: str) -> str:
    """The text with a space for each control, format, private or unassigned character."""
    if text.isprintable():
        return text
    return "".join(" " if unicodedata.category(c)[0] == "C" else c for c in text)


def _read(part: Part, statistics: ReadStatistics) -> Iterator[Pair]:
    if part.target is None:
        return _read_both(part, statistics)
    return read_pairs([part.source], [part.target], on_bad_line="skip", statistics=statistics)


def _read_both(part: Part, statistics: ReadStatistics) -> Iterator[Pair]:
    """The pairs of a file with both sides in each line."""
    for line in read_lines(part.source):
        statistics.read += 1
        if isinstance(line, BadLine):
            statistics.skipped[line.reason] += 1
            continue
        one, separator, other = line.partition(part.separator)
        if not separator:
            statistics.skipped[NO_SEPARATOR] += 1
        elif not one.strip() or not other.strip():
            statistics.skipped[EMPTY] += 1
        else:
            yield Pair(one, other) if part.first == "source" else Pair(other, one)
