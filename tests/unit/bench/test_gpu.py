"""Trials of nmt-bench gpu: failures are recorded, and predictions stand beside measurements."""

from dataclasses import replace

import pytest
import torch

from nmt.bench import gpu, scaling
from nmt.bench.gpu import BenchmarkPlan, Figures, GpuRow, PredictedFigures, Trial
from nmt.bench.gpu_report import TITLES, gpu_markdown, part_table
from nmt.bench.kinds import all_kinds
from nmt.bench.machine import describe_machine
from nmt.bench.result import Result
from nmt.bench.roofline import GPUS, find_counts, predict
from nmt.bench.timing import Spread
from nmt.bench.training import synthetic_task
from nmt.cli import bench_gpu
from nmt.errors import UserError

CPU = torch.device("cpu")


def speed(value: float) -> Figures:
    return Figures(Spread(value, value, value))


def too_large() -> Figures:
    raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 80 GB")


def test_a_trial_that_fails_is_recorded_and_the_others_go_on() -> None:
    way: dict[str, str | int] = {"precision": "bfloat16"}
    trials = [
        Trial("train", "topk", way, too_large),
        Trial("train", "softmax", way, lambda: speed(2000.0)),
    ]
    failed, good = gpu.run_trials(trials)
    assert failed.measured is None
    assert failed.error == "OutOfMemoryError: CUDA out of memory."
    assert (good.error, good.measured) == (None, speed(2000.0))
    plan = BenchmarkPlan(CPU, gpu.SMALL, ["softmax"], ["train"], 1, 1)
    text = gpu_markdown(Result(describe_machine(CPU), [failed, good], plan.facts()))
    assert "| topk | bfloat16 | failed: OutOfMemoryError: CUDA out of memory. |" in text
    assert "Measurements: 2, of which 1 failed." in text


def test_predictions_stand_beside_measurements() -> None:
    counts = find_counts("update", "softmax", "bfloat16")
    assert counts is not None
    expected = gpu.prediction(GPUS["H100"], counts)
    calculated = predict(counts, GPUS["H100"]).tokens_per_second
    assert expected == PredictedFigures(calculated, counts.peak_bytes)
    row = GpuRow("train", "softmax", {"length": 27}, "tokens/s", speed(calculated / 2), expected)
    table = part_table([row])
    cells = dict(zip(table.columns, table.rows[0], strict=True))
    assert cells["predicted"] == f"{calculated:,.0f}"
    assert cells["measured/predicted"] == "0.50"
    assert cells["predicted memory"] == f"{counts.peak_bytes / 1e6:,.0f} MB"
    assert gpu.prediction(None, counts) == PredictedFigures()


@pytest.mark.parametrize("kind", all_kinds())
def test_the_full_sizes_are_those_that_were_counted(kind: str) -> None:
    for shapes, length in ((gpu.FULL.shapes, 27), (gpu.FULL.long_shapes, 257)):
        sentences = shapes.batch_tokens // (shapes.length + 1)
        counts = find_counts("update", kind, "bfloat16", sentences=sentences)
        assert counts is not None
        assert counts.length == shapes.length + 1 == length
    batch = gpu.FULL.batch_sizes[-1]
    assert find_counts("decoding step", kind, "float32", sentences=batch) is not None


def test_predictions_are_for_what_was_counted() -> None:
    plan = BenchmarkPlan(CPU, gpu.FULL, all_kinds(), gpu.GPU_PARTS, 8, 5, gpu=GPUS["A100"])
    trials = gpu.make_trials(plan)
    predicted = [trial for trial in trials if trial.expected.speed is not None]
    products = {t.name: t.expected.speed for t in predicted if t.part == "products"}
    assert products == {"bfloat16": pytest.approx(0.6 * 312), "float32": pytest.approx(0.6 * 156)}
    trained = [trial for trial in predicted if trial.part == "train"]
    ways = {(t.settings["precision"], t.settings["length"]) for t in trained}
    assert ways == {("bfloat16", 27), ("float32", 27), ("bfloat16", 257)}
    assert {(t.settings["compile"], t.settings["accumulate"]) for t in trained} == {("no", 1)}
    assert len(trained) == 3 * len(all_kinds())
    decoded = [trial for trial in predicted if trial.part == "decode"]
    assert {trial.settings["batch"] for trial in decoded} == {100}
    counts = [t.settings["processes"] for t in trials if t.part == "processes"]
    assert counts == [1, 2, 4, 8, 1, 2, 4, 8]


def test_sentences_of_one_length_fill_batches() -> None:
    shapes = replace(gpu.TINY_SHAPES, batch_tokens=54)
    task = synthetic_task(shapes, 12, precision="float32", accumulate=2)  # more than one epoch
    batches = [batch for update in task.updates for batch in update.batches]
    assert [batch.source.shape for batch in batches] == 24 * [(10, 5)]
    assert all(batch.target_visible.all() for batch in batches)
    assert task.tokens == task.own_tokens == 24 * 50


def test_the_command_offers_all_parts() -> None:
    assert bench_gpu.PART_NAMES == gpu.GPU_PARTS == tuple(TITLES)


def test_process_counts_double_up_to_all() -> None:
    assert [scaling.process_counts(most) for most in (1, 2, 3, 6, 8)] == [
        [1], [1, 2], [1, 2, 3], [1, 2, 4, 6], [1, 2, 4, 8],
    ]  # fmt: skip


def test_the_error_of_a_process_is_told() -> None:
    arguments = ["nmt.cli.bench", "train", "--kinds", "none"]
    with pytest.raises(UserError, match=r"bench, 1: ended with 2: .*expected some of softmax"):
        scaling.run_module(arguments, 1)
