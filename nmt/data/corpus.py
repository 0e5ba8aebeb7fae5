"""Encoded sentence pairs on disk, written in one pass and read through memory maps.

Each side of a corpus has two files of little-endian integers. `tokens` holds the ids of all
sentences in a row, each with its final EOS. `offsets` (int64) has one entry more than there are
sentences: sentence i is tokens[offsets[i]:offsets[i + 1]]. The manifest of the directory has the
types, sizes and hashes of the files.
"""

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from nmt.data.ragged import Integers, Ragged
from nmt.data.text import SIDES, Side
from nmt.errors import DataError, IntegrityError
from nmt.storage.hashing import file_sha256
from nmt.storage.manifest import MANIFEST, SealedDirectory, file_identity, reading

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
    """Appends encoded pairs to the four files of a corpus, in bounded memory."""

    def __init__(self, directory: Path, name: str, token_types: Mapping[Side, str]) -> None:
        self.pairs = 0
        self._num_tokens: dict[Side, int] = dict.fromkeys(SIDES, 0)
        self._types = {side: np.dtype(token_types[side]).newbyteorder("<") for side in SIDES}
        self._tokens = {side: new_file(directory / tokens_name(name, side)) for side in SIDES}
        self._offsets = {side: new_file(directory / offsets_name(name, side)) for side in SIDES}
        for file in self._offsets.values():
            file.write(np.zeros(1, dtype="<i8").tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for file in (*self._tokens.values(), *self._offsets.values()):
            file.close()

    def append(self, tokens: Mapping[Side, Tokens], lengths: Mapping[Side, Integers]) -> None:
        """Add pairs: for each side the ids of all sentences in a row, and their lengths."""
        assert len(lengths["source"]) == len(lengths["target"])
        for side in SIDES:
            assert len(tokens[side]) == int(lengths[side].sum())
            ends = self._num_tokens[side] + np.cumsum(lengths[side], dtype="<i8")
            self._tokens[side].write(tokens[side].astype(self._types[side], copy=False).tobytes())
            self._offsets[side].write(ends.astype("<i8", copy=False).tobytes())
            self._num_tokens[side] += len(tokens[side])
        self.pairs += len(lengths["source"])

    def describe(self) -> dict[str, Any]:
        """The entry of the corpus in the manifest."""
        sides: dict[str, Any] = {
            side: {"tokens": self._num_tokens[side], "type": self._types[side].name}
            for side in SIDES
        }
        return {"pairs": self.pairs, **sides}


def new_file(path: Path) -> BinaryIO:
    """A new file with a large write buffer."""
    return path.open("xb", buffering=1 << 20)


class EncodedCorpus:
    """Memory-mapped sentence pairs of a prepared directory.

    Opening a corpus checks sizes only; `SealedDirectory.verify` and `check_content` check the rest.
    """

    def __init__(self, sealed: SealedDirectory, name: str) -> None:
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
            raise IntegrityError(f"{path}: expected {count} integers of {kind.itemsize} bytes")
        if count == 0:
            raise IntegrityError(f"{path}: empty")
        with reading(path), path.open("rb") as file:
            self._states[file_name] = file_identity(os.fstat(file.fileno()))
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(mapped) != count * kind.itemsize:
            raise IntegrityError(f"{path}: changed while it was opened")
        self._maps[file_name] = mapped
        # A plain array: slices of numpy's memmap class are slower.
        return np.frombuffer(mapped, dtype=kind.newbyteorder("<"))

    def check_content(self) -> None:
        """Raise IntegrityError unless offsets rise within the tokens and all ids are known.

        This also finds files that match their hashes but were wrong when they were written.
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
        """[pairs] the length of each source sentence with EOS, computed at each access."""
        return np.diff(self._offsets["source"])

    @property
    def target_lengths(self) -> Integers:
        """[pairs] the length of each target sentence with EOS, computed at each access."""
        return np.diff(self._offsets["target"])

    def padded(
        self, side: Side, indices: npt.NDArray[np.integer[Any]], *, padding: int
    ) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """The ids of sentences, padded at the end [B, L], and the mask of real tokens [B, L]."""
        self._check_present()
        starts = self._offsets[side][indices]
        lengths = self._offsets[side][indices + 1] - starts
        longest = int(lengths.max(initial=0))
        # Files that change while they are in use must not cause a crash or gigabytes of padding.
        if (starts < 0).any() or (lengths < 0).any() or longest > len(self._tokens[side]):
            raise IntegrityError(self._wrong(side, "offsets that do not fit its tokens"))
        columns = np.arange(longest)
        visible = columns < lengths[:, None]
        # Positions after a sentence read the next one (or the last token of the file) and are
        # overwritten: one gather for the whole batch is many times faster than a loop.
        ids = self._tokens[side].take(starts[:, None] + columns, mode="clip").astype(np.int64)
        ids[~visible] = padding
        if ids.max(initial=0) >= self._vocabulary_sizes[side]:
            raise IntegrityError(self._wrong(side, "ids beyond the vocabulary"))
        return ids, visible

    def ragged(self, side: Side, indices: npt.NDArray[np.integer[Any]]) -> Ragged:
        """The ids of sentences in a row."""
        ids, visible = self.padded(side, indices, padding=0)
        offsets = np.concatenate([[0], np.cumsum(visible.sum(axis=1))])
        return Ragged(ids[visible], offsets)

    def _check_present(self) -> None:
        """Raise DataError for a truncated file: reading the lost part would kill the process."""
        for file_name, mapped in self._maps.items():
            if mapped.size() < len(mapped):
                path = self._sealed.path / file_name
                raise DataError(f"{path}: truncated while it was in use; start again to use it")

    def check_unchanged(self) -> None:
        """Raise DataError if the content of a file is no longer the one that was opened.

        The bytes are read only if size, time or inode changed.
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
