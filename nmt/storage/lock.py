"""One process at a time may write to a run directory."""

import errno
import fcntl
import json
import os
import socket
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nmt.errors import LockedError, StorageError
from nmt.storage.files import make_directories, storage_errors

LOCK = ".lock"
PATIENCE = 1.0  # seconds: a process that is just ending may still hold the lock


class Descriptor:
    """An open file that counts as ours alone."""

    def __init__(self, number: int) -> None:
        self.number = number
        held.add(self)

    def close(self) -> None:
        """Close the file, which gives up its lock."""
        held.discard(self)
        os.close(self.number)


held: "weakref.WeakSet[Descriptor]" = weakref.WeakSet()


def forget_in_child() -> None:
    """A forked child (a data worker, say) that outlives us must not keep our locks alive."""
    for descriptor in list(held):
        descriptor.close()


os.register_at_fork(after_in_child=forget_in_child)


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold the run directory; a LockedError names the process that holds it already.

    The kernel frees the lock when its holder dies, however it dies; the file itself stays.
    """
    with storage_errors(run_dir):
        make_directories(run_dir)
        path = run_dir / LOCK
        descriptor = Descriptor(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
    process = os.getpid()
    try:
        acquire(descriptor.number, path)
        with storage_errors(path):
            os.ftruncate(descriptor.number, 0)
            owner = {"pid": process, "host": socket.gethostname()}
            os.pwrite(descriptor.number, json.dumps(owner).encode(), 0)
        yield
    finally:
        if os.getpid() == process:
            descriptor.close()


def acquire(descriptor: int, path: Path) -> None:
    """Take the lock, waiting a moment at most."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise StorageError(f"{path}: cannot be locked ({error.strerror})") from error
        if time.monotonic() > deadline:
            raise LockedError(
                f"{path.parent}: in use by {owner_of(descriptor)}; "
                "wait for it to end, or choose another run_dir"
            )
        time.sleep(0.05)


def owner_of(descriptor: int) -> str:
    """Who holds the lock, as far as the file tells."""
    try:
        match json.loads(os.pread(descriptor, 4096, 0)):
            case {"pid": int(pid), "host": str(host)}:
                return f"process {pid} on {host}"
    except (OSError, ValueError):
        pass
    return "another process"
