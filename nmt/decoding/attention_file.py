"""Attention weights in a file: .npz for numpy, or JSON lines for everything else.

For the output line n (from 1; the lines of an n-best list count one by one) an .npz file holds the
weights of each type of attention, such as `cross/n`, float32 [layers, heads, queries, keys], and
the pieces of both sides as `source/n` and `target/n`, the end token last. A .jsonl file has one
object per line, with the keys line, source, target and the types (nested lists of the same shape).
Blank lines have empty arrays.
"""

import contextlib
import json
import zipfile
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from nmt.data.text import LineWriter
from nmt.decoding.alignment import Attention
from nmt.errors import UserError
from nmt.storage.files import replaced_file, storage_errors

DECIMALS = 6  # decimals in JSON


class NumpyAttention:
    """An .npz file that appears whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        file = self._stack.enter_context(replaced_file(self.path))
        self.archive = self._stack.enter_context(zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED))
        return self

    def write(self, number: int, attention: Attention) -> None:
        """Add the arrays of one output line."""
        for type_, weights in attention.weights.items():
            self._add(f"{type_}/{number}", weights)
        self._add(f"source/{number}", np.array(attention.source, dtype=np.str_))
        self._add(f"target/{number}", np.array(attention.target, dtype=np.str_))

    def _add(self, name: str, array: npt.NDArray[np.generic]) -> None:
        with (
            storage_errors(self.path),
            self.archive.open(f"{name}.npy", "w", force_zip64=True) as member,
        ):
            np.lib.format.write_array(member, array, allow_pickle=False)

    def __exit__(self, *exception: Any) -> None:
        with storage_errors(self.path):
            self._stack.__exit__(*exception)


class JsonAttention:
    """A .jsonl file that appears whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.writer = LineWriter(path)

    def __enter__(self) -> Self:
        self.writer.__enter__()
        return self

    def write(self, number: int, attention: Attention) -> None:
        """Add one output line."""
        texts = {"source": attention.source, "target": attention.target}
        rounded = {
            type_: np.round(weights.astype(np.float64), DECIMALS).tolist()
            for type_, weights in attention.weights.items()
        }
        self.writer.write(json.dumps({"line": number, **texts, **rounded}, ensure_ascii=False))

    def __exit__(self, *exception: Any) -> None:
        self.writer.__exit__(*exception)


AttentionWriter = NumpyAttention | JsonAttention


def attention_writer(path: Path) -> AttentionWriter:
    """The writer that a file's name asks for."""
    if path.suffix == ".npz":
        return NumpyAttention(path)
    if path.suffix == ".jsonl":
        return JsonAttention(path)
    raise UserError(f"--attention: expected a name in .npz or .jsonl, got {path}")
