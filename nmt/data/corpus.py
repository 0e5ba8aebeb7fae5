"""Sentence pairs as numbers on disk: written in one pass, read through memory maps.

A side of a corpus is two files of little-endian integers: `tokens` (all sentences one after the
other, each with its final EOS) and `offsets` (int64, one more than there are sentences: sentence i
is tokens[offsets[i]:offsets[i + 1]]). The manifest beside them has their types, sizes and hashes.
"""

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self, cast

import numpy as np
import numpy.typing as npt

from nmt.errors import DataError, IntegrityError
from nmt.storage.hashing import file_sha256
from nmt.storage.manifest import MANIFEST, SealedDirectory, file_identity, reading

if TYPE_CHECKING:
    from nmt.data.batching import Batch

Side = Literal["source", "target"]
CorpusName = Literal["train", "validation"]
SIDES: tuple[Side, Side] = ("source", "target")
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


class CorpusWriter:
    """Appends encoded pairs to the four files of a corpus, in memory that does not grow."""

    def __init__(self, directory: Path, name: CorpusName, token_types: Mapping[Side, str]) -> None:
        self.name = name
        self.pairs = 0
        self.num_tokens: dict[Side, int] = dict.fromkeys(SIDES, 0)
        self._types = {side: np.dtype(token_types[side]).newbyteorder("<") for side in SIDES}
        self._tokens = {side: new_file(directory / tokens_name(name, side)) for side in SIDES}
        self._offsets = {side: new_file(directory / offsets_name(name, side)) for side in SIDES}
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

    def describe(self) -> dict[str, Any]:
        """What the manifest says of the corpus."""
        sides: dict[str, Any] = {
            side: {"tokens": self.num_tokens[side], "type": self._types[side].name}
            for side in SIDES
        }
        return {"pairs": self.pairs, **sides}


def new_file(path: Path) -> BinaryIO:
    """A file that is written in pieces."""
    return path.open("xb", buffering=1 << 20)


class EncodedCorpus:
    """Sentence pairs of a prepared directory, memory-mapped; pair i is index i on both sides.

    Opening it checks sizes; `SealedDirectory.verify` and `check_content` check all the rest.
    """

    def __init__(self, sealed: SealedDirectory, name: CorpusName) -> None:
        self._sealed = sealed
        self._states: dict[str, tuple[int, ...]] = {}
        self._maps: dict[str, mmap.mmap] = {}
        try:
            description = sealed.about["corpora"][name]
            sizes = sealed.about.get("vocabulary", {})
            self._tokens: dict[Side, Tokens] = {}
            self._offsets: dict[Side, Integers] = {}
            self._vocabulary_sizes: dict[Side, int] = {}
            for side in SIDES:
                kind, tokens = np.dtype(description[side]["type"]), int(description[side]["tokens"])
                self._tokens[side] = self._map(tokens_name(name, side), kind, tokens)
                offsets = int(description["pairs"]) + 1
                self._offsets[side] = self._map(offsets_name(name, side), np.dtype("i8"), offsets)
                self._vocabulary_sizes[side] = int(sizes.get(side, 1 << 8 * kind.itemsize))
        except (KeyError, TypeError, AttributeError) as error:
            raise IntegrityError(f"{sealed.path / MANIFEST}: incomplete ({error!r})") from None

    def _map(self, file_name: str, kind: np.dtype[Any], count: int) -> npt.NDArray[Any]:
        path = self._sealed.path / file_name
        if self._sealed.entries[file_name].size != count * kind.itemsize:
            raise IntegrityError(f"{path}: expected {count} numbers of {kind.itemsize} bytes")
        if count == 0:
            raise IntegrityError(f"{path}: empty")
        with reading(path), path.open("rb") as file:
            self._states[file_name] = file_identity(os.fstat(file.fileno()))
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(mapped) != count * kind.itemsize:
            raise IntegrityError(f"{path}: changed while it was opened")
        self._maps[file_name] = mapped
        # A plain array over the map: numpy's memmap class costs time on every slice.
        return np.frombuffer(mapped, dtype=kind.newbyteorder("<"))

    def check_content(self) -> None:
        """Raise IntegrityError unless offsets rise within the tokens, and all ids are known.

        Files that were verified by their hashes pass, unless they were made wrong.
        """
        for side in SIDES:
            tokens, offsets = self._tokens[side], self._offsets[side]
            rising = bool((offsets[1:] > offsets[:-1]).all())
            if not rising or offsets[0] != 0 or offsets[-1] != len(tokens):
                raise IntegrityError(self._wrong(side, "offsets that do not fit its tokens"))
            if int(tokens.max()) >= self._vocabulary_sizes[side]:
                raise IntegrityError(self._wrong(side, "ids beyond the vocabulary"))

    def _wrong(self, side: Side, what: str) -> str:
        return f"{self._sealed.path}: the {side} side has {what}"

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
        self._check_present()
        starts = self._offsets[side][indices]
        lengths = self._offsets[side][indices + 1] - starts
        longest = int(lengths.max(initial=0))
        # Data that changes while it is in use must not become a crash, or gigabytes of padding.
        if (starts < 0).any() or (lengths < 0).any() or longest > len(self._tokens[side]):
            raise IntegrityError(self._wrong(side, "offsets that do not fit its tokens"))
        columns = np.arange(longest)
        visible = columns < lengths[:, None]
        # Places behind a sentence read its neighbours (at the end of the file: the last token) and
        # are overwritten; one gather for the whole batch is many times faster than a loop.
        ids = self._tokens[side].take(starts[:, None] + columns, mode="clip").astype(np.int64)
        ids[~visible] = padding
        if ids.max(initial=0) >= self._vocabulary_sizes[side]:
            raise IntegrityError(self._wrong(side, "ids beyond the vocabulary"))
        return ids, visible

    def _check_present(self) -> None:
        """Raise DataError for a file that was cut: reading the lost part would kill the process."""
        for file_name, mapped in self._maps.items():
            if mapped.size() < len(mapped):
                path = self._sealed.path / file_name
                raise DataError(f"{path}: truncated while it was in use; start again to use it")

    def gather(self, indices: npt.NDArray[np.integer[Any]]) -> "Batch":
        """The pairs at `indices` as one padded batch."""
        from nmt.data.batching import make_batch  # preparing data has no need of torch

        return make_batch(self, indices)

    def check_unchanged(self) -> None:
        """Raise DataError when a file is no longer the one that was opened.

        A file that was merely touched or copied passes: then its bytes are compared.
        """
        for file_name, state in self._states.items():
            path = self._sealed.path / file_name
            try:
                now = file_identity(path.stat())
                if now == state:
                    continue
                same = path.stat().st_size == self._sealed.entries[file_name].size
                same = same and file_sha256(path) == self._sealed.entries[file_name].sha256
            except FileNotFoundError:
                raise DataError(f"{path}: removed while it was in use") from None
            if not same:
                raise DataError(f"{path}: changed while it was in use; start again to use it")
            self._states[file_name] = now
