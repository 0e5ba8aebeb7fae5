"""Search on a fake CUDA device: how often the host waits for it, and how much memory it takes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.fake_device import missing_for_fake_device

SCRIPT = Path(__file__).parents[2] / "fake_cuda" / "decoding.py"


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if (missing := missing_for_fake_device()) is not None:
        pytest.skip(missing)
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


def test_the_host_waits_once_per_step(facts: dict[str, Any]) -> None:
    assert len(facts["searches"]) == 7
    for name, found in facts["searches"].items():
        assert found["sizes"] == [8] * 5 + [4] * 5, name  # one step later than on a CPU
        [place] = found["waits"]
        assert "event at decoding/search.py" in place, name
        assert sum(found["waits"].values()) == len(found["sizes"]), name


def test_the_memory_of_a_search_is_bounded(facts: dict[str, Any]) -> None:
    assert len(facts["memory"]) == 4
    for name, found in facts["memory"].items():
        assert found["peak"] <= found["calculated"] <= 4 * found["peak"], (name, found)
