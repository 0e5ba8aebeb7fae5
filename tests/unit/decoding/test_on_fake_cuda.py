"""Search on a fake CUDA device: how often the host waits for it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "fake_cuda" / "decoding.py"


@pytest.mark.skipif(shutil.which("g++") is None, reason="the device guard is compiled with g++")
def test_the_host_waits_once_per_step(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert len(found) == 7
    for name, facts in found.items():
        assert facts["sizes"] == [8] * 5 + [4] * 5, name  # one step later than on a CPU
        assert list(facts["waits"]) == [next(iter(facts["waits"]))], name
        assert "event at decoding/search.py" in next(iter(facts["waits"])), name
        assert sum(facts["waits"].values()) == len(facts["sizes"]), name
