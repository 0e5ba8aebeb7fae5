"""The one reader and the one writer of text lines: binary, only LF ends a line, strict UTF-8."""

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, NamedTuple, Self, cast

from nmt.errors import DataError, StorageError
from nmt.storage.files import replaced_file, storage_errors

logger = logging.getLogger(__name__)

MAX_BYTES = 1_000_000
CHUNK = 1 << 17
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

INVALID = "invalid UTF-8"
TOO_LONG = "line too long"
EMPTY = "empty line"
BAD_LINES = frozenset({INVALID, TOO_LONG, EMPTY})  # reasons

# How an archive of each kind begins, for files whose name does not tell.
ARCHIVE_BEGINNINGS = {
    ".gz": (b"\x1f\x8b\x08",),
    ".xz": (b"\xfd7zXZ\x00",),
    ".bz2": tuple(
        b"BZh%d" % level + block
        for level in range(1, 10)
        for block in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
    ),
}
BROKEN_ARCHIVE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be used: why, its number from 1, and a byte offset in the plain file.

    The offset is that of the first invalid byte, or of the beginning of an over-long line.
    """

    reason: str
    line: int
    offset: int


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


@dataclass
class ReadStatistics:
    """What a reader of pairs has seen so far: pairs read in all, and those skipped by reason."""

    read: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


def read_lines(path: Path, *, max_bytes: int = MAX_BYTES) -> Iterator[str | BadLine]:
    """The lines of a file, plain or compressed; what cannot be text comes as a `BadLine`.

    Memory stays within a few `max_bytes` whatever the file holds.
    """
    with contextlib.closing(_open(path)) as stream:
        yield from read_stream(stream, str(path), max_bytes=max_bytes)


def read_stream(
    stream: BinaryIO, name: str, *, max_bytes: int = MAX_BYTES
) -> Iterator[str | BadLine]:
    """The lines of an open stream by the rules of `read_lines`, each as soon as it has arrived."""
    readline = stream.readline
    limit = max_bytes + 2  # room for CR and LF
    offset = 0
    number = 0
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
                yield BadLine(INVALID, number, start + error.start)
                continue
            yield text
    except BROKEN_ARCHIVE as error:
        raise DataError(
            f"{name}: the archive is cut short or damaged after line {number} ({error})"
        ) from error
    except OSError as error:
        raise DataError(f"{name}: cannot be read after line {number} ({error})") from error


def _skip_line(stream: BinaryIO) -> int:
    """Read past the end of the current line; returns how many bytes that took."""
    skipped = 0
    while raw := stream.readline(CHUNK):
        skipped += len(raw)
        if raw[-1] == 10:
            break
    return skipped


def read_text(path: Path, *, max_bytes: int = MAX_BYTES) -> Iterator[str]:
    """The lines of a file; the first one that is no text of bearable length is an error."""
    for line in read_lines(path, max_bytes=max_bytes):
        if isinstance(line, BadLine):
            raise DataError(describe(path, line, max_bytes=max_bytes))
        yield line


def describe(path: Path, bad: BadLine, *, max_bytes: int) -> str:
    """What is wrong with a line, in the form `file:line: what (byte offset)`."""
    detail = f"line longer than {max_bytes} bytes" if bad.reason == TOO_LONG else bad.reason
    return f"{path}:{bad.line}: {detail} (byte {bad.offset} of the text)"


def _open(path: Path) -> io.BufferedReader:
    """Open a regular file for reading, through a decompressor when its content asks for one."""
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise DataError(f"{path}: expected a regular file, got {_file_type(mode)}")
        stream: io.BufferedReader = io.BufferedReader(io.FileIO(path), CHUNK)
    except (OSError, ValueError) as error:  # ValueError: NUL in the name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DataError(f"{path}: cannot be read ({reason})") from error
    beginning = stream.peek(10)[:10]
    for suffix, beginnings in ARCHIVE_BEGINNINGS.items():
        if beginning.startswith(beginnings):
            # The outer buffer's readline is written in C, those of the archive classes are not.
            archive = cast(io.RawIOBase, _decompress(suffix, stream))
            return io.BufferedReader(archive, CHUNK)
    if path.suffix in ARCHIVE_BEGINNINGS and beginning:
        stream.close()
        raise DataError(f"{path}: named {path.suffix}, but it does not hold such an archive")
    return stream


def _decompress(suffix: str, stream: io.BufferedReader) -> BinaryIO:
    if suffix == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=stream))
    if suffix == ".xz":
        return cast(BinaryIO, lzma.LZMAFile(stream))
    assert suffix == ".bz2"
    return cast(BinaryIO, bz2.BZ2File(stream))


def _file_type(mode: int) -> str:
    names = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return names.get(stat.S_IFMT(mode), "a device")


def read_pairs(
    source: Sequence[Path],
    target: Sequence[Path],
    *,
    on_bad_line: Literal["error", "skip"] = "error",
    max_bytes: int = MAX_BYTES,
    statistics: ReadStatistics | None = None,
) -> Iterator[Pair]:
    """The sentence pairs of two lists of files; line n of one side translates line n of the other.

    With as many files on either side they have to agree in length one by one, since mistakes in
    two files could cancel out; else the lists have to agree as wholes. A pair with a bad or blank
    line is an error, or is left out and counted in `statistics`.
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
    """The pairs of two concatenations of files of equal length."""
    left_lines = _concatenated(source, max_bytes)
    right_lines = _concatenated(target, max_bytes)
    number = 0
    for left, right in zip(left_lines, right_lines, strict=False):
        if left is None or right is None:
            break
        number += 1
        statistics.read += 1
        if isinstance(left, str) and isinstance(right, str) and left and right:  # noqa: SIM102
            # This is quick: it looks no further than the first letter.
            if not left.isspace() and not right.isspace():
                yield Pair(left, right)
                continue
        paths, line = (source, left) if _badness(left) else (target, right)
        if on_bad_line == "error":
            raise _bad_pair(paths, line, number, max_bytes)
        statistics.skipped[_badness(line) or ""] += 1
    left_count = number + _count_rest(left, left_lines)
    right_count = number + _count_rest(right, right_lines)
    if left_count != right_count:
        raise DataError(
            f"{_names(source)} has {left_count} lines but {_names(target)} has {right_count}: "
            "line n of one side must translate line n of the other"
        )


