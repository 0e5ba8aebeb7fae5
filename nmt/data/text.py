"""The reader and the writer of text lines: binary, only LF ends a line, strict UTF-8."""

import bz2
import contextlib
import gzip
import io
import itertools
import logging
import lzma
import os
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Self, TypeVar, cast

from nmt.errors import DataError, StorageError
from nmt.storage.files import replaced_file, storage_errors

logger = logging.getLogger(__name__)

AnyLine = TypeVar("AnyLine")
Side = Literal["source", "target"]
SIDES: tuple[Side, Side] = ("source", "target")

LINE_BYTES = 1_000_000  # the longest line unless a caller says otherwise
BUFFER_BYTES = 1 << 17
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

INVALID_UTF8 = "invalid UTF-8"
TOO_LONG = "line too long"
EMPTY = "empty line"
BAD_LINES = frozenset({INVALID_UTF8, TOO_LONG, EMPTY})  # reasons

# The first bytes of each kind of archive: the content decides, not the name.
ARCHIVE_BEGINNINGS = {
    ".gz": (b"\x1f\x8b\x08",),
    ".xz": (b"\xfd7zXZ\x00",),
    ".bz2": tuple(
        b"BZh%d" % level + block
        for level in range(1, 10)
        for block in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
    ),
}
DECOMPRESS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
BROKEN_ARCHIVE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be used: the reason, its number from 1, and an offset in the plain text.

    The offset is that of the first invalid byte, or of the beginning of a line that is too long.
    """

    reason: str
    line: int
    offset: int

    def message(self, path: Path, *, max_bytes: int = LINE_BYTES) -> str:
        """The error message, `file:line: reason (byte offset)`."""
        reason = f"line longer than {max_bytes} bytes" if self.reason == TOO_LONG else self.reason
        return f"{path}:{self.line}: {reason} (byte {self.offset} of the text)"


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


@dataclass
class ReadStatistics:
    """The number of pairs that were read so far, and of those that were skipped, by reason."""

    read: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


def read_lines(path: Path, *, max_bytes: int = LINE_BYTES) -> Iterator[str | BadLine]:
    """The lines of a plain or compressed file; a line that is not valid text is a `BadLine`.

    Memory stays within a few `max_bytes`, whatever the file holds.
    """
    with contextlib.closing(_open(path)) as stream:
        yield from read_stream(stream, str(path), max_bytes=max_bytes)


def read_stream(
    stream: BinaryIO, name: str, *, max_bytes: int = LINE_BYTES, offset: int = 0, number: int = 0
) -> Iterator[str | BadLine]:
    """The lines of an open stream, as `read_lines` gives them, each as soon as it has arrived.

    `offset` is the position of the stream in the text, and `number` the count of lines before it.
    """
    readline = stream.readline
    limit = max_bytes + 2  # room for CR and LF
    try:
        while raw := readline(limit):
            number += 1
            start = offset
            offset += len(raw)
            if raw[-1] == 10:  # LF
                end = -2 if raw[-2:] == b"\r\n" else -1
                content = raw[:end]
            elif len(raw) < limit:
                content = raw.removesuffix(b"\r")  # the last line, without its LF
            else:
                offset += _skip_line(stream)
                yield BadLine(TOO_LONG, number, start)
                continue
            if number == 1 and content.startswith(BYTE_ORDER_MARK):
                logger.info("%s: dropped the byte order mark at the beginning", name)
                content = content[3:]
                start += 3
            if len(content) > max_bytes:
                yield BadLine(TOO_LONG, number, start)
                continue
            try:
                text = content.decode()
            except UnicodeDecodeError as error:
                yield BadLine(INVALID_UTF8, number, start + error.start)
                continue
            yield text
    except BROKEN_ARCHIVE as error:
        raise DataError(
            f"{name}: the archive is truncated or damaged after line {number} ({error})"
        ) from error
    except OSError as error:
        raise DataError(f"{name}: cannot be read after line {number} ({error})") from error


def _skip_line(stream: BinaryIO) -> int:
    """Read to the end of the current line; returns the number of bytes read."""
    skipped = 0
    while raw := stream.readline(BUFFER_BYTES):
        skipped += len(raw)
        if raw[-1] == 10:
            break
    return skipped


def read_text(path: Path) -> Iterator[str]:
    """The lines of a file; raises DataError for the first line that is not valid text."""
    for line in read_lines(path):
        if isinstance(line, BadLine):
            raise DataError(line.message(path))
        yield line


def regular_file_status(path: Path) -> os.stat_result:
    """The status of a file; raises DataError unless it is a regular file."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # ValueError: NUL in the name
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(status.st_mode):
        names = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        kind = names.get(stat.S_IFMT(status.st_mode), "a device")
        raise DataError(f"{path}: expected a regular file, got {kind}")
    return status


