"""Taking chosen files out of archives (tar, zip, gzip) of which nothing is believed.

Only regular files that the caller names are written, to a new directory that appears when the whole
archive has been read and found harmless. No link is made or followed, no name leads elsewhere, and
what unpacks to far more than text does is refused.
"""

import bz2
import contextlib
import errno
import gzip
import io
import lzma
import os
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from nmt.data.tar import TarReader
from nmt.errors import DataError, StorageError

CHUNK = 1 << 18
MOST_RATIO = 40  # text shrinks to a tenth at most
ROOM = 100 << 20  # for small archives of very regular text
LONGEST_NAME = 1000
MOST_MEMBERS = 1_000_000

BEGINNINGS = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip"}
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EACCES})
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile)


@dataclass(frozen=True)
class Member:
    """A member of an archive of any kind, and how to get at its bytes."""

    name: str
    is_file: bool
    is_directory: bool
    size: int
    read: Callable[[], bytes]  # the next piece, empty at the end


def extract(
    parts: Sequence[Path], wanted: Iterable[str], directory: Path, *, max_bytes: int | None = None
) -> None:
    """Make `directory` with the wanted members of an archive, which may lie in several parts.

    DataError when a member is missing or the archive is damaged, hostile, or larger than
    `max_bytes` unpacked (by default a multiple of its own size).
    """
    name = " + ".join(str(part) for part in parts)
    if max_bytes is None:
        max_bytes = ROOM + MOST_RATIO * sum(part.stat().st_size for part in parts)
    directory.parent.mkdir(parents=True, exist_ok=True)
    # Made by us with a new name and closed to others: nothing in it can be a link beforehand.
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_one_line_errors(name))
            members = _members(parts, name, max_bytes, stack)
            _take(members, frozenset(wanted), temporary, name=name, max_bytes=max_bytes)
        temporary.chmod(0o755)
        os.rename(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _take(
    members: Iterable[Member], wanted: frozenset[str], target: Path, *, name: str, max_bytes: int
) -> None:
    """Write the wanted members below `target`, having looked at all."""
    assert all(check_name(path) == path for path in wanted)
    folded = {path.casefold(): path for path in wanted}
    seen: set[str] = set()
    total = 0
    for count, member in enumerate(members):
        path = check_name(member.name, archive=name)
        if count >= MOST_MEMBERS:
            raise DataError(f"{name}: more than {MOST_MEMBERS} members; this is no usual archive")
        if member.is_file:
            total += member.size
            if total > max_bytes:
                raise DataError(f"{name}: unpacks to more than {max_bytes} bytes; refused")
        if path.casefold() not in folded:
            continue
        if path not in wanted or path in seen:
            what = "twice" if path in seen else "in other capitals too"
            raise DataError(f"{name}: {folded[path.casefold()]} is in it {what}; refused")
        if not member.is_file:
            raise DataError(f"{name}: {path} is no regular file; refused")
        seen.add(path)
        _write(member, target / path, name=name)
    if missing := sorted(wanted - seen):
        raise DataError(f"{name}: expected the member {missing[0]}, which is not in it")


def _write(member: Member, path: Path, *, name: str) -> None:
    """Write one member, which has to have the size it claims."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o644), "wb") as file:
        while piece := member.read():
            file.write(piece)
        written = file.tell()
    if written != member.size:
        message = f"{member.name} has {written} bytes, announced were {member.size}"
        raise DataError(f"{name}: {message}")


def check_name(member: str, *, archive: str = "") -> str:
    """The path of a member without `.` parts; DataError if it could lead out of a directory."""
    parts = [part for part in member.split("/") if part not in ("", ".")]
    if (
        member.startswith("/")
        or ".." in parts
        or "\\" in member
        or not member.isprintable()
        or len(member) > LONGEST_NAME
        or any(part[1:2] == ":" for part in parts)  # a drive on Windows
    ):
        raise DataError(f"{archive}: the member name {member[:80]!a} is not safe; refused")
    return "/".join(parts)


def _members(
    parts: Sequence[Path], name: str, max_bytes: int, stack: contextlib.ExitStack
) -> Iterator[Member]:
    """All members of an archive of any kind, which its content decides."""
    stream = stack.enter_context(contextlib.closing(_open(parts)))
    beginning = stream.peek(6)[:6]
    kind = next((kind for bytes_, kind in BEGINNINGS.items() if beginning.startswith(bytes_)), "")
    if kind == "zip":
        return _zip_members(stack.enter_context(zipfile.ZipFile(stream)), name)
    plain = cast(BinaryIO, _Limited(_decompress(kind, stream), max_bytes, name))
    file_name = parts[0].name.lower()
    if kind == "gzip" and file_name.endswith(".gz") and ".tar." not in file_name:
        return _single_member(plain, parts[0].name[:-3])
    return _tar_members(TarReader(plain, name))


def _tar_members(reader: TarReader) -> Iterator[Member]:
    for member in reader.members():
        yield Member(
            member.name, member.is_file, member.is_directory, member.size, read=reader.read
        )


def _zip_members(archive: zipfile.ZipFile, name: str) -> Iterator[Member]:
    for info in archive.infolist():
        mode = info.external_attr >> 16
        regular = not info.is_dir() and (stat.S_IFMT(mode) in (0, stat.S_IFREG))
        if info.flag_bits & 1:
            raise DataError(f"{name}: {info.filename!a} is encrypted")
        with contextlib.closing(_Lazy(archive, info)) as content:
            yield Member(
                info.orig_filename, regular, info.is_dir(), info.file_size, read=content.read
            )


class _Lazy:
    """A zip member that is opened when somebody reads it."""

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self._archive, self._info = archive, info
        self._file: io.BufferedIOBase | None = None

    def read(self) -> bytes:
        if self._file is None:
            self._file = cast(io.BufferedIOBase, self._archive.open(self._info))
        return self._file.read(CHUNK)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _single_member(stream: BinaryIO, name: str) -> Iterator[Member]:
    """A file that was compressed on its own; its size shows only when it has been read."""
    with tempfile.TemporaryFile() as file:
        shutil.copyfileobj(stream, file, CHUNK)
        size = file.tell()
        file.seek(0)
        yield Member(name, True, False, size, read=lambda: file.read(CHUNK))


class _Limited:
    """A stream that stops with DataError beyond a number of bytes."""

    def __init__(self, stream: BinaryIO, limit: int, name: str) -> None:
        self._stream, self._limit, self._name = stream, limit + (1 << 20), name  # headers are extra

    def read(self, size: int) -> bytes:
        piece = self._stream.read(size)
        self._limit -= len(piece)
        if self._limit < 0:
            raise DataError(f"{self._name}: unpacks to far more than an archive of text; refused")
        return piece


def _decompress(kind: str, stream: io.BufferedReader) -> BinaryIO:
    if kind == "gzip":
        return cast(BinaryIO, gzip.GzipFile(fileobj=stream))
    if kind == "xz":
        return cast(BinaryIO, lzma.LZMAFile(stream))
    if kind == "bzip2":
        return cast(BinaryIO, bz2.BZ2File(stream))
    return stream


class _Joined(io.RawIOBase):
    """Several files read as one, from any position."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = [open(path, "rb") for path in paths]  # noqa: SIM115 (closed in close)
        self._ends: list[int] = []
        for file in self._files:
            before = self._ends[-1] if self._ends else 0
            self._ends.append(before + os.fstat(file.fileno()).st_size)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._ends[-1]}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        start = 0
        for file, end in zip(self._files, self._ends, strict=True):
            if self._position < end:
                file.seek(self._position - start)
                count = file.readinto(buffer)
                self._position += count
                return count
            start = end
        return 0

    def close(self) -> None:
        for file in self._files:
            file.close()
        super().close()


def _open(parts: Sequence[Path]) -> io.BufferedReader:
    return io.BufferedReader(_Joined(parts), CHUNK)


@contextlib.contextmanager
def _one_line_errors(name: str) -> Iterator[None]:
    """Turn what the decompressors raise into DataError."""
    try:
        yield
    except DAMAGED as error:
        raise DataError(f"{name}: the archive is cut short or damaged ({error})") from error
    except (NotImplementedError, RuntimeError) as error:  # zip: unknown compression, encryption
        raise DataError(f"{name}: cannot be unpacked ({error})") from error
    except OSError as error:
        if error.errno in NO_ROOM:
            raise StorageError(f"{name}: cannot be unpacked ({error.strerror})") from error
        raise DataError(f"{name}: cannot be read ({error})") from error
