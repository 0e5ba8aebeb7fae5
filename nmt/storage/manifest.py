"""Directories that know what they hold: MANIFEST.json names each file, its size and its SHA-256.

The manifest is in one canonical form that contains a digest of itself, so that any changed bit of
it shows. What it lists must be there and be regular files. It may also hold facts about the
content (`about`): format 2; a manifest without them is of format 1.
"""

import json
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from nmt.errors import IntegrityError, NoCheckpointError
from nmt.storage.files import open_flags
from nmt.storage.hashing import Advance, bytes_sha256, stream_sha256

MANIFEST = "MANIFEST.json"
PLAIN_FORMAT = 1
ABOUT_FORMAT = 2
# Prepared data once had a manifest of its own kind; what it says beside `files` is its `about`.
PREPARED_DATA = "nmt prepared data, version 1"
MAX_JSON_BYTES = 10_000_000
MAX_FILES = 1000

PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileEntry:
    """One file of a directory: its length in bytes and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of MANIFEST.json."""

    files: dict[str, FileEntry]
    about: dict[str, Any] = field(default_factory=dict)


def is_plain_name(name: str) -> bool:
    """Whether `name` may stand in a manifest: no separators, nothing hidden, not the manifest."""
    return PLAIN_NAME.fullmatch(name) is not None and name != MANIFEST


def encode_manifest(
    files: Mapping[str, FileEntry], about: Mapping[str, Any] | None = None
) -> bytes:
    """The one text of MANIFEST.json for these files."""
    body = manifest_body(files, about)
    return canonical_json(body | {"digest": bytes_sha256(canonical_json(body))})


def manifest_digest(files: Mapping[str, FileEntry]) -> str:
    """The SHA-256 that stands for the content of all files of a directory."""
    return bytes_sha256(canonical_json(manifest_body(files, None)))


