"""Learned parameters over the updates of a run, read from its records."""

import json
from pathlib import Path
from typing import Any

from nmt.analysis.trajectories import metrics_of, read_trajectories, validation_records


def record(update: int, **alphas: float) -> dict[str, Any]:
    layer = {"sparsity": 0.5, "null_rate": 0.0, **alphas}
    return {"event": "validation", "update": update, "attention": {"cross": {"layer_1": layer}}}


def test_one_trajectory_per_head_from_validations(tmp_path: Path) -> None:
    records = [
        {"event": "train", "update": 5, "loss": 1.0},
        record(10, alpha_0=1.5, alpha_1=1.4),
        record(20, alpha_0=9.0, alpha_1=9.0),  # lost in a crash, and computed again
        record(20, alpha_0=1.6, alpha_1=1.3),
    ]
    lines = [json.dumps(one) for one in records]
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(lines) + '\n{"event": "valid')
    first, second = read_trajectories(path)
    assert (first.name, first.type, first.layer, first.head) == ("alpha", "cross", 1, 0)
    assert (first.updates, first.values) == ([10, 20], [1.5, 1.6])
    assert second.values == [1.4, 1.3]
    assert [one["update"] for one in validation_records(path)] == [10, 20]


def test_models_of_a_run_find_its_records(tmp_path: Path) -> None:
    (tmp_path / "average").mkdir()
    assert read_trajectories(metrics_of(tmp_path / "average")) == []
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record(3, threshold_0=0.5)) + "\n")
    for model in (tmp_path, tmp_path / "average"):
        (one,) = read_trajectories(metrics_of(model))
        assert (one.name, one.values) == ("threshold", [0.5])
