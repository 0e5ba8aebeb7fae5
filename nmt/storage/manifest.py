"""Directories that know what they hold: MANIFEST.json names each file, its size and its SHA-256.

The manifest is in one canonical form that contains a digest of itself, so that any changed bit of
it shows; what it lists must be there, be regular files, and be all there is.
"""

import hashlib
import json
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from nmt.errors import IntegrityError, NoCheckpointError, UserError
from nmt.storage.hashing import HashingReader

MANIFEST = "MANIFEST.json"
FORMAT = 1
MAX_JSON_BYTES = 10_000_000
MAX_FILES = 1000

PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileEntry:
    """One file of a directory: its length in bytes and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


def is_plain_name(name: str) -> bool:
    """Whether `name` may stand in a manifest: no separators, nothing hidden, not the manifest."""
    return PLAIN_NAME.fullmatch(name) is not None and name != MANIFEST


def manifest_digest(entries: Mapping[str, FileEntry]) -> str:
    """The SHA-256 that stands for the whole content of a directory."""
    return hashlib.sha256(canonical_json(manifest_body(entries))).hexdigest()


def encode_manifest(entries: Mapping[str, FileEntry]) -> bytes:
    """The one text of MANIFEST.json for these files."""
    return canonical_json(manifest_body(entries) | {"digest": manifest_digest(entries)})


def manifest_body(entries: Mapping[str, FileEntry]) -> dict[str, Any]:
    """What the digest covers."""
    files = {name: {"sha256": item.sha256, "size": item.size} for name, item in entries.items()}
    return {"format": FORMAT, "files": files}


def canonical_json(value: Any) -> bytes:
    """One text for one value: sorted keys, fixed spaces, a final newline."""
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def parse_manifest(data: bytes, where: str) -> dict[str, FileEntry]:
    """The files that a manifest names; anything but our own exact form is an IntegrityError."""
    value = parse_json(data, where)
    if value.get("format") != FORMAT:
        raise IntegrityError(f"{where}: expected format {FORMAT}, got {value.get('format')!r:.40}")
    files = value.get("files")
    if not isinstance(files, dict) or not 0 < len(files) <= MAX_FILES:
        raise IntegrityError(f"{where}: expected 1 to {MAX_FILES} files under 'files'")
    entries = {name: parse_entry(name, item, where) for name, item in files.items()}
    # Comparing with the one canonical text checks the digest, the spaces and every other bit.
    if encode_manifest(entries) != data:
        raise IntegrityError(f"{where}: damaged (it does not agree with its own digest)")
    return entries


def parse_entry(name: str, item: Any, where: str) -> FileEntry:
    """One checked line of the manifest."""
    if not is_plain_name(name):
        raise IntegrityError(f"{where}: {name!r:.80} is not a plain file name")
    match item:
        case {"size": int(size), "sha256": str(sha256)}:
            if type(size) is int and size >= 0 and SHA256.fullmatch(sha256):
                return FileEntry(size, sha256)
    raise IntegrityError(f"{where}: size or SHA-256 of {name} is malformed")


def parse_json(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `data`; malformed text, repeated keys and deep nesting are errors."""
    try:
        value = json.loads(data, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{where}: malformed JSON ({error!s:.100})") from error
    if not isinstance(value, dict):
        raise IntegrityError(f"{where}: expected a JSON object, got {type(value).__name__}")
    return value


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dictionary of `pairs`, in which a key must not come twice."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("the same key twice")
    return value


class SealedDirectory:
    """A directory with a manifest; its files are checked while they are read."""

    def __init__(self, path: Path) -> None:
        """Check the manifest, and the names and sizes of the files but not yet their content."""
        self.path = path
        names = directory_names(path)
        if MANIFEST not in names:
            raise IntegrityError(f"{path / MANIFEST}: missing; this is not a complete model")
        with open_regular(path / MANIFEST) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_JSON_BYTES:
                raise IntegrityError(f"{path / MANIFEST}: {size} bytes is too long")
            data = HashingReader(file, str(path / MANIFEST), size, hashed=False).read(size)
        self.entries = parse_manifest(data, str(path / MANIFEST))
        self.digest = manifest_digest(self.entries)
        check_names(path, names - {MANIFEST}, set(self.entries))
        for name, entry in self.entries.items():
            with open_regular(path / name) as file:
                check_size(path / name, file, entry)

    def verify(self, names: Collection[str] | None = None) -> None:
        """Read and hash these files (all by default); an IntegrityError names the bad one."""
        for name in self.entries if names is None else names:
            with self.open(name):
                pass

    @contextmanager
    def open(self, name: str, *, verify: bool = True) -> Iterator[HashingReader]:
        """A reader of one file; leaving the context raises an IntegrityError for a wrong hash.

        A damaged file may first show as nonsense to whoever reads it: then, too, the error is the
        wrong hash, because that is the cause.
        """
        path = self.path / name
        if name not in self.entries:
            raise IntegrityError(f"{path}: missing")
        entry = self.entries[name]
        with open_regular(path) as file:
            check_size(path, file, entry)
            reader = HashingReader(file, str(path), entry.size, hashed=verify)
            try:
                yield reader
            except UserError as problem:
                if verify:
                    self._check_digest(reader, entry, problem)
                raise
            except OSError as error:
                raise IntegrityError(f"{path}: {error.strerror}") from error
            if verify:
                self._check_digest(reader, entry, None)

    def _check_digest(
        self, reader: HashingReader, entry: FileEntry, problem: UserError | None
    ) -> None:
        try:
            reader.drain()
        except OSError as error:
            raise IntegrityError(f"{reader.name}: {error.strerror}") from error
        if reader.hexdigest() != entry.sha256:
            raise IntegrityError(
                f"{reader.name}: damaged (its SHA-256 is not the one in {MANIFEST})"
            ) from problem

    def read_bytes(self, name: str) -> bytes:
        """The verified content of a small file."""
        with self.open(name) as reader:
            if reader.remaining > MAX_JSON_BYTES:
                raise IntegrityError(f"{reader.name}: {reader.remaining} bytes is too long")
            return reader.read(reader.remaining)

    def read_json(self, name: str) -> dict[str, Any]:
        """The verified JSON object in a small file."""
        return parse_json(self.read_bytes(name), str(self.path / name))


def directory_names(path: Path) -> set[str]:
    """The names of all that is in the directory `path`."""
    try:
        return set(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NoCheckpointError(f"{path}: expected a model directory, found none") from error
    except OSError as error:
        raise IntegrityError(f"{path}: {error.strerror}") from error


def check_names(path: Path, found: set[str], expected: set[str]) -> None:
    """Raise an IntegrityError unless exactly the `expected` files are there."""
    if found != expected:
        missing = [f"{name} is missing" for name in sorted(expected - found)]
        extra = [f"{name!r} is not in {MANIFEST}" for name in sorted(found - expected)]
        problems = missing + extra
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise IntegrityError(f"{path}: {', '.join(problems[:5])}{more}")


def check_size(path: Path, file: FileIO, entry: FileEntry) -> None:
    """Raise an IntegrityError unless `file` is as long as the manifest says."""
    size = os.fstat(file.fileno()).st_size
    if size != entry.size:
        raise IntegrityError(f"{path}: damaged (expected {entry.size} bytes, got {size})")


def open_regular(path: Path) -> FileIO:
    """Open a regular file to read; a link, pipe or device is an IntegrityError."""
    try:
        # Without O_NONBLOCK the mere opening of a pipe would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise IntegrityError(f"{path}: cannot be opened ({error.strerror})") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IntegrityError(f"{path}: expected a regular file")
    return FileIO(descriptor, "rb")
