"""The package imports, trains, resumes and translates without what only Linux or Unix has."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.runs import newest, write_run

from nmt.cli import train
from nmt.ops.environment import force_backend
from nmt.storage.lock import locked

SCRIPT = Path(__file__).parents[1] / "support" / "without_unix_names.py"


def run(*calls: list[str]) -> subprocess.CompletedProcess[str]:
    """Call commands, one after the other, in a process without the names of Unix."""
    return subprocess.run(
        [sys.executable, str(SCRIPT)],
        input="".join(f"{json.dumps(call)}\n" for call in calls),
        env={**os.environ, "NMT_BACKEND": "torch"},
        capture_output=True,
        text=True,
    )


@pytest.mark.timeout(600)  # some seconds of computing, on a machine that may be busy
def test_a_run_in_two_pieces_is_that_of_a_whole_system(tmp_path: Path) -> None:
    """It has the weights of an uninterrupted run, and its model translates."""
    whole = write_run(tmp_path / "whole")
    with force_backend("torch"):
        assert train.main(["--config", str(whole)]) == 0
    command = ["nmt.cli.train", "--config", str(write_run(tmp_path / "bare"))]
    (tmp_path / "lines").write_text("ab cde\nfgh\n", encoding="ascii")
    model, output = str(tmp_path / "bare" / "run"), tmp_path / "output"
    files = ["--input", str(tmp_path / "lines"), "--output", str(output)]
    done = run(
        [*command, "train.max_updates=12"],
        [*command, "train.max_updates=24"],
        ["nmt.cli.translate", "--model", model, *files],
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stderr.partition("\n")[0]) > 100, "modules were imported"
    assert len(output.read_text(encoding="utf-8").split("\n")) == 3
    weights = [
        (newest(tmp_path / name / "run") / "model.safetensors").read_bytes()
        for name in ("whole", "bare")
    ]
    assert weights[0] == weights[1]


@pytest.mark.timeout(600)
def test_locks_hold_with_the_calls_of_windows(tmp_path: Path) -> None:
    config = write_run(tmp_path)
    with locked(tmp_path / "run"):
        done = run(["nmt.cli.train", "--config", str(config)])
    assert done.returncode == 1
    assert f"in use by process {os.getpid()}" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("exit 5")
