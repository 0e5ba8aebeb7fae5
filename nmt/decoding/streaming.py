"""Reads lines as they arrive, so that they are translated before the end of the input."""

import os
import select
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from nmt.data.text import LINE_BYTES, BadLine, read_lines, read_stream
from nmt.errors import UserError

CHUNK = 1 << 16
FIRST_WINDOW = 32  # lines; small, so that the first answers come soon
LARGEST_WINDOW = 4096  # lines; sorting more of them by length gains little

Item = TypeVar("Item")


class ArrivingInput:
    """Lines of a pipe or terminal, and whether the next one is there already."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.buffer = bytearray()
        self.ended = False

    def readline(self, limit: int) -> bytes:
        """The next line with its LF, at most `limit` bytes; empty at the end of the input."""
        searched = 0
        while True:
            end = self.buffer.find(b"\n", searched, limit)
            if end >= 0 or len(self.buffer) >= limit or self.ended:
                size = end + 1 if end >= 0 else min(limit, len(self.buffer))
                line = bytes(self.buffer[:size])
                del self.buffer[:size]
                return line
            searched = len(self.buffer)
            self._fill()

    def ready(self) -> bool:
        """Whether `readline` would return without waiting."""
        searched = 0
        while not self.ended and len(self.buffer) <= LINE_BYTES:
            if self.buffer.find(b"\n", searched) >= 0:
                return True
            searched = len(self.buffer)
            if not select.select([self.descriptor], [], [], 0)[0]:
                return False
            self._fill()
        return True

    def _fill(self) -> None:
        chunk = os.read(self.descriptor, CHUNK)
        self.buffer += chunk
        self.ended = not chunk


def always() -> bool:
    """For files, which never make one wait."""
    return True


@dataclass(frozen=True)
class LineSource:
    """Lines that arrive one by one, what messages call them, and whether the next is there."""

    lines: Iterator[str | BadLine]
    name: str
    ready: Callable[[], bool] = always

    def describe(self, bad: BadLine) -> str:
        """The message about a bad line."""
        return bad.message(Path(self.name))


def open_lines(path: Path | None) -> LineSource:
    """The lines of a file or (None) standard input."""
    name = "standard input" if path is None else str(path)
    if path is not None and not is_stream(path):
        return LineSource(read_lines(path), name)
    if path is None:
        try:
            descriptor = sys.stdin.fileno()
        except (OSError, ValueError):  # no real file behind it, as in a notebook
            return LineSource(read_stream(sys.stdin.buffer, name), name)
    else:
        descriptor = os.open(path, os.O_RDONLY)
    arriving = ArrivingInput(descriptor)
    return LineSource(read_stream(cast(BinaryIO, arriving), name), name, arriving.ready)


def is_stream(path: Path) -> bool:
    """Whether a path is a pipe or a terminal, of which lines arrive one by one."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def windows(
    items: Iterator[Item], ready: Callable[[], bool], *, size: int | None = None
) -> Iterator[list[Item]]:
    """Items in groups that are worked on together.

    With a size every group but the last has that many. Without, a group ends when the next item
    would have to be waited for, and groups grow from FIRST_WINDOW to LARGEST_WINDOW. When reading
    fails, the items before come out first, and then the error.
    """
    largest = FIRST_WINDOW if size is None else size
    group: list[Item] = []
    try:
        for item in items:
            group.append(item)
            if len(group) >= largest or (size is None and not ready()):
                yield group
                group = []
                if size is None:
                    largest = min(2 * largest, LARGEST_WINDOW)
    except UserError:
        if group:
            yield group
        raise
    if group:
        yield group


def in_order(results: Iterable[tuple[int, Item]]) -> Iterator[Item]:
    """Results by their position, each as soon as all before it are there."""
    waiting: dict[int, Item] = {}
    position = 0
    for number, result in results:
        waiting[number] = result
        while position in waiting:
            yield waiting.pop(position)
            position += 1
    assert not waiting
