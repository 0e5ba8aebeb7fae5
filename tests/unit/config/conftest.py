"""A valid config to change, and helpers to read changed ones."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nmt.config.config import Config
from nmt.config.loading import parse_config
from nmt.errors import ConfigError

EXAMPLE = Path(__file__).parent / "example.yaml"

SMALLEST = """\
run_dir: run
data:
  source_language: en
  target_language: de
  train: {source: a.en, target: a.de}
  validation: {source: b.en, target: b.de}
"""


@pytest.fixture
def read() -> Callable[..., Config]:
    """Reads the smallest valid config with lines added to it."""

    def read(*lines: str) -> Config:
        text = SMALLEST + "\n".join(lines) + "\n"
        return parse_config(text, name="test.yaml", directory=Path("/base"))

    return read


@pytest.fixture
def read_text() -> Callable[[str, str], Config]:
    """Reads the smallest valid config with one piece of its text replaced."""

    def read_text(old: str, new: str) -> Config:
        assert SMALLEST.count(old) == 1
        text = SMALLEST.replace(old, new)
        return parse_config(text, name="test.yaml", directory=Path("/base"))

    return read_text


@pytest.fixture
def problems_of(read: Callable[..., Config]) -> Callable[..., str]:
    """The message of the ConfigError that added lines lead to."""

    def problems_of(*lines: str) -> str:
        with pytest.raises(ConfigError) as caught:
            read(*lines)
        return str(caught.value)

    return problems_of


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes a file below a temporary folder and returns its path."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write
