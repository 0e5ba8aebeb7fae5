"""Small model directories for tests, and ways to harm them."""

import errno
import hashlib
import os
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.checkpoint.model_directory import model_files, model_for
from nmt.config.config import Config
from nmt.config.loading import parse_config
from nmt.data.codec import Codec
from nmt.model.transformer import Transformer
from nmt.storage.directories import Writer, bytes_writer, json_writer, write_directory
from nmt.storage.manifest import MANIFEST, FileEntry, encode_manifest

PAIRS = [("the old man sees a dog", "der alte Mann sieht einen Hund"), ("a dog", "ein Hund")]


def small_config(directory: Path, *, model: str = "", seed: int = 1) -> Config:
    """A configuration of a model of a few thousand weights; `model` adds keys to that section."""
    text = f"""
run_dir: {directory / "run"}
seed: {seed}
data:
  source_language: en
  target_language: de
  train: {{source: train.en, target: train.de}}
  validation: {{source: valid.en, target: valid.de}}
  subword: {{kind: none, joint: false}}
model: {{dim: 16, heads: 2, encoder_layers: 1, decoder_layers: 1, feed_forward_dim: 32{model}}}
"""
    return parse_config(text, name="small.yaml", directory=directory)


def small_codec(config: Config) -> Codec:
    """A codec of a dozen words."""
    return Codec.learn(config.data, PAIRS)


def small_transformer(config: Config, codec: Codec, *, seed: int) -> Transformer:
    """A model with random weights, in evaluation mode."""
    torch.manual_seed(seed)
    return model_for(config.model, codec).eval()


def small_files(directory: Path, *, seed: int, model: str = "") -> dict[str, Writer]:
    """The files of a whole model with random weights."""
    config = small_config(directory, model=model)
    codec = small_codec(config)
    weights = small_transformer(config, codec, seed=seed).state_dict()
    return {**model_files(config, codec, weights), "state.json": json_writer({"step": seed})}


def write_model(path: Path, *, seed: int, model: str = "") -> Path:
    """A model directory with random weights; returns `path`."""
    write_directory(path, small_files(path.parent, seed=seed, model=model))
    return path


def plain_files(seed: int, *, size: int = 300) -> dict[str, Writer]:
    """Files that stand for a checkpoint where only the bytes matter."""
    data = random.Random(seed).randbytes(size)
    return {
        "model.safetensors": bytes_writer(data),
        "optimizer.safetensors": bytes_writer(data[::-1]),
        "state.json": json_writer({"step": seed}),
    }


def content(path: Path) -> dict[str, bytes]:
    """Every file below a directory by its relative path."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def leftover_names(path: Path) -> list[str]:
    """Temporary directories in a directory."""
    return [name for name in os.listdir(path) if name.startswith(".nmt-")]


def rewrite(path: Path, change: Callable[[bytearray], bytearray]) -> None:
    """Change a file in place, in a way that its times tell."""
    path.write_bytes(change(bytearray(path.read_bytes())))
    later = path.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(later, later))


def flip_bit(path: Path, bit: int) -> None:
    """Flip one bit of a file."""

    def change(data: bytearray) -> bytearray:
        data[bit // 8] ^= 1 << bit % 8
        return data

    rewrite(path, change)


def truncate(path: Path, size: int) -> None:
    """Cut a file."""
    rewrite(path, lambda data: data[:size])


def zero_page(path: Path, start: int, length: int) -> None:
    """Overwrite a stretch of a file, which must not be all zeros, with zeros."""

    def change(data: bytearray) -> bytearray:
        stretch = data[start : start + length]
        assert any(stretch)
        data[start : start + length] = bytes(len(stretch))
        return data

    rewrite(path, change)


def reseal(path: Path) -> None:
    """Write a manifest that agrees with whatever is there, as an attacker would."""
    entries = {}
    for file in path.iterdir():
        if file.name != MANIFEST:
            data = file.read_bytes()
            entries[file.name] = FileEntry(len(data), hashlib.sha256(data).hexdigest())
    (path / MANIFEST).write_bytes(encode_manifest(entries))


class Crash(BaseException):
    """The process is gone."""


OPERATIONS = ("mkdir", "rename", "fsync", "unlink", "rmdir")


@contextmanager
def interfere(operate: Callable[[int], None]) -> Iterator[list[str]]:
    """Call `operate(index)` before each operation on the disk; yields the list of their names."""
    done: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            original = getattr(os, name)

            def instead(
                *arguments: Any, name: str = name, original: Any = original, **options: Any
            ) -> Any:
                done.append(name)
                operate(len(done) - 1)
                return original(*arguments, **options)

            patch.setattr(os, name, instead)
        yield done


@contextmanager
def crash_at(operation: int) -> Iterator[list[str]]:
    """From that operation on the disk nothing happens any more, not even tidying up."""

    def operate(index: int) -> None:
        if index >= operation:
            raise Crash

    with interfere(operate) as done, suppress(Crash):
        yield done


@contextmanager
def refuse_at(operation: int, number: int) -> Iterator[list[str]]:
    """One operation on the disk fails with an error number."""

    def operate(index: int) -> None:
        if index == operation:
            raise OSError(number, os.strerror(number))

    with interfere(operate) as done:
        yield done


DISK_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EROFS,
    errno.EIO,
    errno.EFBIG,
    errno.EXDEV,
    errno.EMFILE,
)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes, which is how a disk looks that fills up meanwhile."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def quick_directory(path: Path) -> Path:
    """A directory in memory if there is such a file system: syncing costs nothing there."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 1 << 28:
        return memory
    return path
