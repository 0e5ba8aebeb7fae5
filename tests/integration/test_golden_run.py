"""A run directory of the first version with state.json goes on, to the losses that it recorded.

`golden_run` was stopped by SIGTERM after update 12 of 24 (checkpoints are due every 5 updates), and
`finished_metrics.jsonl` is what the same version wrote when it was not stopped.
"""

import json
import shutil
from pathlib import Path

import pytest
from support.runs import train_in_child

from nmt.cli import average_checkpoints
from nmt.storage.records import read_records

GOLDEN = Path(__file__).parent / "golden_run"


def test_a_run_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    assert train_in_child(tmp_path / "config.yaml") == 0
    expected = list(read_records(GOLDEN / "finished_metrics.jsonl"))
    found = list(read_records(tmp_path / "run" / "metrics.jsonl"))
    for name in ("event", "update", "epoch", "tokens"):
        assert [record.get(name) for record in found] == [record.get(name) for record in expected]
    losses = [[record["loss"] for record in records] for records in (found, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    steps = [path.name for path in sorted((tmp_path / "run" / "checkpoints").iterdir())]
    assert steps == ["step-00000015", "step-00000020", "step-00000024"]


def test_its_checkpoint_of_a_signal_is_not_averaged(tmp_path: Path) -> None:
    """It does not say why it was saved; that is clear from its config."""
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    assert average_checkpoints.main(["--run", str(tmp_path / "run")]) == 0
    state = json.loads((tmp_path / "run" / "average" / "state.json").read_bytes())
    assert [row["step"] for row in state["average_of"]] == [10]
