"""metrics.jsonl of a resumed run continues where its checkpoint stood."""

import json
from pathlib import Path

from nmt.training.metrics import RunLog, flatten, forget_after


def test_records_after_the_checkpoint_and_cut_lines_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"event": "train", "update": update}) for update in (10, 20, 30)]
    path.write_text("\n".join(lines) + '\n{"event": "tr', encoding="utf-8")
    forget_after(path, 20)
    assert path.read_text(encoding="utf-8") == "\n".join(lines[:2]) + "\n"


def test_numbers_reach_metrics_and_tensorboard(tmp_path: Path) -> None:
    with RunLog(tmp_path, update=0) as log:
        log.write("validation", 5, {"loss": 1.5, "attention": {"cross": {"sparsity": 0.5}}})
    (record,) = map(json.loads, (tmp_path / "metrics.jsonl").read_bytes().split(b"\n")[:-1])
    assert record["attention"]["cross"]["sparsity"] == 0.5
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    (scalar,) = board.Scalars("validation/attention/cross/sparsity")
    assert (scalar.step, scalar.value) == (5, 0.5)


def test_flatten_names_nested_values_by_their_path() -> None:
    assert flatten({"a": 1, "b": {"c": 2, "d": {"e": 3}}}) == [("a", 1), ("b/c", 2), ("b/d/e", 3)]
