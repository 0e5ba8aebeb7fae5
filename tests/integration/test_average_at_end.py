"""The average that a run writes at its end, and the model that is used afterwards."""

import json
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.runs import die_at_call, tiny_config, train_in_child, write_run

from nmt.checkpoint.selection import find_model, validation_score
from nmt.checkpoint.store import CheckpointStore
from nmt.cli import average_checkpoints, train
from nmt.config.loading import load_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run."""
    directory = tmp_path_factory.mktemp("finished")
    assert train_in_child(write_run(directory)) == 0
    return directory


def average_state(run: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((run / "average" / "state.json").read_bytes())
    return state


def test_the_end_of_a_run_averages_and_measures(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished / "run"
    state = average_state(run)
    assert [row["step"] for row in state["average_of"]] == [15, 20, 24]
    scores = {name: validation_score(run / name) for name in ("average", "best")}
    assert scores["average"] is not None
    assert scores["best"] is not None
    expected = "best" if scores["best"].better_than(scores["average"]) else "average"
    assert find_model(run) == run / expected
    # The command makes the same model, and measures the same.
    again = ["--run", str(run), "--output", str(tmp_path / "again")]
    assert average_checkpoints.main(again) == 0
    assert "of best" in capsys.readouterr().err
    other = json.loads((tmp_path / "again" / "state.json").read_bytes())
    assert other["validation_score"] == pytest.approx(state["validation_score"])
    weights = [path / "model.safetensors" for path in (run / "average", tmp_path / "again")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_a_run_that_was_killed_before_its_average_makes_it(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "data", tmp_path / "data")
    config = write_run(tmp_path)
    # The first calls of `put` write `best`; the one that writes `average` never comes to its end.
    puts = sum(1 for line in best_lines(finished)) + 1
    sabotage = partial(die_at_call, CheckpointStore, "put", puts)
    assert train_in_child(config, sabotage) == -signal.SIGKILL
    assert not (tmp_path / "run" / "average").exists()
    assert train_in_child(config) == 0
    states = average_state(tmp_path / "run"), average_state(finished / "run")
    assert states[0]["validation_score"] == states[1]["validation_score"]


def best_lines(directory: Path) -> list[str]:
    """The log lines of the validations after which `best` was written."""
    log = (directory / "run" / "train.log").read_text()
    return [line for line in log.splitlines() if line.endswith("(best)")]


def test_no_average_where_none_is_wanted(tmp_path: Path) -> None:
    config = write_run(tmp_path, tiny_config(tmp_path, average_last=0))
    assert train_in_child(config) == 0
    assert not (tmp_path / "run" / "average").exists()


def test_an_earlier_run_keeps_its_cadence(finished: Path, tmp_path: Path) -> None:
    """Its checkpoints name the interval, which the config leaves open."""
    shutil.copytree(finished, tmp_path / "copy")
    settings = tiny_config(tmp_path / "copy", max_updates=36)
    del settings["train"]["save_every"]
    path = tmp_path / "copy" / "config.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert load_config(path).train.save_interval == 20
    assert train.main(["--config", str(path)]) == 0
    assert CheckpointStore(tmp_path / "copy" / "run").steps() == [30, 35, 36]


def test_an_average_without_its_data_is_not_measured(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such an average is used, as it always was."""
    shutil.copytree(finished / "run", tmp_path / "run")
    shutil.move(finished / "prepared", finished / "elsewhere")
    try:
        assert average_checkpoints.main(["--run", str(tmp_path / "run")]) == 0
    finally:
        shutil.move(finished / "elsewhere", finished / "prepared")
    assert "not measured" in capsys.readouterr().err
    assert find_model(tmp_path / "run") == tmp_path / "run" / "average"


def test_an_earlier_run_keeps_its_tokenizer_and_subwords(finished: Path, tmp_path: Path) -> None:
    """The defaults were others then: its checkpoints name them, and its config need not."""
    for name in ("data", "prepared"):
        shutil.copytree(finished / name, tmp_path / name)
    settings = tiny_config(tmp_path, max_updates=12)
    settings["data"]["tokenizer"] = "none"
    path = write_run(tmp_path, settings)
    assert train.main(["--config", str(path)]) == 0
    del settings["data"]["tokenizer"], settings["data"]["subword"]["merges"]
    settings["train"]["max_updates"] = 14
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    assert train.main(["--config", str(path)]) == 0
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["data"]
    assert (written["tokenizer"], written["subword"]["merges"]) == ("none", 20)
