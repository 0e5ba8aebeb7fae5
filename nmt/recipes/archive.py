"""Extraction of chosen files from untrusted archives (tar, zip, gzip).

Python's own modules read the formats but extract nothing. Only regular files that the caller names
are written, each to a path of our choosing in a new directory, which appears when the whole archive
has been read. No link is made or followed, member names lead nowhere, and archives that unpack to
far more than text does are refused.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, cast

from nmt.errors import DataError, StorageError
from nmt.storage.directories import built_directory, install_directory
from nmt.storage.files import open_flags, storage_errors

COPY_BYTES = 1 << 18
MAX_RATIO = 40  # text shrinks to a tenth at most
ROOM = 100 << 20  # for small archives of very regular text
MAX_NAME = 1000
MAX_MEMBERS = 100_000
MAX_READ = 1 << 20  # bytes that a reader may ask for at once, so that no header fills the memory

DECOMPRESSORS: dict[bytes, Callable[[IO[bytes]], object]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"BZh": bz2.BZ2File,
}
ZIP_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

# Everything that the parsers raise on damaged bytes. Found by mutating archives: they also let
# errors of their own arithmetic, decoding and allocation through.
ARCHIVE_ERRORS = (
    EOFError,
    ValueError,  # includes UnicodeDecodeError
    LookupError,
    ArithmeticError,
    MemoryError,
    RuntimeError,  # includes NotImplementedError: unknown compression, encryption
    struct.error,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    OSError,
)


@dataclass(frozen=True)
class ArchiveMember:
    """A member of an archive of any kind: its name, announced size and content."""

    name: str
    is_file: bool
    size: int | None  # None: known only when it has been read
    open: Callable[[], IO[bytes]]


def extract(
    parts: Sequence[Path], wanted: Iterable[str], directory: Path, *, max_bytes: int | None = None
) -> None:
    """Make `directory` with the wanted members of an archive, which may lie in several parts.

    Raises DataError when a member is missing or the archive is damaged, hostile, or larger than
    `max_bytes` unpacked (by default a multiple of its own size).
    """
    name = " + ".join(str(part) for part in parts)
    if max_bytes is None:
        max_bytes = ROOM + MAX_RATIO * sum(part.stat().st_size for part in parts)
    with storage_errors(directory), built_directory(directory) as temporary:
        # It is ours alone: nothing in it can be a link beforehand.
        temporary.chmod(0o700)
        with _one_line_errors(name), contextlib.ExitStack() as stack:
            members = _members(parts, max_bytes, stack)
            _write_wanted(members, frozenset(wanted), temporary, name=name, max_bytes=max_bytes)
        temporary.chmod(0o755)
        install_directory(temporary, directory)


@contextlib.contextmanager
def _one_line_errors(name: str) -> Iterator[None]:
    """Raise DataError for whatever a parser raises on damaged bytes."""
    try:
        yield
    except ARCHIVE_ERRORS as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{name}: the archive is damaged, or no archive ({reason})") from error


def _write_wanted(
    members: Iterable[ArchiveMember],
    wanted: frozenset[str],
    target: Path,
    *,
    name: str,
    max_bytes: int,
) -> None:
    """Write the wanted members below `target`, after a look at every member."""
    assert all(check_name(path) == path for path in wanted)
    folded = {path.casefold(): path for path in wanted}
    seen: set[str] = set()
    total = 0
    for count, member in enumerate(members):
        path = check_name(member.name, archive=name)
        if count >= MAX_MEMBERS:
            raise DataError(f"{name}: expected at most {MAX_MEMBERS} members; refused")
        total += member.size or 0 if member.is_file else 0
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


def _write(member: ArchiveMember, path: Path, *, name: str) -> None:
    """Write one member, which must have the size it announces."""
    written = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = open_flags("O_WRONLY", "O_CREAT", "O_EXCL", "O_NOFOLLOW", "O_BINARY")
        file = open(os.open(path, flags, 0o644), "wb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error.strerror})") from error
    with file, member.open() as content:
        while piece := content.read(COPY_BYTES):
            try:
                written += file.write(piece)
                file.flush()
            except OSError as error:
                raise StorageError(f"{path}: cannot be written ({error.strerror})") from error
    if member.size not in (None, written):
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
        or len(member) > MAX_NAME
        or any(part[1:2] == ":" for part in parts)  # a drive on Windows
    ):
        raise DataError(f"{archive}: the member name {member[:80]!a} is not safe; refused")
    return "/".join(parts)


def _members(
    parts: Sequence[Path], max_bytes: int, stack: contextlib.ExitStack
) -> Iterator[ArchiveMember]:
    """All members of an archive, whose kind its first bytes decide."""
    stream: io.BufferedReader[io.RawIOBase] = io.BufferedReader(_Joined(parts), COPY_BYTES)
    stack.enter_context(stream)
    beginning = stream.peek(6)
    if beginning.startswith(b"PK\x03\x04"):
        return _zip_members(stream)
    start = next((start for start in DECOMPRESSORS if beginning.startswith(start)), None)
    plain = stream if start is None else cast(IO[bytes], DECOMPRESSORS[start](stream))
    forward = _Forward(plain, max_bytes + (1 << 20))  # headers come on top
    file_name = parts[0].name.lower()
    if start == b"\x1f\x8b" and file_name.endswith(".gz") and ".tar." not in file_name:
        content = cast(IO[bytes], forward)
        return iter([ArchiveMember(parts[0].name[:-3], True, None, lambda: content)])
    return _tar_members(forward)


def _tar_members(stream: "_Forward") -> Iterator[ArchiveMember]:
    """The members of an uncompressed tar archive, read from its beginning to its end, once."""
    content = cast(IO[bytes], stream)
    # Names in other encodings are never ones that a recipe wants.
    with tarfile.open(fileobj=content, mode="r:", encoding="utf-8", errors="replace") as archive:
        while (info := archive.next()) is not None:
            if info.size < 0:
                raise ValueError("a negative size")
            regular = info.isreg() and not info.issparse()
            yield ArchiveMember(
                info.name, regular, info.size, partial(_open_tar_member, archive, info)
            )
    while stream.read(MAX_READ):
        pass  # only at its end can a compressed stream prove that it is whole


def _open_tar_member(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    content = archive.extractfile(info)
    assert content is not None  # it is a regular file
    return content


def _zip_members(stream: IO[bytes]) -> Iterator[ArchiveMember]:
    """The members of a zip archive."""
    with zipfile.ZipFile(stream) as archive:
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if info.flag_bits & 1:
                raise ValueError(f"{info.filename!a} is encrypted")
            if info.compress_type not in ZIP_COMPRESSION:
                raise ValueError(f"{info.filename!a} is compressed by an unusual method")
            regular = not info.is_dir() and kind in (0, stat.S_IFREG)
            opener = partial(archive.open, info)
            yield ArchiveMember(info.orig_filename, regular, info.file_size, opener)


class _Forward:
    """A stream that moves forward only, in small reads, up to a limit of bytes."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._stream, self._limit, self._position = stream, limit, 0

    def __enter__(self) -> "_Forward":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET or offset < self._position:
            raise ValueError("a size or an offset is wrong")
        while self._position < offset:
            if not self.read(min(offset - self._position, COPY_BYTES)):
                raise EOFError("it is cut short")
        return self._position

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MAX_READ:
            raise ValueError(f"a header of {size} bytes")
        piece = self._stream.read(size)
        self._position += len(piece)
        if self._position > self._limit:
            raise ValueError("it unpacks to far more than an archive of text; refused")
        return piece


class _Joined(io.RawIOBase):
    """Several files read as one, from any position."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = [open(path, "rb") for path in paths]  # noqa: SIM115 (closed in close)
        self._sizes = [os.fstat(file.fileno()).st_size for file in self._files]
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: sum(self._sizes)}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        start = 0
        for file, size in zip(self._files, self._sizes, strict=True):
            if self._position < start + size:
                file.seek(self._position - start)
                count = file.readinto(buffer)
                self._position += count
                return count
            start += size
        return 0

    def close(self) -> None:
        for file in self._files:
            file.close()
        super().close()
