"""The directory of prepared data: whether it is up to date, and whether it may be replaced.

It is a sealed directory: its manifest has the SHA-256 of each file, and describes the input text
and the settings they were made from. The lock of DIR is DIR.lock.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt.data.text import regular_file_status
from nmt.errors import DataError, IntegrityError, StorageError
from nmt.storage.files import replace_file
from nmt.storage.hashing import bytes_sha256, file_sha256
from nmt.storage.manifest import MANIFEST, FileEntry, Manifest, encode_manifest, read_manifest

logger = logging.getLogger(__name__)


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


def record_use(directory: Path, run_dir: Path, inputs: Sequence[Mapping[str, Any]]) -> None:
    """Record the run that uses the data, and the new times and paths of unchanged inputs.

    The data of a recorded run stays, and inputs with recorded times need not be read again.
    """
    manifest = read_about(directory)
    recorded = [
        {**now, "sha256": before["sha256"]}
        for now, before in zip(inputs, manifest.about["inputs"], strict=True)
    ]
    about = {**manifest.about, "inputs": recorded, "runs": runs_with(directory, run_dir)}
    if about != manifest.about:
        try:
            replace_file(directory / MANIFEST, encode_manifest(manifest.files, about))
        except StorageError as error:
            logger.warning("%s; the data can be used all the same", error)


def runs_with(directory: Path, run_dir: Path) -> list[str]:
    """The record of the runs that have used the data, and of one more.

    Paths are relative to the data, so that a copy of it is not taken for that of the same runs.
    """
    own = os.path.realpath(run_dir)
    if Path(own).drive == directory.drive:
        own = os.path.relpath(own, directory)
    return sorted({*recorded_runs(directory), own})


def recorded_runs(directory: Path) -> list[str]:
    """The record of the runs that have used the data, if there is data.

    Data of earlier versions has no record. It may be that of the run in whose directory it is.
    """
    if not (directory / MANIFEST).exists():
        return []
    runs: list[str] = read_about(directory).about.get("runs", [os.pardir])
    return runs


def begun_runs(directory: Path) -> list[Path]:
    """The runs with a checkpoint that have used the data."""
    runs = (Path(os.path.normpath(directory / name)) for name in recorded_runs(directory))
    return [run for run in runs if has_begun(run)]


def has_begun(run_dir: Path) -> bool:
    """Whether a run has a checkpoint."""
    return any((run_dir / "checkpoints").glob("step-*"))


def changed_settings(recorded: Mapping[str, Any], settings: Mapping[str, Any]) -> str | None:
    """The settings that differ, as `key: old -> new`, or None."""
    changes = [
        f"{key}: {recorded.get(key)} -> {settings.get(key)}"
        for key in {**recorded, **settings}
        if recorded.get(key) != settings.get(key)
    ]
    return ", ".join(changes) or None
