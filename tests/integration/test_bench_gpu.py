"""nmt-bench gpu runs on a CPU with small sizes and writes one file that holds everything."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nmt.cli import bench

SMALL = ["gpu", "--device", "cpu", "--small", "--repeats", "1"]


def run(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """The JSON at the end of the report of a run that succeeds."""
    report, numbers = tmp_path / "report.md", tmp_path / "numbers.json"
    files = ["--report", str(report), "--json", str(numbers)]
    assert bench.main([*SMALL, *arguments, *files]) == 0
    text = report.read_text(encoding="utf-8")
    assert text.startswith("# nmt-bench gpu on a CPU")
    document: dict[str, Any] = json.loads(text.split("```json\n")[1].removesuffix("\n```\n"))
    assert document == json.loads(numbers.read_text(encoding="utf-8"))
    return document


def test_one_report_holds_every_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = ["products", "train", "attention", "decode"]
    document = run(tmp_path, "--kinds", "softmax", "rela-g", "--parts", *parts)
    output = capsys.readouterr().out
    rows = document["measurements"]
    assert all(row["error"] is None for row in rows)
    assert all(row["measured"]["speed"]["median"] > 0.0 for row in rows)
    # Nothing is predicted for a CPU.
    assert all(row["predicted"]["speed"] is None for row in rows)
    assert document["device"] == "cpu"
    assert [row["name"] for row in rows if row["part"] == "products"] == ["bfloat16", "float32"]
    for kind in ("softmax", "rela-g"):
        found = {
            part: [r for r in rows if (r["part"], r["name"]) == (part, kind)] for part in parts
        }
        trained = [row["settings"] for row in found["train"]]
        assert {way["precision"] for way in trained} == {"bfloat16", "float32"}
        assert {way["accumulate"] for way in trained} == {1, 2}
        assert [row["settings"]["length"] for row in found["attention"]] == [4, 8]
        ways = {(row["settings"]["precision"], row["settings"]["batch"]) for row in found["decode"]}
        assert ways == {(p, batch) for p in ("float32", "bfloat16") for batch in (1, 4)}
        assert f"\n| {kind} | bfloat16 |" in output


def test_two_processes_train_beside_one(tmp_path: Path) -> None:
    document = run(
        tmp_path, "--kinds", "softmax", "--parts", "processes", "--processes", "2", "--threads", "1"
    )
    rows = document["measurements"]
    assert [(row["settings"]["processes"], row["error"]) for row in rows] == [(1, None), (2, None)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_ends_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.md"
    assert bench.main(["gpu", "--report", str(report)]) == 2
    assert bench.main(["gpu", "--device", "cpu", "--report", str(report)]) == 2
    first, second = capsys.readouterr().err.strip().split("\n")
    assert "expected a CUDA device" in first
    assert "add --small" in second
    assert not report.exists()
