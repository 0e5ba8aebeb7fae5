"""Training on a CUDA device that only fake tensors can be on: types, copies and waits."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "fake_cuda" / "defaults.py"


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if shutil.which("g++") is None:
        pytest.skip("the device guard is built with g++, which is not installed")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path_factory.mktemp("guard"))],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_training_is_in_bfloat16(facts: dict[str, Any]) -> None:
    assert facts["precision"] == "bfloat16"


def test_plain_attention_does_not_round_its_scores(facts: dict[str, Any]) -> None:
    """Scores in float32, the output in bfloat16."""
    assert facts["products"] == ["float32", "bfloat16"]
