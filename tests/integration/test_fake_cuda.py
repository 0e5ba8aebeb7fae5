"""Whole updates and decoding steps on a CUDA device of fake tensors, counted against the table."""

import csv
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from support.fake_device import missing_for_fake_device

from nmt.bench.roofline import WorkCounts, recorded_counts

MISSING = missing_for_fake_device()
ROOT = Path(__file__).parents[2]
RUN = ROOT / "tests" / "fake_cuda" / "run.py"
TOLERANCE = 0.02  # one launch more is worse, but only this share less is better
EXACT = ("launches", "synchronisations")
WMT = sorted(ROOT.glob("configs/wmt*/*.yaml"))
QUICK = {
    ("update", "rela-g", "bfloat16", 27),
    ("update", "entmax-learned", "bfloat16", 27),
    ("update", "softmax", "float32", 27),
    ("decoding step", "rela-g", "float32", 27),
}

pytestmark = [
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.timeout(900),
]


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(RUN), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def compare(recorded: WorkCounts, counted: WorkCounts) -> list[str]:
    """The changes, as lines of text."""
    changes = []
    for field in fields(WorkCounts)[6:-1]:
        old, new = getattr(recorded, field.name), getattr(counted, field.name)
        least, most = (1.0 - TOLERANCE) * old, (1.0 + TOLERANCE) * old
        if new > (old if field.name in EXACT else most) or new < least:
            verdict = "worse" if new > old else "better"
            changes.append(f"{counted.key}: {field.name} is {verdict}: {old} before, {new} now")
    if changes and counted.waits:
        changes.append(f"the host waits in: {counted.waits}")
    return changes


def check(keys: set[tuple[str, str, str, int]]) -> None:
    words = [str(word) for key in sorted(keys) for word in key]
    rows = [
        WorkCounts.parse(row)
        for row in csv.DictReader(run("table", *words).splitlines(), delimiter="\t")
    ]
    assert len(rows) == len(keys)
    recorded = {row.key: row for row in recorded_counts()}
    changes = [line for row in rows for line in compare(recorded[row.key], row)]
    assert not changes, "\n".join(
        [*changes, "if that is meant, run `python scripts/count_gpu.py` and commit the table"]
    )


def test_counts_of_some_kinds() -> None:
    check(QUICK)


@pytest.mark.slow
def test_counts_of_all_kinds() -> None:
    every = {(row.work, row.kind, row.precision, row.length) for row in recorded_counts()}
    check(every - QUICK)


def run_configs(layers: int, paths: list[Path]) -> None:
    lines = run("configs", str(layers), *map(str, paths)).splitlines()
    found = {Path(line.split("\t")[0]): line.split("\t")[2] for line in lines}
    assert found == dict.fromkeys(paths, "{}")  # all ran, and the host never waited


def test_configs_of_the_table_run_one_update() -> None:
    run_configs(1, [path for path in WMT if path.parent.name == "wmt14_en_de"])


@pytest.mark.slow
def test_all_configs_run_one_update_at_full_depth() -> None:
    run_configs(6, WMT)


def test_a_change_is_told_with_its_direction() -> None:
    row = recorded_counts()[0]
    more = type(row)(**{**vars(row), "launches": row.launches + 1, "peak_bytes": 0})
    worse, better = compare(row, more)
    assert "launches is worse" in worse
    assert "peak_bytes is better" in better
    assert compare(row, row) == []
