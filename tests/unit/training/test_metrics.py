"""metrics.jsonl of a resumed run continues where its checkpoint stood, and tensorboard with it."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from support.disks import limit_file_size
from support.project_scripts import load_script

from nmt.storage.records import METRICS_FILE, read_records
from nmt.training.event_file import flatten
from nmt.training.failures import WriteFailures
from nmt.training.metrics import AppendedFile, RunLog, forget_after
from nmt.training.state import TrainingState


def run_log(run_dir: Path, *, update: int = 0) -> RunLog:
    return RunLog(run_dir, update=update, failures=WriteFailures(TrainingState()))


def scalars(run_dir: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(run_dir / "tensorboard"))
    board.Reload()
    return [(scalar.step, scalar.value) for scalar in board.Scalars(tag)]


def test_records_after_the_checkpoint_and_cut_lines_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"event": "train", "update": update}) for update in (10, 20, 30)]
    path.write_text("\n".join(lines) + '\n{"event": "tr', encoding="utf-8")
    forget_after(path, 20)
    assert path.read_text(encoding="utf-8") == "\n".join(lines[:2]) + "\n"
    path.write_text("\n".join(lines), encoding="utf-8")
    forget_after(path, 30)  # the last line was cut off before its end
    assert path.read_text(encoding="utf-8") == "\n".join(lines[:2]) + "\n"


def test_numbers_reach_metrics_and_tensorboard(tmp_path: Path) -> None:
    with run_log(tmp_path) as log:
        log.write("validation", 5, {"loss": 1.5, "attention": {"cross": {"sparsity": 0.5}}})
    (record,) = read_records(tmp_path / "metrics.jsonl")
    assert record["attention"]["cross"]["sparsity"] == 0.5
    assert abs(datetime.fromisoformat(record["time"]).timestamp() - datetime.now().timestamp()) < 60
    assert scalars(tmp_path, "validation_attention/cross/sparsity") == [(5, 0.5)]


def test_tensorboard_shows_the_overview_first_and_attention_in_its_own_group(
    tmp_path: Path,
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tmp_path / "config.yaml").write_text("seed: 1\n", encoding="utf-8")
    samples = [{"source": "a | b", "translation": "c", "reference": "d"}]
    head = {"layer": 1}
    with run_log(tmp_path) as log:
        log.write("train", 4, {"loss": 2.5, "learning_rate": 0.1, "tokens_per_second": 9.0})
        values = {"bleu": 17.0, "attention": {"cross": 0.5}, "alignment_head": head}
        log.write("validation", 5, {**values, "samples": samples})
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    charts = sorted(board.Tags()["scalars"])
    assert charts[:4] == [
        "overview/train_learning_rate",
        "overview/train_loss",
        "overview/train_tokens_per_second",
        "overview/validation_bleu",
    ]
    attention = [tag for tag in charts if tag.startswith("validation_attention/")]
    assert (
        charts[-2:]
        == attention
        == [
            "validation_attention/alignment_head/layer",
            "validation_attention/cross",
        ]
    )
    texts = {tag: board.Tensors(tag)[0] for tag in board.Tags()["tensors"]}
    assert texts["config"].tensor_proto.string_val[0] == b"```yaml\nseed: 1\n```"
    assert texts["samples"].step == 5
    table = texts["samples"].tensor_proto.string_val[0].decode().splitlines()
    assert table[-1] == "| a \\| b | c | d |"


def test_after_a_resume_one_tensorboard_file_holds_what_metrics_hold(tmp_path: Path) -> None:
    """However often the run was started, and without the records that were forgotten."""
    for update in (0, 10, 20, 20):
        with run_log(tmp_path, update=update) as log:
            log.write("train", update + 10, {"loss": 1.0 + update})
            log.write("train", update + 20, {"loss": -1.0})
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    assert scalars(tmp_path, "train/loss") == [(10, 1.0), (20, 11.0), (30, 21.0), (40, -1.0)]


def test_old_records_count_epochs_from_0_and_new_ones_from_1(tmp_path: Path) -> None:
    """Only the new ones have a time, which tells them apart."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"event": "train", "update": 1, "epoch": 0}\n')
    with run_log(tmp_path, update=1) as log:
        log.write("train", 2, {"epoch": 1})
    assert [record["epoch"] for record in read_records(path)] == [1, 1]
    assert scalars(tmp_path, "train/epoch") == [(1, 1.0), (2, 1.0)]


def test_flatten_names_nested_values_by_their_path() -> None:
    assert flatten({"a": 1, "b": {"c": 2, "d": {"e": 3}}}) == [("a", 1), ("b/c", 2), ("b/d/e", 3)]


def test_what_the_disk_refuses_is_written_later_and_never_in_part(tmp_path: Path) -> None:
    file = AppendedFile(tmp_path / "records")
    file.append(b"first\n")
    limit_file_size(10)
    try:
        for line in (b"second\n", b"third\n"):
            with pytest.raises(OSError, match="large"):
                file.append(line)
            assert file.path.read_bytes() == b"first\n"
    finally:
        limit_file_size(-1)
    file.append(b"fourth\n")
    assert file.path.read_bytes() == b"first\nsecond\nthird\nfourth\n"


def test_failures_of_one_file_are_forgiven_twice(caplog: pytest.LogCaptureFixture) -> None:
    """Those of one update count once, a success in between lets the count begin anew."""
    state = TrainingState()
    failures = WriteFailures(state)

    def refuse() -> None:
        raise OSError(28, "No space left on device")

    def attempt(path: str, write: Any) -> None:
        failures.attempt(Path(path), write)

    for update in (1, 1, 1, 2):
        state.update = update
        attempt("metrics.jsonl", refuse)
        attempt("train.log", refuse)
    assert failures.fatal is None
    assert caplog.text.count("metrics.jsonl: could not be written (No space left") == 2
    attempt("metrics.jsonl", lambda: None)
    state.update = 3
    attempt("metrics.jsonl", refuse)
    assert failures.fatal is None
    attempt("train.log", refuse)
    assert "update 3: train.log" in str(failures.fatal)


def test_curves_are_drawn_of_whole_records(tmp_path: Path) -> None:
    """A run that was killed can end with half a line."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    record = {"event": "train", "update": 1, "loss": 2.5, "time": 0}
    (tmp_path / METRICS_FILE).write_text(f'{json.dumps(record)}\n{{"event": "tr')
    assert load_script("curves").series(tmp_path, "train", "loss") == ([1], [2.5])
