"""Directories in memory for the tests of this folder, because syncing a real disk takes long."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.small_models import quick_directory


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """An empty directory, in memory if that can be had."""
    with tempfile.TemporaryDirectory(dir=quick_directory(tmp_path)) as name:
        yield Path(name)