def _unreadable(path: Path, error: OSError | ValueError) -> DataError:
    return DataError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})")


def _open(path: Path) -> io.BufferedReader:
    """A regular file opened for reading, through a decompressor if its content is an archive."""
    regular_file_status(path)
    try:
        stream: io.BufferedReader = io.BufferedReader(io.FileIO(path), BUFFER_BYTES)
    except OSError as error:
        raise _unreadable(path, error) from error
    beginning = stream.peek(10)[:10]
    for suffix, beginnings in ARCHIVE_BEGINNINGS.items():
        if beginning.startswith(beginnings):
            # The readline of the outer buffer is written in C, that of an archive class is not.
            return io.BufferedReader(DECOMPRESS[suffix](stream), BUFFER_BYTES)
    if path.suffix in ARCHIVE_BEGINNINGS and beginning:
        stream.close()
        raise DataError(f"{path}: named {path.suffix}, but it does not hold such an archive")
    return stream


def read_pairs(
    source: Sequence[Path],
    target: Sequence[Path],
    *,
    on_bad_line: Literal["error", "skip"] = "error",
    max_bytes: int = LINE_BYTES,
    statistics: ReadStatistics | None = None,
) -> Iterator[Pair]:
    """The sentence pairs of two lists of files; line n of one side translates line n of the other.

    If both sides have the same number of files, the files must agree in length one by one, since
    errors in two files could cancel out. Otherwise the lists must agree as a whole. A pair with a
    bad or empty line raises DataError, or is skipped and counted in `statistics`.
    """
    statistics = statistics if statistics is not None else ReadStatistics()
    if len(source) == len(target):
        groups = [([left], [right]) for left, right in zip(source, target, strict=True)]
    else:
        groups = [(list(source), list(target))]
    for left, right in groups:
        yield from _read_group(left, right, on_bad_line, max_bytes, statistics)
    if statistics.read == statistics.skipped.total():
        counts = ", ".join(f"{count} x {reason}" for reason, count in statistics.skipped.items())
        raise DataError(f"{_names(source)} and {_names(target)}: no usable pair ({counts})")


def _read_group(
    source: Sequence[Path],
    target: Sequence[Path],
    on_bad_line: Literal["error", "skip"],
    max_bytes: int,
    statistics: ReadStatistics,
) -> Iterator[Pair]:
    """The pairs of two concatenations of files with the same number of lines."""
    pairs = side_by_side(
        _concatenated(source, max_bytes),
        _concatenated(target, max_bytes),
        (_names(source), _names(target)),
    )
    for number, (left, right) in enumerate(pairs):
        statistics.read += 1
        if isinstance(left, str) and isinstance(right, str) and left and right:  # noqa: SIM102
            # This is fast: it looks no further than the first letter.
            if not left.isspace() and not right.isspace():
                yield Pair(left, right)
                continue
        paths, line = (source, left) if _badness(left) else (target, right)
        if on_bad_line == "error":
            raise _bad_pair(paths, line, number + 1, max_bytes)
        statistics.skipped[_badness(line) or ""] += 1


