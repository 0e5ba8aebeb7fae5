"""Byte streams that compute the SHA-256 of what passes through them, chunk by chunk.

A second thread for the hash was tried: it takes more processor time and never less of the clock's.
"""

import hashlib
from io import FileIO
from typing import Protocol

from nmt.errors import IntegrityError

CHUNK = 1 << 20  # what was hashed is still in the cache when it is copied


class ByteSink(Protocol):
    """What a writer of a file is given."""

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Take all of `data`, return its length in bytes."""


class HashingWriter:
    """Writes to a file all that it is given and keeps count and hash of it."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Take all of `data`, return its length in bytes; the caller may reuse the buffer."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), CHUNK):
            chunk = view[start : start + CHUNK]
            self._hash.update(chunk)
            written = 0
            while written < len(chunk):
                written += self._file.write(chunk[written:]) or 0
        self.size += len(view)
        return len(view)

    def hexdigest(self) -> str:
        """The SHA-256 of everything so far, 64 hexadecimal digits."""
        return self._hash.hexdigest()


class HashingReader:
    """Reads a file of known size and, unless told otherwise, hashes what it reads."""

    def __init__(self, file: FileIO, name: str, size: int, *, hashed: bool) -> None:
        self._file = file
        self._hash = hashlib.sha256() if hashed else None
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
            if self._hash is not None:
                self._hash.update(chunk)
            self.remaining -= len(chunk)

    def read(self, count: int) -> bytes:
        """Exactly `count` bytes."""
        if count > self.remaining:
            raise IntegrityError(f"{self.name}: ends too early")
        data = bytearray(count)
        self.readinto(memoryview(data))
        return bytes(data)

    def drain(self) -> None:
        """Read the rest for its hash."""
        buffer = memoryview(bytearray(min(CHUNK, self.remaining)))
        while self.remaining:
            self.readinto(buffer[: self.remaining])

    def hexdigest(self) -> str:
        """The SHA-256 of everything read so far."""
        assert self._hash is not None, "a reader that does not hash"
        return self._hash.hexdigest()
