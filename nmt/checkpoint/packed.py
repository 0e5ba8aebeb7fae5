"""How to tell a packed model, which only translates, from other model directories."""

from pathlib import Path

from nmt.errors import NoCheckpointError
from nmt.storage.manifest import MANIFEST

PACKED = "packed.yaml"  # its description


def is_packed(path: Path) -> bool:
    """Whether a directory is a packed model; raises if there is no directory."""
    if not path.is_dir():
        raise NoCheckpointError(f"{path}: expected a model or run directory, found none")
    return (path / PACKED).is_file() and (path / MANIFEST).is_file()
