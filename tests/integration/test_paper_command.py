"""nmt-paper on a tiny task: killed, resumed, and made again from its scores."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.small_task import TASK, TINY, Task

from nmt.cli.paper import main
from nmt.paper.scores import read_scores

pytestmark = pytest.mark.xdist_group("paper")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """A grid of one run that was killed when it had begun to train, and went on."""
    task = Task(tmp_path_factory.mktemp("paper"))
    words = [str(task.recipe), "--data", str(task.data), "--variants", "rela-g"]
    line = [sys.executable, "-m", "nmt.cli.paper", *words, *TINY, "validate.every=6"]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, start_new_session=True)
    checkpoints = task.runs / "rela-g" / "checkpoints"
    deadline = time.monotonic() + 250
    while not any(checkpoints.glob("step-*")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (task.runs / "paper").exists()
    done = subprocess.run(line, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return task


def test_the_report_has_every_table_and_figure(finished: Task) -> None:
    output = finished.runs / "paper"
    names = {path.name for path in output.iterdir()}
    for figure in ("sparsity", "diversity", "null_rate", "density", "curves", "heads_rela-g"):
        assert {f"{figure}.png", f"{figure}.pdf"} <= names
    assert {"pairs.png", "pairs.pdf"} <= names
    text = (output / "report.md").read_text(encoding="utf-8")
    for number in range(1, 7):
        assert f"Table {number}" in text or f"Tables {number}" in text or f"and {number})" in text
    for title in ("Figure 3", "Figure 4", "Figure 5", "Figure 6", "Figures 7 to 9", "Figure 10"):
        assert title in text
    # Speed, gold alignments, the second paper's BLEU, and learned parameters of heads.
    assert text.count("**Missing.**") == 4
    assert "Give gold alignments" in text
    page = (output / "report.html").read_text(encoding="utf-8")
    assert page.count("<img ") == sum(name.endswith(".png") for name in names)
    assert "<script" not in page


def test_all_scores_are_in_one_table(finished: Task) -> None:
    (run,) = read_scores(finished.runs / "paper" / "scores.tsv")
    assert (run.task, run.variant, run.seed) == (TASK, "rela-g", 1)
    assert run.values["status"] == "scored"
    assert isinstance(run.values["score/BLEU"], float)
    assert 0 < float(run.values["analysis/statistics/cross/layer_0/sparsity"]) < 1
    assert set(run.group("curve/loss")) == {"6", "12"}


def test_the_model_that_is_scored_is_the_one_that_is_analysed(finished: Task) -> None:
    run = finished.runs / "rela-g"
    document = json.loads((run / "analysis" / "analysis.json").read_bytes())
    assert document["models"][0]["path"] == str(run / "average")
    assert document["models"][0]["name"] == "rela-g"


def test_the_same_figures_come_from_the_scores_alone(finished: Task, tmp_path: Path) -> None:
    before = finished.runs / "paper"
    output = tmp_path / "again"
    scores = str(before / "scores.tsv")
    assert main(["--from", scores, "--output", str(output), str(finished.recipe)]) == 0
    for name in ("sparsity.png", "null_rate.png", "curves.png", "density.png"):
        assert (output / name).read_bytes() == (before / name).read_bytes()
    assert (output / "scores.tsv").read_bytes() == (before / "scores.tsv").read_bytes()
    assert "**Missing.** The figures of single heads" in (output / "report.md").read_text()


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = tmp_path / "scores.tsv"
    scores.write_text("variant\tbleu\n")
    for words, message in (
        ([], "expected a RECIPE, or --from FILE"),
        (["--from", str(scores)], "--output: expected a directory"),
        (["--from", str(scores), "--output", str(tmp_path / "x")], "scores.tsv:1: expected"),
        (["--from", str(scores), "--output", str(tmp_path)], "did not write, such as scores.tsv"),
        (["x", "--alignment", str(scores), str(scores), "nowhere"], "found none at nowhere"),
        (["nowhere", "--speed", str(scores)], "expected a file of nmt-bench"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err
