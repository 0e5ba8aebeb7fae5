"""Directories that appear whole or not at all, whenever the process or the machine dies.

A new directory is built beside its place under the name `.nmt-new-...`: each file is written and
synced, the manifest last, then the directory; only then is it renamed to its place, and the parent
is synced. To replace a directory, the old one is first renamed to `.nmt-old-...`; a crash before
the next rename leaves no directory in place but two complete ones beside it, and `recover` (or a
reader, by `settled`) takes the old one. A directory to be deleted is first renamed to
`.nmt-trash-...`, so that no half-deleted one ever stands in a place that counts.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Literal

from nmt.errors import StorageError
from nmt.storage.hashing import ByteSink, HashingWriter
from nmt.storage.manifest import MANIFEST, FileEntry, encode_manifest, is_plain_name

Writer = Callable[[ByteSink], object]
Kind = Literal["new", "old", "trash"]

LEFTOVER = re.compile(
    r"\.nmt-(?P<kind>new|old|trash)-(?P<name>.+)\.(?P<host>[0-9a-f]{8})\.(?P<pid>\d+)\.[0-9a-f]{8}"
)


def bytes_writer(data: bytes) -> Writer:
    """A writer of fixed content."""
    return lambda sink: sink.write(data)


def json_writer(value: Any) -> Writer:
    """A writer of readable JSON; Python's floats survive it bit for bit."""
    return bytes_writer((json.dumps(value, indent=1) + "\n").encode())


def write_directory(path: Path, files: Mapping[str, Writer]) -> None:
    """Create the directory `path`, which must not exist (or be empty), with a manifest."""
    with storage_errors(path), built_directory(path, files) as temporary:
        os.rename(temporary, path)
        sync_directory(path.parent)


def replace_directory(path: Path, files: Mapping[str, Writer]) -> None:
    """Create the directory `path` in the place of the one that may be there."""
    with storage_errors(path), built_directory(path, files) as temporary:
        aside = leftover_path(path, "old")
        replaced = os.path.lexists(path)
        try:
            if replaced:
                os.rename(path, aside)
                sync_directory(path.parent)
            os.rename(temporary, path)
        finally:
            if replaced and not os.path.lexists(path):
                os.rename(aside, path)
        sync_directory(path.parent)
    if replaced:
        remove_directory(aside, place=path)


def remove_directory(path: Path, *, place: Path | None = None) -> None:
    """Delete a directory as far as the disk allows; what cannot be deleted no longer counts."""
    trash = leftover_path(place or path, "trash")
    with suppress(OSError):
        os.rename(path, trash)
        delete_tree(trash)


@contextmanager
def built_directory(path: Path, files: Mapping[str, Writer]) -> Iterator[Path]:
    """A complete, synced directory under a temporary name beside `path`; renaming is left to do."""
    make_directories(path.parent)
    temporary = leftover_path(path, "new")
    os.mkdir(temporary)
    try:
        entries = {}
        for name, writer in files.items():
            assert is_plain_name(name), name
            entries[name] = write_file(temporary / name, writer)
        write_file(temporary / MANIFEST, lambda sink: sink.write(encode_manifest(entries)))
        sync_directory(temporary)
        yield temporary
    finally:
        delete_tree(temporary)  # nothing is left of it after a success


def write_file(path: Path, writer: Writer) -> FileEntry:
    """Write and sync one new file; the result is its line in the manifest."""
    with FileIO(path, "xb") as file:
        sink = HashingWriter(file)
        writer(sink)
        os.fsync(file.fileno())
        return FileEntry(sink.size, sink.hexdigest())


def make_directories(path: Path) -> None:
    """Create `path` and its parents durably where they are missing."""
    if not path.is_dir():
        make_directories(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems know no sync of directories (and need none).
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def delete_tree(path: Path) -> None:
    """Delete a directory, or a link to one; problems are for the next start."""
    if path.is_symlink():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into a StorageError that names `path`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(f"{path}: could not be written ({reason})") from error


@dataclass(frozen=True)
class Leftover:
    """A directory that a writer has not brought to its end, or not yet."""

    path: Path
    kind: Kind
    place: Path
    host: str
    pid: int

    def is_alive(self) -> bool:
        """Whether its writer may still be at work; that of another machine might be."""
        if self.host != host_digest():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def modified(self) -> int:
        """When its manifest was written, in nanoseconds; 0 when it has none."""
        try:
            return (self.path / MANIFEST).stat().st_mtime_ns
        except OSError:
            return 0


def host_digest() -> str:
    """Eight characters that stand for this machine."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def leftover_path(place: Path, kind: Kind) -> Path:
    """A fresh temporary name beside `place` that says who writes."""
    suffix = f"{host_digest()}.{os.getpid()}.{secrets.token_hex(4)}"
    return place.parent / f".nmt-{kind}-{place.name}.{suffix}"


def leftovers(parent: Path, name: str | None = None) -> list[Leftover]:
    """The temporary directories in `parent` (of one place), the ones written last first."""
    found = []
    try:
        names = os.listdir(parent)
    except (FileNotFoundError, NotADirectoryError):
        return []
    for entry in names:
        match = LEFTOVER.fullmatch(entry)
        if match and name in (None, match["name"]):
            kind: Any = match["kind"]
            place = parent / match["name"]
            found.append(Leftover(parent / entry, kind, place, match["host"], int(match["pid"])))
    return sorted(found, key=Leftover.modified, reverse=True)


def recover(parent: Path, *, name: str | None = None, exclusive: bool) -> None:
    """Undo what dead writers left in `parent`; with `exclusive` all of them are known to be dead.

    A directory set aside goes back to its place if that is empty; all else is deleted.
    """
    with storage_errors(parent):
        for leftover in leftovers(parent, name):
            if not exclusive and leftover.is_alive():
                continue
            if leftover.kind == "old" and not os.path.lexists(leftover.place):
                os.rename(leftover.path, leftover.place)
                sync_directory(parent)
            else:
                remove_directory(leftover.path, place=leftover.place)


def settled(path: Path) -> Path | None:
    """Where a reader finds the directory `path` even in the middle of its replacement, or None."""
    for _ in range(20):
        if path.is_dir():
            return path
        aside = [item for item in leftovers(path.parent, path.name) if item.kind == "old"]
        if not aside or not aside[0].is_alive():
            break
        time.sleep(0.05)  # a living writer needs only a moment between the two renames
    return aside[0].path if aside else None
