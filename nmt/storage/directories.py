"""Directories that appear whole or not at all, whenever the process or the machine dies.

A new directory is built beside its place under the name `.nmt-new-...`: each file is written and
synced, the manifest last, then the directory; only then is it renamed to its place, and the parent
is synced. To replace a directory, the old one is first renamed to `.nmt-old-...`; a crash before
the next rename leaves no directory in place but two complete ones beside it, and `recover` (or a
reader, by `settled`) takes the old one. A directory to be deleted is first renamed to
`.nmt-trash-...`, so that no half-deleted one ever stands in a place that counts.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nmt.storage.files import (
    TemporaryKind,
    host_digest,
    make_directories,
    storage_errors,
    sync_directory,
    sync_file,
    temporary_path,
)
from nmt.storage.hashing import file_sha256
from nmt.storage.manifest import MANIFEST, FileEntry, encode_manifest, is_plain_name

Writer = Callable[[Path], object]  # creates the file at the path it is given

TEMPORARY = re.compile(
    r"\.nmt-(?P<kind>new|old|trash)-(?P<name>.+)\.(?P<host>[0-9a-f]{8})\.(?P<pid>\d+)\.[0-9a-f]{8}"
)


def bytes_writer(data: bytes) -> Writer:
    """A writer of fixed content."""
    return lambda path: path.write_bytes(data)


def json_writer(value: Any) -> Writer:
    """A writer of readable JSON; Python's floats survive it bit for bit."""
    return bytes_writer((json.dumps(value, indent=1) + "\n").encode())


def write_directory(path: Path, files: Mapping[str, Writer]) -> None:
    """Create the directory `path`, which must not exist (or be empty), with a manifest."""
    with new_directory(path) as temporary:
        write_files(temporary, files)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """A directory to write files into, which becomes `path` at the end unless that exists."""
    with storage_errors(path), built_directory(path) as temporary:
        yield temporary
        seal(temporary)
        os.rename(temporary, path)
        sync_directory(path.parent)


def install_directory(temporary: Path, path: Path) -> None:
    """Sync all that is in a finished directory without a manifest, and rename it to its place."""
    for inside in sorted(temporary.rglob("*")):
        sync_file(inside)
    sync_directory(temporary)
    os.rename(temporary, path)
    sync_directory(path.parent)


def replace_directory(path: Path, files: Mapping[str, Writer]) -> None:
    """Create the directory `path` with a manifest in the place of the one that may be there."""
    with replaced_directory(path, {}) as temporary:
        write_files(temporary, files)


@contextmanager
def replaced_directory(path: Path, about: Mapping[str, Any]) -> Iterator[Path]:
    """A new directory to write files into, which takes the place of `path` at the end.

    Its manifest also holds `about`, as it is when the context ends.
    """
    with storage_errors(path), built_directory(path) as temporary:
        yield temporary
        seal(temporary, about)
        aside = temporary_path(path, "old")
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
    trash = temporary_path(place or path, "trash")
    with suppress(OSError):
        os.rename(path, trash)
        delete_tree(trash)


@contextmanager
def built_directory(path: Path) -> Iterator[Path]:
    """An empty directory under a temporary name beside `path`, deleted unless it was renamed."""
    make_directories(path.parent)
    temporary = temporary_path(path, "new")
    os.mkdir(temporary)
    try:
        yield temporary
    finally:
        delete_tree(temporary)  # nothing is left of it after a success


def write_files(directory: Path, files: Mapping[str, Writer]) -> None:
    """Let each writer create its file."""
    for name, writer in files.items():
        writer(directory / name)


def seal(directory: Path, about: Mapping[str, Any] | None = None) -> None:
    """Sync and hash all files of a new directory, write its manifest, and sync that."""
    mode = directory.stat().st_mode & 0o666  # follows the umask, which some writers do not
    entries = {}
    for path in sorted(directory.iterdir()):
        assert is_plain_name(path.name), path
        path.chmod(mode)
        sync_file(path)
        entries[path.name] = FileEntry(path.stat().st_size, file_sha256(path))
    manifest = directory / MANIFEST
    manifest.write_bytes(encode_manifest(entries, about))
    sync_file(manifest)
    sync_directory(directory)


def delete_tree(path: Path) -> None:
    """Delete a directory, a link or a file; what cannot be deleted is left for the next start."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@dataclass(frozen=True)
class Leftover:
    """A file or directory that its writer has not brought to its end, or not yet."""

    path: Path
    kind: TemporaryKind
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


def leftovers(parent: Path, name: str | None = None) -> list[Leftover]:
    """The temporary entries that writers left in `parent` (for one `name`), newest first."""
    found = []
    try:
        names = os.listdir(parent)
    except (FileNotFoundError, NotADirectoryError):
        return []
    for entry in names:
        match = TEMPORARY.fullmatch(entry)
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
    """The place of the directory `path` for a reader, even while it is replaced, or None."""
    for _ in range(20):
        if path.is_dir():
            return path
        aside = [item for item in leftovers(path.parent, path.name) if item.kind == "old"]
        if not aside or not aside[0].is_alive():
            break
        time.sleep(0.05)  # a living writer needs only a moment between the two renames
    return aside[0].path if aside else None
