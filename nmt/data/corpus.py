"""Sentence pairs as numbers on disk: written in one pass, read through memory maps.

A side of a corpus is two files of little-endian integers: `tokens` (all sentences one after the
other, each with its final EOS) and `offsets` (int64, one more than there are sentences: sentence i
is tokens[offsets[i]:offsets[i + 1]]). The manifest beside them has their types, sizes and hashes.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt

from nmt.errors import DataError

if TYPE_CHECKING:
    from nmt.data.batching import Batch

Side = Literal["source", "target"]
CorpusName = Literal["train", "validation"]
SIDES: tuple[Side, Side] = ("source", "target")
MANIFEST = "MANIFEST.json"

Integers = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


def token_type(vocabulary_size: int) -> str:
    """The smallest integer type that holds every id of a vocabulary."""
    return "uint16" if vocabulary_size <= 1 << 16 else "uint32"


def tokens_name(name: str, side: str) -> str:
    """File name of the tokens of one side."""
    return f"{name}.{side}.tokens.bin"


def offsets_name(name: str, side: str) -> str:
    """File name of the offsets of one side."""
    return f"{name}.{side}.offsets.bin"


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class HashedFile:
    """A new binary file that knows its size and SHA-256 without being read again."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=1 << 20)
        self._hash = hashlib.sha256()
        self.path = path
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def finish(self) -> dict[str, Any]:
        """Force the bytes to disk; return the manifest entry of the file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {"size": self.size, "sha256": self._hash.hexdigest()}

    def close(self) -> None:
        self._file.close()


class CorpusWriter:
    """Appends encoded pairs to the four files of a corpus, in memory that does not grow."""

    def __init__(self, directory: Path, name: CorpusName, token_types: Mapping[Side, str]) -> None:
        self.name = name
        self.pairs = 0
        self.num_tokens: dict[Side, int] = dict.fromkeys(SIDES, 0)
        self._types = {side: np.dtype(token_types[side]).newbyteorder("<") for side in SIDES}
        self._tokens = {side: HashedFile(directory / tokens_name(name, side)) for side in SIDES}
        self._offsets = {side: HashedFile(directory / offsets_name(name, side)) for side in SIDES}
        for file in self._offsets.values():
            file.write(np.zeros(1, dtype="<i8").tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in (*self._tokens.values(), *self._offsets.values()):
            file.close()

    def append(self, tokens: Mapping[Side, Tokens], lengths: Mapping[Side, Integers]) -> None:
        """Add pairs: for each side all their tokens in a row, and the length of each sentence."""
        assert len(lengths["source"]) == len(lengths["target"])
        for side in SIDES:
            assert len(tokens[side]) == int(lengths[side].sum())
            ends = self.num_tokens[side] + np.cumsum(lengths[side], dtype="<i8")
            self._tokens[side].write(tokens[side].astype(self._types[side], copy=False).tobytes())
            self._offsets[side].write(ends.astype("<i8", copy=False).tobytes())
            self.num_tokens[side] += len(tokens[side])
        self.pairs += len(lengths["source"])

    def finish(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Force all to disk; return what the manifest says of the corpus, and of its files."""
        description: dict[str, Any] = {"pairs": self.pairs}
        for side in SIDES:
            description[side] = {"tokens": self.num_tokens[side], "type": self._types[side].name}
        files = {file.path.name: file.finish() for file in self._tokens.values()}
        files |= {file.path.name: file.finish() for file in self._offsets.values()}
        return description, files


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of a prepared directory; DataError when there is none that can be read."""
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        message = f"{directory}: expected prepared data, found no {MANIFEST}; run nmt-prepare"
        raise DataError(message) from None
    except ValueError as error:
        message = f"{path}: not readable as JSON ({error}); delete {directory} and run nmt-prepare"
        raise DataError(message) from None
    parts = manifest if isinstance(manifest, dict) else {}
    if not all(isinstance(parts.get(part), dict) for part in ("corpora", "files")):
        message = f"{path}: expected the description of prepared data"
        raise DataError(f"{message}; delete {directory} and run nmt-prepare")
    return parts


@dataclass(frozen=True)
class FileState:
    """What tells at a glance whether a file is still the one that was opened."""

    size: int
    modified_ns: int
    inode: int

    @staticmethod
    def of(path: Path) -> "FileState":
        status = path.stat()
        return FileState(status.st_size, status.st_mtime_ns, status.st_ino)


class EncodedCorpus:
    """Sentence pairs of a prepared directory, memory-mapped; pair i is index i on both sides."""

    def __init__(self, directory: Path, name: CorpusName, manifest: Mapping[str, Any]) -> None:
        self.directory = directory
        self.name = name
        self._files: dict[str, Any] = {}
        self._states: dict[str, FileState] = {}
        try:
            description = manifest["corpora"][name]
            self._tokens = {
                side: cast(
                    Tokens,
                    self._map(
                        manifest,
                        tokens_name(name, side),
                        np.dtype(description[side]["type"]),
                        int(description[side]["tokens"]),
                    ),
                )
                for side in SIDES
            }
            self._offsets = {
                side: cast(
                    Integers,
                    self._map(
                        manifest,
                        offsets_name(name, side),
                        np.dtype(np.int64),
                        int(description["pairs"]) + 1,
                    ),
                )
                for side in SIDES
            }
        except (KeyError, TypeError) as error:
            message = f"{directory / MANIFEST}: incomplete ({error}); delete {directory} and rerun"
            raise DataError(message) from None

    @staticmethod
    def open(directory: Path, name: CorpusName) -> "EncodedCorpus":
        """Map a corpus; sizes are checked against the manifest (DataError names the file)."""
        return EncodedCorpus(directory, name, read_manifest(directory))

    def _map(
        self, manifest: Mapping[str, Any], file_name: str, kind: np.dtype[Any], count: int
    ) -> npt.NDArray[Any]:
        path = self.directory / file_name
        entry = manifest["files"][file_name]
        try:
            state = FileState.of(path)
        except FileNotFoundError:
            raise DataError(f"{path}: missing; run nmt-prepare again") from None
        if not state.size == entry["size"] == count * kind.itemsize:
            message = f"{path}: expected {entry['size']} bytes, found {state.size}"
            raise DataError(f"{message}; delete {self.directory} and run nmt-prepare again")
        self._files[file_name] = entry
        self._states[file_name] = state
        # A plain array over the map: numpy's memmap class costs time on every slice.
        return np.asarray(np.memmap(path, dtype=kind.newbyteorder("<"), mode="r"))

    def __len__(self) -> int:
        return len(self._offsets["source"]) - 1

    @property
    def source_lengths(self) -> Integers:
        """[pairs] tokens of every source sentence, EOS included; computed at each access."""
        return np.diff(self._offsets["source"])

    @property
    def target_lengths(self) -> Integers:
        """[pairs] tokens of every target sentence, EOS included; computed at each access."""
        return np.diff(self._offsets["target"])

    def num_tokens(self, side: Side) -> int:
        """Tokens of one side, the EOS of each sentence included."""
        return len(self._tokens[side])

    def sentence(self, side: Side, index: int) -> list[int]:
        """The ids of one sentence, its final EOS included."""
        if not 0 <= index < len(self):
            raise IndexError(f"expected an index below {len(self)}, got {index}")
        start, end = self._offsets[side][index : index + 2]
        return cast(list[int], self._tokens[side][start:end].tolist())

    def padded(
        self, side: Side, indices: npt.NDArray[np.integer[Any]], *, padding: int
    ) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Sentences as rows: ids [B, L] padded at the end, and which of them are real [B, L]."""
        starts = self._offsets[side][indices]
        lengths = self._offsets[side][indices + 1] - starts
        columns = np.arange(int(lengths.max(initial=0)))
        visible = columns < lengths[:, None]
        # Places behind a sentence read its neighbours (at the end of the file: the last token) and
        # are overwritten; one gather for the whole batch is many times quicker than a loop.
        ids = self._tokens[side].take(starts[:, None] + columns, mode="clip").astype(np.int64)
        ids[~visible] = padding
        return ids, visible

    def gather(self, indices: npt.NDArray[np.integer[Any]]) -> "Batch":
        """The pairs at `indices` as one padded batch."""
        from nmt.data.batching import make_batch  # preparing data has no need of torch

        return make_batch(self, indices)

    def check_unchanged(self) -> None:
        """Raise DataError when a file is no longer the one that was opened.

        A file that was merely touched or copied passes: then its bytes are compared.
        """
        for file_name, state in self._states.items():
            path = self.directory / file_name
            try:
                now = FileState.of(path)
            except FileNotFoundError:
                raise DataError(f"{path}: removed while it was in use") from None
            if now == state:
                continue
            if now.size != state.size or file_sha256(path) != self._files[file_name]["sha256"]:
                raise DataError(f"{path}: changed while it was in use; start again to use it")
            self._states[file_name] = now
