"""Checks of a directory that a command replaces as a whole."""

import os
from pathlib import Path

from nmt.cli.arguments import check_unsealed
from nmt.errors import IntegrityError, UserError


def check_output(path: Path, command: str, *, marker: str) -> None:
    """Reject a directory that cannot be written, or that holds files of something else.

    `marker` is a file that every directory of this command has.
    """
    check_unsealed(path)
    if not path.exists():
        parent = next(parent for parent in path.parents if parent.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise UserError(f"--output: {parent} is not a directory that can be written to")
        return
    if not path.is_dir():
        raise UserError(f"--output: {path} is a file; give a directory")
    foreign = foreign_files(path, marker)
    if foreign:
        raise UserError(
            f"--output: {path} has files that {command} did not write, such as {foreign[0]}; "
            "give a new directory"
        )


def foreign_files(path: Path, marker: str) -> list[str]:
    """The names in a directory that its manifest, which has to list `marker`, does not list."""
    from nmt.storage.manifest import MANIFEST, parse_manifest

    names = {entry.name for entry in path.iterdir()}
    try:
        ours = {MANIFEST, *parse_manifest((path / MANIFEST).read_bytes(), str(path)).files}
    except (OSError, IntegrityError):
        ours = set()
    return sorted(names - ours if marker in ours else names)
