"""SHA-256 of files and bytes, in hexadecimal.

A second thread for the hash was tried: it takes more processor time and never less wall time.
"""

import hashlib
from collections.abc import Callable
from io import FileIO
from pathlib import Path

Advance = Callable[[int], object]

HASHED_AT_ONCE = 1 << 20  # bytes: what was read is still in the cache when it is hashed


def bytes_sha256(data: bytes) -> str:
    """The SHA-256 of bytes in memory."""
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb", buffering=0) as file:
        return stream_sha256(file)


def stream_sha256(file: FileIO, advance: Advance | None = None) -> str:
    """The SHA-256 of the rest of an open file; `advance` is told the bytes of each read."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(HASHED_AT_ONCE))
    while count := file.readinto(buffer):
        digest.update(buffer[:count])
        if advance is not None:
            advance(count)
    return digest.hexdigest()
