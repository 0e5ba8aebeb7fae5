"""Locks that the kernel frees when their holder dies, however it dies; the lock files stay."""

import errno
import importlib
import json
import logging
import os
import socket
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nmt.errors import LockedError, StorageError
from nmt.storage.directories import recover
from nmt.storage.files import make_directories, open_flags, storage_errors

logger = logging.getLogger(__name__)

LOCK = ".lock"
PATIENCE = 0.5  # seconds: a process that is just ending may still hold the lock
BUSY = (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)
BEYOND = 1 << 30  # the byte that Windows locks: others may read those before it
NOT_WRITABLE = (errno.EACCES, errno.EROFS, errno.EPERM)


class LockFile:
    """An open file that one process at a time can hold; it names the process."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        flags = open_flags("O_RDWR", "O_BINARY", *(["O_CREAT"] if create else []))
        self.path = path
        self.descriptor = os.open(path, flags, 0o666)
        self.process = os.getpid()
        opened.add(self)

    def __enter__(self) -> "LockFile":
        return self

    def __exit__(self, *_: object) -> None:
        if os.getpid() == self.process:
            self.close()

    def close(self) -> None:
        """Close the file, which gives up its lock."""
        opened.discard(self)
        os.close(self.descriptor)

    def acquire(self, *, wait: bool = False) -> bool:
        """Try to take the lock, or wait for it as long as it takes; whether it is ours now."""
        if not take_lock(self.descriptor, self.path, wait=wait):
            return False
        with storage_errors(self.path):
            os.ftruncate(self.descriptor, 0)
            owner = {"pid": os.getpid(), "host": socket.gethostname()}
            os.lseek(self.descriptor, 0, os.SEEK_SET)
            os.write(self.descriptor, json.dumps(owner).encode())
        return True

    def owner(self) -> str:
        """Who holds the lock, as far as the file tells."""
        try:
            os.lseek(self.descriptor, 0, os.SEEK_SET)
            match json.loads(os.read(self.descriptor, 4096)):
                case {"pid": int(pid), "host": str(host)}:
                    return f"process {pid} on {host}"
        except (OSError, ValueError):
            pass
        return "another process"


opened: "weakref.WeakSet[LockFile]" = weakref.WeakSet()


def close_in_child() -> None:
    """A forked child (a data worker, say) that outlives us must not keep our locks alive."""
    for lock in list(opened):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=close_in_child)


def take_lock(descriptor: int, path: Path, *, wait: bool = False) -> bool:
    """Lock an open file for this process; false when another holds it and we do not wait."""
    while True:
        try:
            lock_descriptor(descriptor, wait=wait)
            return True
        except OSError as error:
            if error.errno not in BUSY:
                raise StorageError(
                    f"{path}: this file system cannot lock files ({error.strerror}); "
                    "choose a directory on another one"
                ) from error
            if not wait:  # otherwise Windows, which waits for some seconds only, is asked again
                return False


def lock_descriptor(descriptor: int, *, wait: bool) -> None:
    """Lock an open file by the call of this system, or raise OSError."""
    try:
        import fcntl
    except ImportError:
        windows: Any = importlib.import_module("msvcrt")
        os.lseek(descriptor, BEYOND, os.SEEK_SET)
        windows.locking(descriptor, windows.LK_LOCK if wait else windows.LK_NBLCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold a directory; a LockedError names the process that holds it already."""
    with storage_errors(directory):
        make_directories(directory)
        lock = LockFile(directory / LOCK)
    with lock:
        acquire_soon(lock)
        yield


def check_free(directory: Path) -> None:
    """Raise the LockedError that `locked` would raise, before anything slow is done."""
    try:
        lock = LockFile(directory / LOCK, create=False)
    except OSError:
        return  # nobody has locked it yet, or `locked` will say what is wrong
    with lock:
        acquire_soon(lock)


def acquire_soon(lock: LockFile) -> None:
    """Take the lock, waiting a moment at most."""
    deadline = time.monotonic() + PATIENCE
    while not lock.acquire():
        if time.monotonic() > deadline:
            raise LockedError(
                f"{lock.path.parent}: in use by {lock.owner()}; "
                "wait for it to end, or choose another run_dir"
            )
        time.sleep(0.05)


@contextmanager
def locked_to_write(directory: Path) -> Iterator[bool]:
    """Keep other processes from making `directory`, waiting for one that does; undo what it left.

    Yields false, without a lock, where nothing can be written: what is on a read-only disk can
    still be used. The lock lies beside the directory, which may be replaced.
    """
    path = directory.with_name(f"{directory.name}.lock")
    lock = None
    with storage_errors(path):
        try:
            make_directories(path.parent)
            lock = LockFile(path)
        except OSError as error:
            if error.errno not in NOT_WRITABLE:
                raise
    if lock is None:
        yield False
        return
    with lock:
        if not lock.acquire():
            logger.info("waiting for %s, which makes %s", lock.owner(), directory)
            lock.acquire(wait=True)
        recover(directory.parent, name=directory.name, exclusive=True)
        yield True
