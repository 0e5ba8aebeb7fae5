"""How to tell a packed model, which only translates, from other model directories."""

from pathlib import Path

from nmt.config.start import PACKED
from nmt.errors import NoCheckpointError
from nmt.storage.manifest import MANIFEST


def is_packed(path: Path) -> bool:
    """Whether a directory is a packed model; raises if there is no directory."""
    if not path.is_dir():
        raise NoCheckpointError(f"{path}: expected a model or run directory, found none")
    return (path / PACKED).is_file() and (path / MANIFEST).is_file()
