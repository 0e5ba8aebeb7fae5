"""The programs in docs/file_formats.md read the files of a real run, without nmt."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.runs import tiny_config, write_run

from nmt.cli import train, translate

PAGE = (Path(__file__).parents[2] / "docs" / "file_formats.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run in runs/mine, and the attention of a few translations."""
    folder = tmp_path_factory.mktemp("formats")
    config = tiny_config(folder, max_updates=6)
    config["run_dir"] = str(folder / "runs" / "mine")
    del config["data"]["prepared_dir"]
    config["train"]["schedule"]["warmup"] = 2
    assert train.main(["--config", str(write_run(folder, config))]) == 0
    given = ["--model", str(folder / "runs/mine"), "--input", str(folder / "data/validation.src")]
    made = ["--output", str(folder / "translated"), "--attention", str(folder / "attention.npz")]
    assert translate.main([*given, *made]) == 0
    return folder


def test_the_programs_of_the_page_run(folder: Path) -> None:
    assert len(PROGRAMS) == 5
    together = "".join(PROGRAMS)
    assert "nmt import" not in together
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", together], cwd=folder, env=environment, capture_output=True,
        text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first = (folder / "data" / "train.src").read_text(encoding="utf-8").split("\n")[0]
    pieces = done.stdout.split("\n")[0]
    assert pieces.endswith("'</s>']")
    assert "".join(re.findall(r"'([a-z]+)(?:@@)?'", pieces)) == first.replace(" ", "")


def test_the_page_has_the_keys_that_are_written(folder: Path) -> None:
    run = folder / "runs" / "mine"
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    records = [json.loads(line) for line in lines]
    assert {record["event"] for record in records} == {"train", "validation"}
    keys = {key for record in records for key in record} | set(
        json.loads((run / "result.json").read_bytes())
    )
    assert [key for key in sorted(keys) if f"`{key}`" not in PAGE] == []
    names = {path.name for path in (*run.iterdir(), *(run / "best").iterdir())}
    assert [name for name in sorted(names) if name not in PAGE] == []
