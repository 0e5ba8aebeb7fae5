"""The directory of prepared data on disk: when it may be used as it is, and how it is opened.

It is a sealed directory: its manifest has the SHA-256 of each file, and says from which text and
with which settings they were made. Beside DIR lies DIR.lock.
"""

import contextlib
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt.errors import DataError, IntegrityError
from nmt.storage.files import replace_file
from nmt.storage.hashing import bytes_sha256, file_sha256
from nmt.storage.manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    encode_manifest,
    read_manifest,
)


def read_about(directory: Path) -> Manifest:
    """The manifest of prepared data, of which no other file is looked at yet."""
    if not (directory / MANIFEST).exists():
        raise DataError(
            f"{directory}: expected prepared data, found no {MANIFEST}; run nmt-prepare"
        )
    with advised(directory):
        manifest = read_manifest(directory)
        # Manifests of earlier versions have no digest of themselves, but one of all hashes.
        expected = fingerprint(manifest.files)
        if manifest.about.get("fingerprint", expected) != expected:
            raise IntegrityError(f"{directory / MANIFEST}: damaged")
    if not isinstance(manifest.about.get("corpora"), dict):
        raise DataError(f"{directory / MANIFEST}: expected the description of prepared data")
    return manifest


@contextlib.contextmanager
def advised(directory: Path) -> Iterator[None]:
    """Add to the message about damaged data how it is made good."""
    try:
        yield
    except IntegrityError as error:
        raise IntegrityError(f"{error}; delete {directory} and run nmt-prepare again") from error


def fingerprint(files: Mapping[str, FileEntry]) -> str:
    """One digest over the names and hashes of all files."""
    lines = [f"{name} {entry.sha256}\n" for name, entry in sorted(files.items())]
    return bytes_sha256("".join(lines).encode())


def check_replaceable(directory: Path) -> None:
    """Raise DataError when `directory` holds anything but prepared data: that is not ours."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise DataError(f"{directory}: expected a directory for prepared data, got a file")
    names = {path.name for path in directory.iterdir()}
    ours = {MANIFEST, *read_manifest(directory).files} if MANIFEST in names else set()
    foreign = names - ours
    if foreign:
        raise DataError(
            f"{directory}: holds {min(foreign)}, which is no prepared data; "
            "choose another data.prepared_dir, or delete it"
        )


def describe_inputs(roles: Mapping[str, Sequence[Path]]) -> list[dict[str, Any]]:
    """Path, size and time of every input file, in order; DataError when one cannot be read."""
    inputs = []
    for role, paths in roles.items():
        for path in paths:
            try:
                status = path.stat()
            except OSError as error:
                raise DataError(f"{path}: cannot be read ({error.strerror})") from None
            if not stat.S_ISREG(status.st_mode):
                kind = "a directory" if stat.S_ISDIR(status.st_mode) else "a pipe or device"
                raise DataError(f"{path}: expected a regular file, got {kind}")
            inputs.append(
                {
                    "role": role,
                    "path": str(path),
                    "size": status.st_size,
                    "modified_ns": status.st_mtime_ns,
                }
            )
    return inputs


def hash_inputs(inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same descriptions with the SHA-256 of each file."""
    return [{**entry, "sha256": input_sha256(entry)} for entry in inputs]


def input_sha256(entry: Mapping[str, Any]) -> str:
    """The SHA-256 of an input file; DataError when it cannot be read."""
    try:
        return file_sha256(Path(entry["path"]))
    except OSError as error:
        raise DataError(f"{entry['path']}: cannot be read ({error.strerror})") from None


def changed_input(
    recorded: Sequence[Mapping[str, Any]], inputs: Sequence[Mapping[str, Any]]
) -> str | None:
    """Which input is not the one that was recorded, None when all are.

    Equal size and time are believed; a file of equal size but another time or place is read.
    """
    if [entry["role"] for entry in recorded] != [entry["role"] for entry in inputs]:
        return "the number of input files"
    for before, now in zip(recorded, inputs, strict=True):
        if before == {**now, "sha256": before["sha256"]}:
            continue
        if before["size"] != now["size"] or before["sha256"] != input_sha256(now):
            return str(now["path"])
    return None


def record_inputs(directory: Path, manifest: Manifest, inputs: Sequence[Mapping[str, Any]]) -> None:
    """Note the times and places of unchanged inputs, so that the next start need not read them."""
    recorded = [
        {**now, "sha256": before["sha256"]}
        for now, before in zip(inputs, manifest.about["inputs"], strict=True)
    ]
    if recorded != manifest.about["inputs"]:
        about = {**manifest.about, "inputs": recorded}
        replace_file(directory / MANIFEST, encode_manifest(manifest.files, about))


def changed_settings(recorded: Mapping[str, Any], settings: Mapping[str, Any]) -> str | None:
    """Which settings differ, as `key: old -> new`; None when none does."""
    changes = [
        f"{key}: {recorded.get(key)} -> {settings.get(key)}"
        for key in {**recorded, **settings}
        if recorded.get(key) != settings.get(key)
    ]
    return ", ".join(changes) or None
