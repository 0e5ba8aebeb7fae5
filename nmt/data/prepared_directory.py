"""The directory of prepared data: whether it is up to date, and whether it may be replaced.

It is a sealed directory: its manifest has the SHA-256 of each file, and describes the input text
and the settings they were made from. The lock of DIR is DIR.lock.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt.data.text import regular_file_status
from nmt.errors import DataError, IntegrityError
from nmt.storage.files import replace_file
from nmt.storage.hashing import bytes_sha256, file_sha256
from nmt.storage.manifest import MANIFEST, FileEntry, Manifest, encode_manifest, read_manifest


def read_about(directory: Path) -> Manifest:
    """The manifest of prepared data; no other file is read."""
    if not (directory / MANIFEST).exists():
        raise DataError(
            f"{directory}: expected prepared data, found no {MANIFEST}; run nmt-prepare"
        )
    with advised(directory):
        manifest = read_manifest(directory)
        # Manifests of earlier versions have a digest of all hashes, but none of themselves.
        expected = fingerprint(manifest.files)
        if manifest.about.get("fingerprint", expected) != expected:
            raise IntegrityError(f"{directory / MANIFEST}: damaged")
    if not isinstance(manifest.about.get("corpora"), dict):
        raise DataError(f"{directory / MANIFEST}: expected the description of prepared data")
    return manifest


@contextlib.contextmanager
def advised(directory: Path) -> Iterator[None]:
    """Add to the error for damaged data what to do about it."""
    try:
        yield
    except IntegrityError as error:
        raise IntegrityError(f"{error}; delete {directory} and run nmt-prepare again") from error


def fingerprint(files: Mapping[str, FileEntry]) -> str:
    """A digest of the names and hashes of all files."""
    lines = [f"{name} {entry.sha256}\n" for name, entry in sorted(files.items())]
    return bytes_sha256("".join(lines).encode())


def check_replaceable(directory: Path) -> None:
    """Raise DataError if `directory` holds anything but prepared data."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise DataError(f"{directory}: expected a directory for prepared data, got a file")
    names = {path.name for path in directory.iterdir()}
    ours = {MANIFEST, *read_manifest(directory).files} if MANIFEST in names else set()
    if foreign := names - ours:
        raise DataError(
            f"{directory}: holds {min(foreign)}, which is no prepared data; "
            "choose another data.prepared_dir, or delete it"
        )


def describe_inputs(roles: Mapping[str, Sequence[Path]]) -> list[dict[str, Any]]:
    """The path, size and time of each input file, in order; raises DataError if one is missing."""
    inputs = []
    for role, paths in roles.items():
        for path in paths:
            try:
                status = regular_file_status(path)
            except DataError as error:
                raise DataError(f"data.{role}: {error}") from None
            facts = {"size": status.st_size, "modified_ns": status.st_mtime_ns}
            inputs.append({"role": role, "path": str(path), **facts})
    return inputs


def input_sha256(entry: Mapping[str, Any]) -> str:
    """The SHA-256 of an input file; raises DataError if it cannot be read."""
    try:
        return file_sha256(Path(entry["path"]))
    except OSError as error:
        raise DataError(f"{entry['path']}: cannot be read ({error.strerror})") from None


def changed_input(
    recorded: Sequence[Mapping[str, Any]], inputs: Sequence[Mapping[str, Any]]
) -> str | None:
    """The first input that differs from the recorded one, or None.

    A file with the same size, time and path is not read again. One with the same size but another
    time or path is compared by its hash.
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
    """Record the new times and paths of unchanged inputs, so that the next start is fast."""
    recorded = [
        {**now, "sha256": before["sha256"]}
        for now, before in zip(inputs, manifest.about["inputs"], strict=True)
    ]
    if recorded != manifest.about["inputs"]:
        about = {**manifest.about, "inputs": recorded}
        replace_file(directory / MANIFEST, encode_manifest(manifest.files, about))


def changed_settings(recorded: Mapping[str, Any], settings: Mapping[str, Any]) -> str | None:
    """The settings that differ, as `key: old -> new`, or None."""
    changes = [
        f"{key}: {recorded.get(key)} -> {settings.get(key)}"
        for key in {**recorded, **settings}
        if recorded.get(key) != settings.get(key)
    ]
    return ", ".join(changes) or None
