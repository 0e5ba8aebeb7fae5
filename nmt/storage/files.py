"""Files that appear whole or not at all: written under another name, synced, then renamed."""

import errno
import functools
import hashlib
import operator
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

from nmt.errors import StorageError

TemporaryKind = Literal["new", "old", "trash"]


@contextmanager
def storage_errors(path: Path | str) -> Iterator[None]:
    """Turn what the operating system refuses into a StorageError that names `path`."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of a pipe has seen enough: that is no failure of storage
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(f"{path}: cannot be written ({reason})") from error


def replace_file(path: Path, data: bytes) -> None:
    """Write a small file in the place of the one that may be there."""
    with storage_errors(path), replaced_file(path) as file:
        file.write(data)


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the context ends without an error.

    The parent directory must exist. Where `path` is a link, the file it points to is replaced.
    """
    place = Path(os.path.realpath(path))
    temporary = temporary_path(place, "new")
    with storage_errors(path):
        file = open(temporary, "xb", buffering=1 << 20)  # noqa: SIM115 (closed below)
    try:
        yield file
        with storage_errors(path):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            os.replace(temporary, place)
            sync_directory(place.parent)
    finally:
        with suppress(OSError):  # a full disk refuses what is still in the buffer
            file.close()
        temporary.unlink(missing_ok=True)


def install_file(temporary: Path, path: Path) -> None:
    """Sync a finished file and rename it to its place."""
    with storage_errors(path):
        sync_file(temporary)
        os.replace(temporary, path)
        sync_directory(path.parent)


def open_flags(*names: str) -> int:
    """Flags for os.open, without those that this system does not have."""
    return functools.reduce(operator.or_, (getattr(os, name, 0) for name in names))


def sync_file(path: Path) -> None:
    """Make the content of a file survive a power cut."""
    # Windows syncs only what may be written.
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut, where the system can."""
    if os.name != "posix":
        return
    try:
        sync_file(path)
    except OSError as error:
        # Some network file systems cannot sync directories (and need not).
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def make_directories(path: Path) -> None:
    """Create `path` and its parents durably where they are missing."""
    if not path.is_dir():
        make_directories(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def host_digest() -> str:
    """Eight characters that stand for this machine."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def temporary_path(place: Path, kind: TemporaryKind) -> Path:
    """A fresh temporary name beside `place` that says which process writes."""
    suffix = f"{host_digest()}.{os.getpid()}.{secrets.token_hex(4)}"
    return place.parent / f".nmt-{kind}-{place.name}.{suffix}"
