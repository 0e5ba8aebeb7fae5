"""Paths of any characters as settings of a config."""

from pathlib import Path

import pytest

from nmt.config.loading import load_config
from nmt.recipes.variants import path_setting


@pytest.mark.parametrize(
    "name", ["a b", "exp #2", "x: y", "é😀", "a\x85b", "t\u2028u", 'quo"te', "back\\slash", "no"]
)
def test_a_path_comes_back_as_it_was(name: str) -> None:
    path = Path("/somewhere") / name
    assert load_config(Path("quickstart"), [path_setting("run_dir", path)]).run_dir == path