def manifest_body(
    files: Mapping[str, FileEntry], about: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The part of the manifest that its digest covers."""
    rows = {name: {"sha256": item.sha256, "size": item.size} for name, item in files.items()}
    if not about:
        return {"format": PLAIN_FORMAT, "files": rows}
    return {"format": ABOUT_FORMAT, "files": rows, "about": dict(about)}


def canonical_json(value: Any) -> bytes:
    """One text for one value: sorted keys, fixed spaces, a final newline."""
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def parse_manifest(data: bytes, where: str) -> Manifest:
    """The content of a manifest; anything but our own exact form is an IntegrityError."""
    value = parse_json(data, where)
    form = value.get("format")
    if form not in (PLAIN_FORMAT, ABOUT_FORMAT, PREPARED_DATA) or isinstance(form, bool):
        raise IntegrityError(
            f"{where}: expected format {PLAIN_FORMAT} or {ABOUT_FORMAT}, got {form!r:.40}"
        )
    rows = value.get("files")
    if not isinstance(rows, dict) or not 0 < len(rows) <= MAX_FILES:
        raise IntegrityError(f"{where}: expected 1 to {MAX_FILES} files under 'files'")
    files = {name: parse_entry(name, item, where) for name, item in rows.items()}
    if form == PREPARED_DATA:
        return Manifest(files, {key: item for key, item in value.items() if key != "files"})
    about = value.get("about", {})
    # Comparing with the one canonical text checks the digest, the spaces and every other bit.
    if not isinstance(about, dict) or encode_manifest(files, about) != data:
        raise IntegrityError(f"{where}: damaged (it does not agree with its own digest)")
    return Manifest(files, about)


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


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a directory whose files are not looked at."""
    path = directory / MANIFEST
    with open_regular(path) as file:
        return parse_manifest(read_small(path, file), str(path))


class SealedDirectory:
    """A directory with a manifest; no content of its files is trusted before it was hashed."""

    def __init__(self, path: Path, *, exact: bool = True) -> None:
        """Check the manifest, and the names and sizes of the files but not yet their content.

        Unless `exact`, other files may lie beside those of the manifest.
        """
        self.path = path
        names = directory_names(path)
        if MANIFEST not in names:
            raise IntegrityError(f"{path / MANIFEST}: missing; this is not a complete directory")
        manifest = read_manifest(path)
        self.entries = manifest.files
        self.about = manifest.about
        self.digest = manifest_digest(manifest.files)
        found = names - {MANIFEST}
        check_names(path, found if exact else found & set(self.entries), set(self.entries))
        for name in self.entries:
            with open_regular(path / name) as file:
                self._check_size(name, file)

    def verify(self, names: Collection[str] | None = None, advance: Advance | None = None) -> None:
        """Read and hash these files (all by default); an IntegrityError names the bad one."""
        for name in self.entries if names is None else names:
            with self._opened(name) as file:
                self._check_digest(name, file, advance)

    @contextmanager
    def open(self, name: str) -> Iterator[Path]:
        """The path of one file, hashed before it is read, and not exchanged until that is done."""
        with self._opened(name) as file:
            before = os.fstat(file.fileno())
            self._check_digest(name, file)
            yield self.path / name
            try:
                after = os.stat(self.path / name, follow_symlinks=False)
            except OSError:
                after = None
            if after is None or file_identity(before) != file_identity(after):
                raise IntegrityError(f"{self.path / name}: changed while it was read")

    @contextmanager
    def _opened(self, name: str) -> Iterator[FileIO]:
        if name not in self.entries:
            raise IntegrityError(f"{self.path / name}: missing")
        with open_regular(self.path / name) as file:
            self._check_size(name, file)
            yield file

    def _check_size(self, name: str, file: FileIO) -> None:
        size, expected = os.fstat(file.fileno()).st_size, self.entries[name].size
        if size != expected:
            raise IntegrityError(
                f"{self.path / name}: damaged (expected {expected} bytes, got {size})"
            )

    def _check_digest(self, name: str, file: FileIO, advance: Advance | None = None) -> None:
        with reading(self.path / name):
            digest = stream_sha256(file, advance)
        self._compare(name, digest)

    def _compare(self, name: str, digest: str) -> None:
        if digest != self.entries[name].sha256:
            raise IntegrityError(
                f"{self.path / name}: damaged (its SHA-256 is not the one in {MANIFEST})"
            )

    def read_bytes(self, name: str) -> bytes:
        """The verified content of a small file."""
        with self._opened(name) as file:
            data = read_small(self.path / name, file)
        self._compare(name, bytes_sha256(data))
        return data

    def read_json(self, name: str) -> dict[str, Any]:
        """The verified JSON object in a small file."""
        return parse_json(self.read_bytes(name), str(self.path / name))


def file_identity(facts: os.stat_result) -> tuple[int, ...]:
    """An identity that changes when a file is written, truncated or replaced."""
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def directory_names(path: Path) -> set[str]:
    """The names of all that is in the directory `path`."""
    try:
        return set(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NoCheckpointError(f"{path}: expected a directory, found none") from error
    except OSError as error:
        raise IntegrityError(f"{path}: cannot be read ({error.strerror})") from error


def check_names(path: Path, found: set[str], expected: set[str]) -> None:
    """Raise an IntegrityError unless exactly the `expected` files are there."""
    if found != expected:
        missing = [f"{name} is missing" for name in sorted(expected - found)]
        extra = [f"{name!r} is not in {MANIFEST}" for name in sorted(found - expected)]
        problems = missing + extra
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        advice = "" if missing else "; remove what does not belong there"
        raise IntegrityError(f"{path}: {', '.join(problems[:5])}{more}{advice}")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the disk's failures to read `path`, and only these, into an IntegrityError."""
    try:
        yield
    except OSError as error:
        raise IntegrityError(f"{path}: cannot be read ({error.strerror})") from error


def read_small(path: Path, file: FileIO) -> bytes:
    """The whole content of an open file that must not be large."""
    with reading(path):
        data = file.read(MAX_JSON_BYTES + 1) or b""
    if len(data) > MAX_JSON_BYTES:
        raise IntegrityError(f"{path}: more than {MAX_JSON_BYTES} bytes is too long")
    return data


def open_regular(path: Path) -> FileIO:
    """Open a regular file to read; a link, pipe or device is an IntegrityError."""
    with reading(path):
        # Without O_NONBLOCK the mere opening of a pipe would wait for ever.
        flags = open_flags("O_RDONLY", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")
        descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IntegrityError(f"{path}: expected a regular file")
    return FileIO(descriptor, "rb")