def _concatenated(paths: Sequence[Path], max_bytes: int) -> Iterator[str | BadLine | None]:
    """The lines of several files, and then None for ever."""
    for path in paths:
        lines = read_lines(path, max_bytes=max_bytes)
        first = next(lines, None)
        if first is None:
            raise DataError(f"{path}: the file is empty")
        yield first
        yield from lines
    yield from itertools.repeat(None)


def _count_rest(line: str | BadLine | None, rest: Iterator[str | BadLine | None]) -> int:
    """How many lines are left, the current one among them."""
    if line is None:
        return 0
    return 1 + sum(1 for _ in itertools.takewhile(lambda line: line is not None, rest))


def _badness(line: str | BadLine) -> str | None:
    if isinstance(line, BadLine):
        return line.reason
    return EMPTY if not line or line.isspace() else None


def _bad_pair(paths: Sequence[Path], line: str | BadLine, number: int, max_bytes: int) -> DataError:
    """The error about line `number` (from 1) of concatenated files."""
    path, number = _locate(paths, number, max_bytes)
    if isinstance(line, BadLine):
        what = describe(path, line, max_bytes=max_bytes)
    else:
        what = f"{path}:{number}: empty line"
    return DataError(
        f"{what}; many corpora hold a few such lines: `data.on_bad_line: skip` leaves "
        "their pairs out and counts them"
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
    """Writes lines to a file that appears whole or not at all, or to standard output.

    The text goes to a temporary file beside the real one, which is replaced when the context ends
    well; names in .gz, .xz and .bz2 are compressed. What is no regular file (a pipe, a device, and
    standard output, for which the path is None) is written directly, every line at once.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            with storage_errors(self._name):
                self._stack.__exit__(kind, error, traceback)
        except (StorageError, BrokenPipeError):
            if kind is None:  # else it was reported by what went wrong before
                raise


def _compress(suffix: str, file: BinaryIO) -> BinaryIO:
    if suffix == ".gz":  # without a time, so that equal text gives equal bytes
        return cast(BinaryIO, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0))
    if suffix == ".xz":
        return cast(BinaryIO, lzma.LZMAFile(file, "wb"))
    if suffix == ".bz2":
        return cast(BinaryIO, bz2.BZ2File(file, "wb"))
    return file
