"""nmt-paper on a tiny task: killed, resumed, and made again from its scores."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.small_task import TASK, TINY, Task

from nmt.cli.paper import main
from nmt.paper.scores import read_scores

pytestmark = pytest.mark.xdist_group("paper")


def gold_text(folder: Path) -> list[str]:
    """Three pairs with gold alignments."""
    texts = {
        "en": "a old house\na tree\nold tree\n",
        "de": "ein altes Haus\nein Baum\naltes Baum\n",
    }
    texts["links"] = "0-0 1-1 2-2\n0-0 1p1\n0-0 1-1\n"
    for name, text in texts.items():
        (folder / f"gold.{name}").write_text(text)
    return [str(folder / f"gold.{name}") for name in texts]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """A grid of one run that was killed when it had begun to train, and went on."""
    task = Task(tmp_path_factory.mktemp("paper"))
    words = [str(task.recipe), "--data", str(task.data), "--variants", "rela-g"]
    (task.data / "trees").write_text("Baum\nHaus\n")
    words += ["--alignment", *gold_text(task.data), "--development", "1"]
    words += ["--word-list", f"trees={task.data / 'trees'}"]
    words += ["--sentence", "3", "--layer", "0", "--heads", "1"]
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
    assert " --sentence 3 --layer 0 --heads 1 " in done.stderr  # of nmt-analyze
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
    # Speed, the second paper's BLEU, and learned parameters of heads.
    assert text.count("**Missing.**") == 3
    assert "chosen on the first 1 pairs" in text
    assert "| rela-g | cross-attention | 0 | trees |" in text
    page = (output / "report.html").read_text(encoding="utf-8")
    assert page.count("<img ") == sum(name.endswith(".png") for name in names)
    assert "<script" not in page


def test_all_scores_are_in_one_table(finished: Task) -> None:
    (run,) = read_scores(finished.runs / "paper" / "scores.tsv")
    assert (run.task, run.variant, run.seed) == (TASK, "rela-g", 1)
    assert run.values["status"] == "scored"
    assert isinstance(run.values["score/BLEU"], float)
    assert 0 < float(run.values["analysis/statistics/cross/layer_0/sparsity"]) < 1
    for name in ("loss", "perplexity"):
        assert set(run.group(f"curve/{name}")) == {"6", "12"}
    assert set(run.group("analysis/statistics/cross/layer_0/null_after/trees/heads")) == {"0", "1"}
    assert 0 <= float(run.values["analysis/aer/shifted/AoL"]) <= 1
    assert not [name for name in run.values if "/roles/" in name or name.endswith("/digest")]


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
    text = (output / "report.md").read_text()
    for parts in ("The figures of single heads", "The figures of pairs", "The roles of heads"):
        assert f"**Missing.** {parts} are made from the runs" in text


@contextmanager
def changed(path: Path, content: str) -> Iterator[None]:
    """A file with other content for a while."""
    before = path.read_bytes()
    path.write_text(content)
    yield
    path.write_bytes(before)


def report_on(finished: Task, output: Path) -> str:
    """The report on the runs that are there."""
    words = [str(finished.recipe), "--no-run", "--variants", "rela-g", "--output", str(output)]
    assert main([*words, *TINY]) == 0
    return (output / "report.md").read_text(encoding="utf-8")


def test_what_was_made_of_another_model_is_left_out(
    finished: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished.runs / "rela-g"
    path = run / "alignment" / "analysis.json"
    document = json.loads(path.read_bytes())
    document["models"][0]["digest"] = "0" * 64
    stamp = run / "results" / ".pairs.done"
    with changed(path, json.dumps(document)), changed(stamp, "0" * 64):
        text = report_on(finished, tmp_path / "report")
    assert f"{path}: is of another model" in capsys.readouterr().err
    assert "**Missing.** Give nmt-paper gold" in text
    assert "**Missing.** Pairs are ranked" in text
    assert text.count("**Missing.**") == 5
    assert "heads_rela-g.png" in text


def test_an_analysis_of_another_version_is_left_out(
    finished: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished.runs / "rela-g" / "analysis" / "analysis.json"
    document = json.loads(path.read_bytes())
    document["format"] = 2
    with changed(path, json.dumps(document)):
        text = report_on(finished, tmp_path / "report")
    assert f"{path}: is by another version of nmt" in capsys.readouterr().err
    assert "**Missing.** No run of the grid has been analysed yet" in text
    assert "heads_rela-g.png" not in text
    assert "pairs.png" not in text


def test_what_the_analysis_would_reject_is_rejected_before_the_grid(
    finished: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    gold = ["--alignment", *gold_text(finished.data)]
    (finished.data / "tags").write_text("X\n")
    before = sorted(finished.runs.rglob("*"))
    for words, message in (
        ([*gold, "--development", "3"], "--development: expected fewer than the 3 pairs"),
        ([*gold[:2], gold[2].replace("gold.de", "trees"), gold[3]], "trees"),
        (["--sentence", "9"], "--sentence: expected 1 to 8, got 9"),
        (["--layer", "1"], "--layer: expected 0 to 0 for softmax, seed 1, got 1"),
        (["--heads", "0", "2"], "--heads: expected 0 to 1 for softmax, seed 1, got 2"),
        (["--word-list", "aux"], "--word-list: expected NAME=FILE"),
        (["--target-tags", "nowhere"], "--target-tags: expected a file, found none at nowhere"),
        (["--target-tags", str(finished.data / "tags")], "expected a line for each of 8 pairs"),
    ):
        grid = [str(finished.recipe), "--data", str(finished.data), "--variants", "softmax"]
        assert main([*grid, *words, "--seeds", "1", *TINY]) == 2
        assert message in capsys.readouterr().err
    assert sorted(finished.runs.rglob("*")) == before


def test_a_change_of_the_word_lists_analyses_again(finished: Task) -> None:
    words = finished.data / "trees"
    words.write_text("altes\n")
    line = [str(finished.recipe), "--data", str(finished.data), "--variants", "rela-g"]
    before = finished.runs / "paper" / "scores.tsv"
    name = "analysis/statistics/cross/layer_0/null_after/trees/queries"
    (run,) = read_scores(before)
    assert main([*line, "--word-list", f"trees={words}", *TINY, "validate.every=6"]) == 0
    (again,) = read_scores(before)
    assert again.values[name] != run.values[name]
    # The analysis of the gold alignments is of the same model and is kept.
    assert again.group("analysis/aer") == run.group("analysis/aer")


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
        (["x", "--development", "5"], "--development: expected --alignment with it"),
        (["x", "--gold-index", "0"], "--gold-index: expected --alignment with it"),
        (["x", "--no-run", "--layer", "0"], "--layer: has no effect with --no-run"),
        (["--from", str(scores), "--runs", "x"], "--runs: has no effect with --from"),
        (["--from", str(scores), "--alignment", "x", "y", "z"], "--alignment: has no effect with"),
        (
            ["--from", str(scores), "--output", str(tmp_path / "x"), "foo.bar=1"],
            "foo.bar=1: settings have no effect with --from",
        ),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err
