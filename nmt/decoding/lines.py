"""A stream of lines through an engine into files: what the command does with its input."""

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from nmt.data.text import LineWriter
from nmt.decoding.attention_file import attention_writer
from nmt.decoding.scorer import PairScore
from nmt.decoding.streaming import in_order, windows
from nmt.decoding.translation import Line, Options, Translation
from nmt.errors import DataError

logger = logging.getLogger(__name__)


class Engine(Protocol):
    """A `Translator` or a `WorkerPool`."""

    def translate_lines(
        self, lines: Sequence[Line], options: Options
    ) -> Iterator[tuple[int, Translation]]:
        """The position of each line and its translation, in any order."""


class Scorer(Protocol):
    """A `Translator`."""

    def score_pairs(
        self, sources: Sequence[str], targets: Sequence[str], *, batch_tokens: int | None = None
    ) -> list[PairScore]:
        """The scores of pairs of lines."""


class Outputs:
    """The files of translations: text, alignments, attention; use as a context."""

    def __init__(
        self,
        text: Path | None,
        *,
        alignments: Path | None = None,
        attention: Path | None = None,
        scores: bool = False,
    ) -> None:
        self.text = LineWriter(text)
        self.alignments = None if alignments is None else LineWriter(alignments)
        self.attention = None if attention is None else attention_writer(attention)
        self.scores = scores
        self.num_written = 0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for writer in (self.text, self.alignments, self.attention):
                if writer is not None:
                    stack.enter_context(writer)
            self.stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stack.__exit__(kind, error, traceback)

    def write(self, number: int, translation: Translation, *, nbest: bool) -> None:
        """Write the translation of input line `number` (from 0)."""
        for one in translation.nbest or (translation,):
            self.num_written += 1
            if self.alignments is not None:
                links = one.alignment or ()
                self.alignments.write(" ".join(f"{source}-{target}" for source, target in links))
            if self.attention is not None and one.attention is not None:
                self.attention.write(self.num_written, one.attention)
            self.text.write(self._format(number, one, nbest=nbest))

    def _format(self, number: int, translation: Translation, *, nbest: bool) -> str:
        log_probability = f"{translation.log_probability:.6f}"
        if nbest:
            return (
                f"{number} ||| {translation.text} ||| log_probability= {log_probability} ||| "
                f"{translation.score:.6f}"
            )
        return f"{log_probability}\t{translation.text}" if self.scores else translation.text


def translate_stream(
    engine: Engine,
    options: Options,
    outputs: Outputs,
    *,
    lines: Iterator[str],
    ready: Callable[[], bool],
    name: str,
    prefixes: Iterable[str] | None = None,
    buffer: int | None = None,
    advance: Callable[[int], object] = bool,
) -> list[int]:
    """Translate and write all lines in order; returns the numbers (from 1) of those that failed.

    `name` is what warnings call the input; `advance` is told of every line that is done.
    """
    numbered = number_lines(lines, prefixes, name)
    failed: list[int] = []
    for window in windows(numbered, ready, size=buffer):
        found = in_order(engine.translate_lines(window, options))
        for line, translation in zip(window, found, strict=True):
            place = f"{name}:{line.number + 1}"
            warn_of_dropped(place, translation.num_dropped)
            if translation.failed:
                logger.warning("%s: not translated, the model computes NaN for it", place)
                failed.append(line.number + 1)
            outputs.write(line.number, translation, nbest=options.nbest > 1)
            advance(1)
    return failed


def warn_of_dropped(place: str, num_dropped: int) -> None:
    """Say which line was too long, and how much of it was not read."""
    if num_dropped:
        logger.warning("%s: too long, its last %d subwords are left out", place, num_dropped)


def number_lines(lines: Iterator[str], prefixes: Iterable[str] | None, name: str) -> Iterator[Line]:
    """Lines with their numbers and prefixes; there have to be as many prefixes as lines."""
    if prefixes is None:
        yield from (Line(number, text) for number, text in enumerate(lines))
        return
    for number, (text, prefix) in enumerate(pair_up(lines, prefixes, name, "the prefixes")):
        yield Line(number, text, prefix)


def pair_up(
    lines: Iterable[str], others: Iterable[str], name: str, other_name: str
) -> Iterator[tuple[str, str]]:
    """Line n of both; an error when one has more."""
    for number, (one, other) in enumerate(itertools.zip_longest(lines, others), start=1):
        if one is None or other is None:
            shorter, longer = (name, other_name) if one is None else (other_name, name)
            raise DataError(
                f"{shorter} ends after line {number - 1}, but {longer} goes on; expected as many "
                "lines in both"
            )
        yield one, other


def score_stream(
    scorer: Scorer,
    writer: LineWriter,
    *,
    lines: Iterator[str],
    targets: Iterable[str],
    ready: Callable[[], bool],
    name: str,
    target_name: str,
    batch_tokens: int,
    buffer: int | None = None,
    advance: Callable[[int], object] = bool,
) -> None:
    """Write the log probability of each target line as a translation of the source line."""
    pairs = pair_up(lines, targets, name, target_name)
    number = 0
    for window in windows(pairs, ready, size=buffer):
        sources, outputs = zip(*window, strict=True)
        for pair in scorer.score_pairs(sources, outputs, batch_tokens=batch_tokens):
            number += 1
            warn_of_dropped(f"{name}:{number}", pair.num_dropped)
            writer.write(f"{pair.log_probability:.6f}")
            advance(1)