def side_by_side(
    left: Iterator[AnyLine], right: Iterator[AnyLine], names: tuple[str, str]
) -> Iterator[tuple[AnyLine, AnyLine]]:
    """The lines of two sides, line n with line n; raises DataError where only one side ends."""
    for number, (one, other) in enumerate(itertools.zip_longest(left, right)):
        if one is None or other is None:
            rest = number + 1 + sum(1 for _ in (left if other is None else right))
            counts = (rest, number) if other is None else (number, rest)
            raise DataError(
                f"{names[0]} has {counts[0]} lines but {names[1]} has {counts[1]}: "
                "line n of one side must translate line n of the other"
            )
        yield one, other


def _concatenated(paths: Sequence[Path], max_bytes: int) -> Iterator[str | BadLine]:
    """The lines of several files, none of which may be empty."""
    for path in paths:
        lines = read_lines(path, max_bytes=max_bytes)
        first = next(lines, None)
        if first is None:
            raise DataError(f"{path}: the file is empty")
        yield first
        yield from lines


def _badness(line: str | BadLine) -> str | None:
    if isinstance(line, BadLine):
        return line.reason
    return EMPTY if not line or line.isspace() else None


def _bad_pair(paths: Sequence[Path], line: str | BadLine, number: int, max_bytes: int) -> DataError:
    """The error for line `number` (from 1) of concatenated files."""
    path, number = _locate(paths, number, max_bytes)
    if isinstance(line, BadLine):
        what = line.message(path, max_bytes=max_bytes)
    else:
        what = f"{path}:{number}: empty line"
    return DataError(
        f"{what}; many corpora have a few such lines: `data.on_bad_line: skip` skips and counts "
        "their pairs"
    )


def _locate(paths: Sequence[Path], number: int, max_bytes: int) -> tuple[Path, int]:
    """The file, and the line in it, that is line `number` of the concatenation."""
    for path in paths[:-1]:
        length = sum(1 for _ in read_lines(path, max_bytes=max_bytes))
        if number <= length:
            return path, number
        number -= length
    return paths[-1], number


def _names(paths: Sequence[Path]) -> str:
    return " + ".join(str(path) for path in paths)


class LineWriter:
    """Writes lines to a file that appears complete or not at all, or to standard output.

    The text goes to a temporary file, which replaces the real one when the context ends without an
    error; names that end in .gz, .xz or .bz2 are compressed. A pipe, a device, or standard output
    (the path None) is written directly, and each line is flushed.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._name = "standard output" if path is None else str(path)
        self._direct = path is None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with storage_errors(self._name):
            self._stream = self._start()
        return self

    def _start(self) -> BinaryIO:
        if self.path is None:
            return sys.stdout.buffer
        if self.path.exists() and not self.path.is_file():
            self._direct = True
            return self._stack.enter_context(open(self.path, "wb"))
        file = self._stack.enter_context(replaced_file(self.path))
        stream = _compress(Path(os.path.realpath(self.path)).suffix, file)
        return file if stream is file else self._stack.enter_context(stream)

    def write(self, line: str) -> None:
        """Write one line; the LF is added."""
        assert "\n" not in line
        with storage_errors(self._name):
            self._stream.write(line.encode() + b"\n")
            if self._direct:
                self._stream.flush()

    def __exit__(self, kind: type[BaseException] | None, *exception: Any) -> None:
        try:
            with storage_errors(self._name):
                self._stack.__exit__(kind, *exception)
        except (StorageError, BrokenPipeError):
            if kind is None:  # otherwise the first error is the one to report
                raise


def _compress(suffix: str, file: BinaryIO) -> BinaryIO:
    if suffix == ".gz":  # without a time, so that equal text gives equal bytes
        return cast(BinaryIO, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0))
    if suffix == ".xz":
        return cast(BinaryIO, lzma.LZMAFile(file, "wb"))
    if suffix == ".bz2":
        return cast(BinaryIO, bz2.BZ2File(file, "wb"))
    return file
