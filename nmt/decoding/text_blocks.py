"""Blocks of consecutive lines of large files, which processes can read independently."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nmt.data.text import ARCHIVE_BEGINNINGS, BadLine, read_stream, regular_file_status
from nmt.errors import DataError

SCAN_BYTES = 1 << 22
LF = 10


@dataclass(frozen=True)
class TextBlock:
    """Some lines of a file: the byte where they begin, the lines before them, and their number."""

    offset: int
    first: int
    count: int


def cut_blocks(path: Path, num_bytes: int) -> list[TextBlock]:
    """The blocks of a file, of about `num_bytes` each; the last ends with the file."""
    blocks: list[TextBlock] = []
    start = first = offset = 0
    for chunk in scan(path, num_bytes):
        if end := chunk.rfind(b"\n") + 1:
            blocks.append(TextBlock(start, first, chunk.count(b"\n")))
            first += blocks[-1].count
            start = offset + end
        offset += len(chunk)
    if start < offset:  # the last line has no LF
        blocks.append(TextBlock(start, first, 1))
    return blocks


def matching_blocks(path: Path, blocks: Sequence[TextBlock], other: Path) -> list[TextBlock]:
    """The blocks of `path` with the same lines as `blocks`, which are all lines of `other`."""
    ends = np.array([block.first + block.count for block in blocks], dtype=np.int64)
    starts = [0]
    lines = offset = 0
    partial = False  # the file ends with a line without LF
    for chunk in scan(path, SCAN_BYTES):
        places = np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == LF)
        wanted = ends[(ends > lines) & (ends <= lines + len(places))]
        starts += (offset + places[wanted - lines - 1] + 1).tolist()
        lines += len(places)
        offset += len(chunk)
        partial = not chunk.endswith(b"\n")
    lines += partial
    expected = int(ends[-1]) if blocks else 0
    if lines != expected:
        shorter, longer = (path, other) if lines < expected else (other, path)
        raise DataError(
            f"{shorter} ends after line {min(lines, expected)}, but {longer} goes on; expected as "
            "many lines in both"
        )
    return [
        TextBlock(start, block.first, block.count)
        for start, block in zip(starts, blocks, strict=False)
    ]


def scan(path: Path, num_bytes: int) -> Iterator[bytes]:
    """The bytes of a plain file."""
    regular_file_status(path)
    with open(path, "rb", buffering=0) as stream:
        for number in itertools.count():
            chunk = stream.read(num_bytes)
            if not chunk:
                return
            if number == 0 and any(map(chunk.startswith, ARCHIVE_BEGINNINGS.values())):
                raise DataError(
                    f"{path}: --ray reads blocks from anywhere in a file, which an archive does "
                    "not allow; decompress it first"
                )
            yield chunk


def read_block(path: Path, block: TextBlock) -> Iterator[str | BadLine]:
    """The lines of a block, numbered as in the whole file."""
    with open(path, "rb") as stream:
        stream.seek(block.offset)
        lines = read_stream(stream, str(path), offset=block.offset, number=block.first)
        found = 0
        for line in itertools.islice(lines, block.count):
            found += 1
            yield line
    if found < block.count:
        raise DataError(f"{path}: became shorter while it was read")
