"""Effects of options of training: patience, averaged weights, precision, too large batches."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.runs import die_at_call, newest, outcome, tiny_config, train_in_child, write_run

from nmt.data.prepare import prepare
from nmt.training import probe
from nmt.training.update import Updater


def test_patience_ends_the_run_and_it_stays_ended(tmp_path: Path) -> None:
    """A rate so low that BLEU stays where it is: two validations without a better one."""
    config = tiny_config(tmp_path, max_updates=1000, learning_rate=1e-12)
    config["validate"] = {"every": 2, "beam": 1, "metric": "bleu", "patience": 2}
    path = write_run(tmp_path, config)
    assert train_in_child(path) == 0
    state = outcome(tmp_path / "run")["state"]
    assert state["validations_since_best"] == 2
    assert state["update"] < 20
    assert json.loads((tmp_path / "run" / "result.json").read_bytes())["status"] == "finished"
    before = outcome(tmp_path / "run")
    assert train_in_child(path) == 0
    assert outcome(tmp_path / "run") == before


def test_a_score_of_another_metric_does_not_stay_the_best(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """chrF is far above BLEU: without a new start no BLEU would ever be the best."""
    config = tiny_config(tmp_path, max_updates=8, schedule={"kind": "constant", "warmup": 2})
    config["validate"] = {"every": 4, "beam": 1, "metric": "chrf"}
    path = write_run(tmp_path, config)
    assert train_in_child(path) == 0
    config["train"]["max_updates"] = 12
    config["validate"]["metric"] = "bleu"
    path = write_run(tmp_path, config)
    assert train_in_child(path) == 0
    assert "because scores differ by validate.metric: chrf -> bleu" in capfd.readouterr().err
    records = outcome(tmp_path / "run")["records"]
    (last,) = [record for record in records if record.get("update") == 12 and "bleu" in record]
    state = outcome(tmp_path / "run")["state"]
    assert (state["best_score"], state["best_update"]) == (last["bleu"], 12)
    config["decode"] = {"beam": 7}  # of nmt-translate only
    assert train_in_child(write_run(tmp_path, config)) == 0
    assert "does not count any more" not in capfd.readouterr().err


def test_another_run_may_prepare_the_directory_again_with_other_validation_text(
    tmp_path: Path,
) -> None:
    """Both have the same training text, so the open run must go on with its own references."""
    config = tiny_config(tmp_path, max_updates=8, schedule={"kind": "constant", "warmup": 2})
    config["validate"] = {"every": 4, "beam": 1, "metric": "bleu"}
    path = write_run(tmp_path, config)
    assert train_in_child(path) == 0
    undisturbed = outcome(tmp_path / "run")["records"]
    again = tmp_path / "again"
    other = write_run(again, {**config, "run_dir": str(again / "run")})
    assert train_in_child(other, partial(change_validation_text, again)) == 0
    assert (again / "prepared" / "validation.target.txt").read_text().startswith("other text")
    assert outcome(again / "run")["records"] == undisturbed


def change_validation_text(directory: Path) -> None:
    """Prepare other references after the first update, as another run would."""
    original = Updater.step

    def step(self: Updater, *arguments: Any, **options: Any) -> Any:
        text = directory / "data" / "validation.tgt"
        if "other text" not in text.read_text():
            lines = text.read_text().splitlines()
            text.write_text("".join("other text\n" for _ in lines))
            prepare(self.config)
        return original(self, *arguments, **options)

    Updater.step = step  # type: ignore[method-assign]


def test_averaged_weights_are_saved_and_resume_exactly(tmp_path: Path) -> None:
    runs = []
    for name, sabotage in (("whole", None), ("cut", partial(die_at_call, Updater, "step", 13))):
        directory = tmp_path / name
        path = write_run(directory, tiny_config(directory, ema=0.9))
        train_in_child(path, sabotage)
        assert train_in_child(path) == 0
        runs.append(directory / "run")
    assert outcome(runs[0]) == outcome(runs[1])
    averaged = load_file(newest(runs[0]) / "model.safetensors")
    weights = load_file(newest(runs[0]) / "unaveraged.safetensors")
    assert averaged.keys() == weights.keys()
    assert any(not torch.equal(averaged[name], weights[name]) for name in weights)


def test_bfloat16_learns_like_float32(tmp_path: Path) -> None:
    losses = []
    for precision in ("float32", "bfloat16"):
        directory = tmp_path / precision
        config = tiny_config(directory, precision=precision, clip_norm=1.0)
        assert train_in_child(write_run(directory, config)) == 0
        records = outcome(directory / "run")["records"]
        losses.append([record["loss"] for record in records if record["event"] == "train"])
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[1][-1] < losses[1][0]


def test_float16_needs_a_gpu(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train_in_child(write_run(tmp_path, tiny_config(tmp_path, precision="float16"))) == 2
    assert "float16" in capfd.readouterr().err


def small_memory() -> None:
    """Let batches of more than 64 positions run out of memory."""
    original = probe.loss_inputs

    def loss_inputs(batch: probe.Batch, device: torch.device) -> tuple[torch.Tensor, ...]:
        if torch.is_grad_enabled() and batch.target_input.numel() > 64:
            raise torch.OutOfMemoryError("no memory")
        return original(batch, device)

    probe.loss_inputs = loss_inputs


def test_a_batch_that_does_not_fit_is_told_with_one_that_does(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train_in_child(write_run(tmp_path), small_memory) == 2
    message = capfd.readouterr().err
    assert "train.batch_tokens=120" in message
    assert "60 fits" in message
    assert not (tmp_path / "run" / "checkpoints").exists()
