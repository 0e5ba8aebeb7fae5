"""Translates or scores a stream of lines and writes the results to files, for nmt-translate."""

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self

from nmt.config.search_options import SearchOptions
from nmt.data.text import BadLine, LineWriter
from nmt.decoding.attention_file import AttentionWriter, attention_writer
from nmt.decoding.failures import LineFailures
from nmt.decoding.streaming import LineSource, in_order, windows
from nmt.decoding.translation import (
    NO_DETAILS,
    Details,
    Failure,
    Line,
    PairScore,
    Translation,
)
from nmt.errors import DataError

logger = logging.getLogger(__name__)

OnBadLine = Literal["error", "skip"]


class LineTranslator(Protocol):
    """The interface that `Translator` and `WorkerPool` share."""

    def translate_lines(
        self, lines: Sequence[Line], options: SearchOptions, details: Details
    ) -> Iterator[tuple[int, Translation]]:
        """The position of each line and its translation, in any order."""


class Scorer(Protocol):
    """The interface for scoring, which `Translator` has."""

    def score_pairs(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        batch_tokens: int | None = None,
        attention: Sequence[str] = (),
    ) -> list[PairScore]:
        """The scores of pairs of lines."""


class TranslatedLine(NamedTuple):
    """A line and its translation."""

    line: Line
    translation: Translation


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

    def __exit__(self, *exception: Any) -> None:
        self.stack.__exit__(*exception)

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
        if translation.failed and not nbest:
            return ""
        log_probability = f"{translation.log_probability:.6f}"
        if nbest:
            return (
                f"{number} ||| {translation.text} ||| log_probability= {log_probability} ||| "
                f"{translation.score:.6f}"
            )
        return f"{log_probability}\t{translation.text}" if self.scores else translation.text


def translate_stream(
    engine: LineTranslator,
    options: SearchOptions,
    outputs: Outputs,
    source: LineSource,
    *,
    details: Details = NO_DETAILS,
    prefixes: LineSource | None = None,
    on_bad_line: OnBadLine = "error",
    buffer: int | None = None,
    advance: Callable[[int], object] = bool,
) -> LineFailures:
    """Translate and write all lines in order; returns those that have no translation.

    `advance` is told of every line that is done.
    """
    answers = translate_windows(
        engine, options, source, details, prefixes=prefixes, on_bad_line=on_bad_line, buffer=buffer
    )
    return write_answers(answers, outputs, source.name, nbest=options.nbest > 1, advance=advance)


def translate_windows(
    engine: LineTranslator,
    options: SearchOptions,
    source: LineSource,
    details: Details,
    *,
    prefixes: LineSource | None,
    on_bad_line: OnBadLine,
    buffer: int | None,
) -> Iterator[TranslatedLine]:
    """All lines with their translations, in order."""
    for window in windows(number_lines(source, prefixes, on_bad_line), source.ready, size=buffer):
        found = in_order(engine.translate_lines(window, options, details))
        yield from itertools.starmap(TranslatedLine, zip(window, found, strict=True))


def write_answers(
    answers: Iterable[TranslatedLine],
    outputs: Outputs,
    name: str,
    *,
    nbest: bool,
    advance: Callable[[int], object] = bool,
) -> LineFailures:
    """Write the translations of the lines of `name`; returns the lines that have none."""
    failures = LineFailures(name, "translated")
    for line, translation in answers:
        number = line.number + 1
        warn_of_dropped(f"{name}:{number}", translation.num_dropped)
        if line.problem:
            translation = replace(translation, failure=Failure.UNREADABLE, nbest=())
        if translation.failure is not None:
            failures.add(number, translation.failure, line.problem)
        outputs.write(line.number, translation, nbest=nbest)
        advance(1)
    return failures


def warn_of_dropped(place: str, num_dropped: int) -> None:
    """Say which line was too long, and how much of it was not read."""
    if num_dropped:
        logger.warning("%s: too long, its last %d subwords are left out", place, num_dropped)


def number_lines(
    source: LineSource, others: LineSource | None, on_bad_line: OnBadLine
) -> Iterator[Line]:
    """Lines with their numbers and, as prefixes, line n of `others`, which has to be as long.

    A bad line on either side is an error, or a line with a problem and without text.
    """
    for number, (text, other) in enumerate(pair_up(source, others)):
        problem = ""
        for origin, item in ((source, text), (others, other)):
            if origin is not None and isinstance(item, BadLine):
                problem = problem or origin.describe(item)
        if problem and on_bad_line == "error":
            raise bad_line(problem)
        if isinstance(text, BadLine) or isinstance(other, BadLine):
            yield Line(number, "", problem=problem)
        else:
            yield Line(number, text, other)


def bad_line(problem: str) -> DataError:
    """The error for a line that cannot be read."""
    return DataError(f"{problem}; `--on-bad-line skip` leaves such lines empty")


def pair_up(
    source: LineSource, others: LineSource | None
) -> Iterator[tuple[str | BadLine, str | BadLine]]:
    """Line n of both, or with the empty line; an error when one has more."""
    if others is None:
        yield from ((line, "") for line in source.lines)
        return
    pairs = itertools.zip_longest(source.lines, others.lines)
    for number, (one, other) in enumerate(pairs):
        if one is None or other is None:
            names = (source.name, others.name)
            shorter, longer = names if one is None else names[::-1]
            raise DataError(
                f"{shorter} ends after line {number}, but {longer} goes on; expected as many "
                "lines in both"
            )
        yield one, other


def score_stream(
    scorer: Scorer,
    writer: LineWriter,
    source: LineSource,
    targets: LineSource,
    *,
    batch_tokens: int,
    types: Sequence[str] = (),
    attention: AttentionWriter | None = None,
    on_bad_line: OnBadLine = "error",
    buffer: int | None = None,
    advance: Callable[[int], object] = bool,
) -> LineFailures:
    """Write the log probability of each target line as a translation of the source line.

    `attention` is given the attention of these types for each line that has a score. Returns the
    lines without one, which are empty in the output.
    """
    failures = LineFailures(source.name, "scored")
    for window in windows(number_lines(source, targets, on_bad_line), source.ready, size=buffer):
        scores = scorer.score_pairs(
            [line.text for line in window],
            [line.prefix for line in window],
            batch_tokens=batch_tokens,
            attention=types,
        )
        for line, pair in zip(window, scores, strict=True):
            number = line.number + 1
            warn_of_dropped(f"{source.name}:{number}", pair.num_dropped)
            failure = Failure.UNREADABLE if line.problem else pair.failure
            if failure is not None:
                failures.add(number, failure, line.problem)
            writer.write("" if failure is not None else f"{pair.log_probability:.6f}")
            if attention is not None and pair.attention is not None and failure is None:
                attention.write(number, pair.attention)
            advance(1)
    return failures
