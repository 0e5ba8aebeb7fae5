"""The directory of prepared data on disk: locked while it is made, replaced whole, never in part.

Beside DIR there may be DIR.lock (kept for ever), DIR.partial (being built, or left by a process
that died) and, for a moment, DIR.old (the one that is being replaced).
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt.data.corpus import MANIFEST, file_sha256, read_manifest
from nmt.errors import DataError, StorageError

logger = logging.getLogger(__name__)

FORMAT = "nmt prepared data, version 1"
NEW_MANIFEST = f"{MANIFEST}.new"  # for a moment, while it is written
NOT_WRITABLE = (errno.EACCES, errno.EROFS, errno.EPERM)


def beside(directory: Path, suffix: str) -> Path:
    """A path next to the directory, on the same file system."""
    return directory.with_name(f"{directory.name}.{suffix}")


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[bool]:
    """Keep other processes from preparing `directory`, waiting for one that does.

    Yields false, without a lock, where nothing can be written: data on a read-only disk can still
    be used. The lock ends with the process, however that ends.
    """
    path = beside(directory, "lock")
    descriptor = -1
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise StorageError(f"{path}: cannot be written ({error.strerror})") from error
    if descriptor < 0:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("waiting for another process that prepares %s", directory)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield True
    finally:
        os.close(descriptor)


def clean_up(directory: Path) -> None:
    """Undo what a process that died left behind; call it with the lock held."""
    partial, old = beside(directory, "partial"), beside(directory, "old")
    if old.exists() and not directory.exists():
        old.rename(directory)  # died between the two renames of `replace`
    for leftover in (partial, old):
        if leftover.exists():
            logger.info("removing %s, left by a process that was killed", leftover)
            shutil.rmtree(leftover)


def check_replaceable(directory: Path) -> None:
    """Raise DataError when `directory` holds anything but prepared data: that is not ours."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise DataError(f"{directory}: expected a directory for prepared data, got a file")
    names = {path.name for path in directory.iterdir()}
    if not names:
        return
    advice = "choose another data.prepared_dir, or delete it"
    if MANIFEST not in names:
        raise DataError(f"{directory}: holds files that are no prepared data; {advice}")
    manifest = read_manifest(directory)
    foreign = names - {MANIFEST, NEW_MANIFEST, *manifest["files"]}
    if foreign:
        message = f"{directory}: holds {sorted(foreign)[0]}, which is no prepared data"
        raise DataError(f"{message}; {advice}")


def write_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest whole or not at all, and make it and its directory durable."""
    path = directory / MANIFEST
    temporary = directory / NEW_MANIFEST
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(directory)


def sync(path: Path) -> None:
    """Force a file or a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(directory: Path, partial: Path) -> None:
    """Put the finished `partial` in the place of `directory`; call it with the lock held."""
    old = beside(directory, "old")
    if directory.exists():
        directory.rename(old)
    partial.rename(directory)
    sync(directory.parent)
    if old.exists():
        shutil.rmtree(old)


def describe_inputs(roles: Mapping[str, Sequence[Path]]) -> list[dict[str, Any]]:
    """Path, size and time of every input file, in order; DataError when one cannot be read."""
    inputs = []
    for role, paths in roles.items():
        for path in paths:
            try:
                status = path.stat()
            except OSError as error:
                raise DataError(f"{path}: cannot be read ({error.strerror})") from None
            if not stat.S_ISREG(status.st_mode):
                kind = "a directory" if stat.S_ISDIR(status.st_mode) else "a pipe or device"
                raise DataError(f"{path}: expected a regular file, got {kind}")
            inputs.append(
                {
                    "role": role,
                    "path": str(path),
                    "size": status.st_size,
                    "modified_ns": status.st_mtime_ns,
                }
            )
    return inputs


def hash_inputs(inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same descriptions with the SHA-256 of each file."""
    return [{**entry, "sha256": file_sha256(Path(entry["path"]))} for entry in inputs]


def changed_input(
    recorded: Sequence[Mapping[str, Any]], inputs: Sequence[Mapping[str, Any]]
) -> str | None:
    """Which input is not the one that was recorded, None when all are.

    Equal size and time are believed; a file of equal size but another time or place is read.
    """
    if [entry["role"] for entry in recorded] != [entry["role"] for entry in inputs]:
        return "the number of input files"
    for before, now in zip(recorded, inputs, strict=True):
        if before == {**now, "sha256": before["sha256"]}:
            continue
        if before["size"] != now["size"] or before["sha256"] != file_sha256(Path(now["path"])):
            return str(now["path"])
    return None


def record_inputs(
    directory: Path, manifest: Mapping[str, Any], inputs: Sequence[Mapping[str, Any]]
) -> None:
    """Note the times and places of unchanged inputs, so that the next start need not read them."""
    recorded = [
        {**now, "sha256": before["sha256"]}
        for now, before in zip(inputs, manifest["inputs"], strict=True)
    ]
    if recorded != manifest["inputs"]:
        write_manifest(directory, {**manifest, "inputs": recorded})


def check_sizes(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Raise DataError, naming the file, when one is missing or has not its recorded size."""
    for name, entry in manifest["files"].items():
        path = directory / name
        if not path.is_file() or path.stat().st_size != entry["size"]:
            raise DataError(f"{path}: expected a file of {entry['size']} bytes")


def changed_settings(recorded: Mapping[str, Any], settings: Mapping[str, Any]) -> str | None:
    """Which settings differ, as `key: old -> new`; None when none does."""
    changes = [
        f"{key}: {recorded.get(key)} -> {settings.get(key)}"
        for key in {**recorded, **settings}
        if recorded.get(key) != settings.get(key)
    ]
    return ", ".join(changes) or None
