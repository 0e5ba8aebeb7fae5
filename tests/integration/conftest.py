"""A finished run that several tests compare theirs with."""

from pathlib import Path

import pytest
from support.runs import fresh, train_in_child, write_run


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a finished, undisturbed run; it must not be changed."""
    directory = tmp_path_factory.mktemp("reference")
    assert train_in_child(write_run(directory)) == 0
    return directory


@pytest.fixture
def config(reference: Path, tmp_path: Path) -> Path:
    """The config of a new run on the same prepared data."""
    return fresh(reference, tmp_path)
