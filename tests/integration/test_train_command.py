"""nmt-train when things go wrong: damage, full disks, two at once, changed settings, divergence."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import die_at_call, fresh, newest, outcome, tiny_config, train_in_child, write_run

from nmt.checkpoint.store import CheckpointStore, verify
from nmt.cli import average_checkpoints, train
from nmt.decoding.alignment import recommended_head
from nmt.training.loss import TranslationLoss
from nmt.training.update import Updater

KILLED = -signal.SIGKILL


@pytest.fixture
def half_way(reference: Path, tmp_path: Path) -> Path:
    """A directory with a run that was killed after update 12."""
    config = fresh(reference, tmp_path)
    assert train_in_child(config, partial(die_at_call, Updater, "step", 13)) == KILLED
    return tmp_path


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def test_a_damaged_newest_checkpoint_falls_back_and_still_finishes(
    reference: Path, half_way: Path
) -> None:
    flip_a_bit(newest(half_way / "run") / "optimizer.safetensors")
    assert train_in_child(half_way / "config.yaml") == 0
    assert outcome(half_way / "run") == outcome(reference / "run")


def test_no_good_checkpoint_is_exit_3_and_nothing_is_touched(
    half_way: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for path in (half_way / "run" / "checkpoints").iterdir():
        flip_a_bit(path / "model.safetensors")
    before = tree(half_way / "run")
    assert train_in_child(half_way / "config.yaml") == 3
    assert tree(half_way / "run") == before
    assert "Traceback" not in capfd.readouterr().err


def tree(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_a_second_trainer_is_turned_away(half_way: Path) -> None:
    """Within two seconds of a quiet machine, since it does not import torch first."""
    module = ["nmt.cli.train", "--config", str(half_way / "config.yaml")]
    with CheckpointStore(half_way / "run").lock():
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", *module], capture_output=True, text=True
        )
    assert done.returncode == 5
    assert f"process {os.getpid()} on " in done.stderr.strip().split("\n")[-1]
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: c["model"].update(dim=32), "model.dim"),
        (lambda c: c["model"]["attention"].update(cross="softmax"), "model.attention.cross"),
        (lambda c: c["model"].update(dropout=0.2), "model.dropout"),
        (lambda c: c["train"].update(batch_tokens=240), "train.batch_tokens"),
        (lambda c: c["train"].update(accumulate=3), "train.accumulate"),
        (lambda c: c["train"].update(learning_rate=2e-3), "train.learning_rate"),
        (lambda c: c["train"].update(label_smoothing=0.0), "train.label_smoothing"),
        (lambda c: c["train"].update(clip_norm=1.0), "train.clip_norm"),
        (lambda c: c.update(seed=2), "seed"),
        (lambda c: c["data"]["subword"].update(merges=10), "data.subword.merges"),
        (lambda c: c["data"].update(max_length=5), "data.max_length"),
    ],
)
def test_changed_settings_are_refused_by_name(
    half_way: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], None],
    named: str,
) -> None:
    config = tiny_config(half_way)
    change(config)
    before = tree(half_way / "run"), tree(half_way / "prepared")
    assert train.main(["--config", str(write_run(half_way, config))]) == 2
    assert named in capsys.readouterr().err
    assert (tree(half_way / "run"), tree(half_way / "prepared")) == before


def test_changed_data_is_refused(half_way: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = half_way / "data" / "train.src"
    path.write_text(path.read_text(encoding="utf-8").replace("ab", "cd"), encoding="utf-8")
    before = tree(half_way / "run"), tree(half_way / "prepared")
    assert train.main(["--config", str(half_way / "config.yaml")]) == 2
    assert "train.src" in capsys.readouterr().err
    assert (tree(half_way / "run"), tree(half_way / "prepared")) == before


@pytest.mark.parametrize("name", ["train.source.tokens.bin", "target.vocabulary", "joint.codes"])
def test_a_flipped_bit_of_the_data_ends_a_resumed_run_with_exit_7(
    half_way: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    flip_a_bit(half_way / "prepared" / name)
    before = tree(half_way / "run"), tree(half_way / "prepared")
    assert train.main(["--config", str(half_way / "config.yaml")]) == 7
    assert f"{name}: damaged" in capsys.readouterr().err
    assert (tree(half_way / "run"), tree(half_way / "prepared")) == before


def test_a_new_run_makes_damaged_data_again(reference: Path, tmp_path: Path) -> None:
    config = fresh(reference, tmp_path)
    flip_a_bit(tmp_path / "prepared" / "train.source.tokens.bin")
    assert train_in_child(config) == 0
    assert outcome(tmp_path / "run") == outcome(reference / "run")


def cut(path: Path) -> None:
    os.truncate(path, 10)


def exchange(path: Path) -> None:
    (path.parent / "other").write_bytes(bytes(path.stat().st_size))
    os.replace(path.parent / "other", path)


DAMAGE_IN_USE = [
    pytest.param(name, change, marks=[] if short else [pytest.mark.slow])
    for name in ("source.tokens", "target.tokens", "source.offsets", "target.offsets")
    for change in (cut, exchange, flip_a_bit)
    for short in [(name, change) in (("source.tokens", cut), ("target.tokens", flip_a_bit))]
]


@pytest.mark.parametrize(("name", "change"), DAMAGE_IN_USE)
def test_data_that_changes_during_training_ends_the_run(
    reference: Path, tmp_path: Path, name: str, change: Callable[[Path], None]
) -> None:
    """At the next epoch at the latest, with one line that names the file, never by a crash."""
    config = fresh(reference, tmp_path, tiny_config(tmp_path, max_updates=10**6, save_every=10**6))
    command = [sys.executable, "-m", "nmt.cli.train", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        metrics = tmp_path / "run" / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.05)
        change(tmp_path / "prepared" / f"train.{name}.bin")
        _, errors = process.communicate(timeout=100)
    last = errors.strip().split("\n")[-1]
    assert process.returncode in (2, 7), errors
    assert last.startswith("nmt-train: ")
    assert f"train.{name}.bin" in last or f"{name.split('.')[0]} side has" in last


def test_harmless_changes_are_allowed(half_way: Path) -> None:
    config = tiny_config(half_way, max_updates=16, save_every=4, keep_last=2, log_every=3)
    config["validate"]["every"] = 8
    assert train_in_child(write_run(half_way, config)) == 0
    assert newest(half_way / "run").name == "step-00000016"


def poison_batches(first: int, last: int) -> None:
    """Make the loss of some forward passes not a number."""
    original = TranslationLoss.forward
    calls = 0

    def forward(self: TranslationLoss, *arguments: Any) -> Any:
        nonlocal calls
        loss, likelihood = original(self, *arguments)
        if self.training:
            calls += 1
            if first <= calls <= last:
                loss = loss * torch.nan
        return loss, likelihood

    TranslationLoss.forward = forward  # type: ignore[method-assign]


def test_a_bad_update_is_skipped_and_counted(reference: Path, tmp_path: Path) -> None:
    assert train_in_child(fresh(reference, tmp_path), partial(poison_batches, 10, 10)) == 0
    state = outcome(tmp_path / "run")["state"]
    assert state["skipped_updates"] == 1
    log = (tmp_path / "run" / "train.log").read_text(encoding="utf-8")
    assert "skipped" in log
    assert "training pairs" in log or "no single batch" in log


def test_ten_bad_updates_in_a_row_are_exit_6(
    reference: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train_in_child(fresh(reference, tmp_path), partial(poison_batches, 12, 10**6)) == 6
    assert "diverged" in capfd.readouterr().err
    result = json.loads((tmp_path / "run" / "result.json").read_bytes())
    assert result["status"] == "diverged"
    verify(newest(tmp_path / "run"))


def test_print_config_is_the_whole_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_run(tmp_path)
    assert train.main(["--config", str(config), "--print-config", "train.max_updates=17"]) == 0
    printed = capsys.readouterr().out
    assert "max_updates: 17" in printed
    assert "label_smoothing: 0.1" in printed
    again = tmp_path / "again.yaml"
    again.write_text(printed, encoding="utf-8")
    assert train.main(["--config", str(again), "--print-config"]) == 0
    assert capsys.readouterr().out == printed


def test_accumulation_equals_one_big_batch(reference: Path, tmp_path: Path) -> None:
    """Both runs see the same pairs in an update, so with dropout off the losses agree."""
    losses = []
    for name, settings in (
        ("small", {"batch_tokens": 40, "accumulate": 1000}),
        ("big", {"batch_tokens": 100_000, "accumulate": 1}),
    ):
        directory = tmp_path / name
        config = tiny_config(directory, max_updates=3, log_every=1, **settings)
        config["model"] |= {"dropout": 0.0, "attention_dropout": 0.0}
        config["train"]["schedule"] = {"kind": "constant", "warmup": 0}
        assert train_in_child(fresh(reference, directory, config)) == 0
        records = outcome(directory / "run")["records"]
        losses.append([record["loss"] for record in records if record["event"] == "train"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_model_carries_the_head_that_aligns_words(reference: Path, tmp_path: Path) -> None:
    """Training chooses it, averaging passes it on, translation reads it."""
    run = reference / "run"
    (chosen,) = {
        json.dumps(json.loads((path / "state.json").read_bytes())["alignment_head"])
        for path in (newest(run), run / "best")
    }
    average = ["--run", str(run), "--output", str(tmp_path / "average")]
    assert average_checkpoints.main(average) == 0
    head = recommended_head(tmp_path / "average")
    assert json.loads(chosen) == {"layer": 0, "head": head.head, "shifted": head.shifted}
