"""Disks that are full: real limits of the operating system, set inside the process under test."""

import contextlib
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def before_call(owner: Any, name: str, count: int, action: Any) -> None:
    """Call `action` before the `count`-th call of a method or function."""
    original = getattr(owner, name)
    calls = 0

    def wrapper(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            action()
        return original(*arguments, **named)

    setattr(owner, name, wrapper)


def limit_file_size(limit: int) -> None:
    """Refuse to let a file of this process grow beyond this many bytes; -1: no limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))


def limit_during(owner: Any, name: str, first: int, last: int, *, limit: int = 60_000) -> None:
    """Limit the size of files during the calls `first` to `last` of a method."""
    original = getattr(owner, name)
    calls = 0

    def wrapper(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if first <= calls <= last:
            limit_file_size(limit)
        try:
            return original(*arguments, **named)
        finally:
            limit_file_size(-1)

    setattr(owner, name, wrapper)


@contextlib.contextmanager
def small_disk(path: Path, *, size: str) -> Iterator[Path]:
    """A file system of its own, in memory; the test is skipped where that is not allowed."""
    path.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(directory: Path, *, leave: int = 0) -> None:
    """Fill the file system of a directory, but for this many bytes."""
    ballast = os.open(directory / "ballast", os.O_WRONLY | os.O_CREAT)
    size = os.statvfs(directory)
    left = max(size.f_bavail * size.f_frsize - leave, 0)
    with contextlib.suppress(OSError):  # no space left on device
        while left > 0:
            left -= os.write(ballast, bytes(min(left, 1 << 16)))
    os.close(ballast)


def empty(directory: Path) -> None:
    """Give back what `fill` took."""
    (directory / "ballast").unlink()
