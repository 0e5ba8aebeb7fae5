"""Byte streams that compute the SHA-256 of what passes through them.

The hash of one chunk is computed in a second thread while the next chunk is on its way to or from
the disk (both leave Python's lock alone), so that verification costs next to no time.
"""

import hashlib
import itertools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from io import FileIO
from typing import Protocol

from nmt.errors import IntegrityError

CHUNK = 4 << 20
SMALL = 1 << 16  # not worth another thread's attention


class ByteSink(Protocol):
    """What a writer of a file is given."""

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Take all of `data`, return its length in bytes."""


class BackgroundHash:
    """SHA-256 in a second thread; a buffer must stay as it is until the next call returns."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._hash = hashlib.sha256()
        self._pending: Future[None] | None = None

    def update(self, data: memoryview) -> None:
        """Start to hash `data`, after what came before."""
        self.wait()
        if len(data) <= SMALL:
            self._hash.update(data)
        else:
            self._pending = self._pool.submit(self._hash.update, data)

    def wait(self) -> None:
        """Return when all buffers given so far are hashed."""
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def hexdigest(self) -> str:
        """The digest of everything so far, 64 hexadecimal digits."""
        self.wait()
        return self._hash.hexdigest()


@contextmanager
def background_hash() -> Iterator[BackgroundHash]:
    """A fresh hash; its thread starts with the first large buffer and ends with the context."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="sha256") as pool:
        yield BackgroundHash(pool)


class HashingWriter:
    """Writes to a file all that it is given and keeps count and hash of it."""

    def __init__(self, file: FileIO, digest: BackgroundHash) -> None:
        self._file = file
        self._digest = digest
        self.size = 0

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Take all of `data`, return its length in bytes; the caller may reuse the buffer."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), CHUNK):
            chunk = view[start : start + CHUNK]
            self._digest.update(chunk)
            written = 0
            while written < len(chunk):
                written += self._file.write(chunk[written:]) or 0
        self._digest.wait()
        self.size += len(view)
        return len(view)


class HashingReader:
    """Reads a file of known size and, if asked to, hashes what it reads."""

    def __init__(self, file: FileIO, name: str, size: int, digest: BackgroundHash | None) -> None:
        self._file = file
        self._digest = digest
        self.name = name
        self.remaining = size

    def readinto(self, buffer: memoryview) -> None:
        """Fill `buffer`; a file that ends before that is an IntegrityError."""
        view = buffer.cast("B")
        if len(view) > self.remaining:
            raise IntegrityError(f"{self.name}: ends too early")
        for start in range(0, len(view), CHUNK):
            chunk = view[start : start + CHUNK]
            filled = 0
            while filled < len(chunk):
                count = self._file.readinto(chunk[filled:])
                if not count:
                    raise IntegrityError(f"{self.name}: ends too early")
                filled += count
            if self._digest is not None:
                self._digest.update(chunk)
            self.remaining -= len(chunk)

    def read(self, count: int) -> bytes:
        """Exactly `count` bytes."""
        if count > self.remaining:
            raise IntegrityError(f"{self.name}: ends too early")
        data = bytearray(count)
        self.readinto(memoryview(data))
        if self._digest is not None:
            self._digest.wait()
        return bytes(data)

    def drain(self) -> None:
        """Read the rest for its hash; one buffer is filled while the other is hashed."""
        size = min(CHUNK, self.remaining)
        buffers = itertools.cycle([memoryview(bytearray(size)) for _ in range(2)])
        while self.remaining:
            self.readinto(next(buffers)[: self.remaining])
