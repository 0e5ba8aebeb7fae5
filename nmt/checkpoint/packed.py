"""How to tell a packed model, which only translates, from other model directories."""

from pathlib import Path

from nmt.storage.manifest import MANIFEST

PACKED = "packed.yaml"  # its description


def is_packed(path: Path) -> bool:
    """Whether a directory is a packed model."""
    return (path / PACKED).is_file() and (path / MANIFEST).is_file()
