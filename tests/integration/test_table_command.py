"""nmt-table on a small task: a grid is run, resumed and shown; a run that diverges is a dash."""

import contextlib
import importlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.small_task import Task, row_of

from nmt.checkpoint.model_directory import load_model
from nmt.cli.table import main
from nmt.model.summary import summarize
from nmt.recipes import stages


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The real commands in this process, where torch is imported already; their names."""
    names: list[str] = []

    def run(line: Sequence[str]) -> None:
        module = line[line.index("-m") + 1]
        names.append(module.removeprefix("nmt.cli."))
        if code := importlib.import_module(module).main(list(line[line.index("-m") + 2 :])):
            raise stages.FailedError(code)

    def json_output(name: str, arguments: Sequence[str]) -> list[dict[str, Any]]:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            run(["python", "-m", f"nmt.cli.{name}", *arguments])
        scores: list[dict[str, Any]] = json.loads(output.getvalue())["systems"][0]["scores"]
        return scores

    monkeypatch.setattr(stages, "execute", run)
    monkeypatch.setattr(stages, "json_output", json_output)
    monkeypatch.setenv("SACREBLEU", str(tmp_path / "no-cache"))
    return names


def score_of(run: Path, metric: str) -> float:
    entries = json.loads((run / "results" / "scores.json").read_bytes())["scores"]
    (value,) = [float(entry["value"]) for entry in entries if entry["metric"] == metric]
    return value


def test_a_grid_is_run_resumed_and_shown(commands, tmp_path, capfd):
    task = Task(tmp_path)
    grid = ["--variants", "softmax", "broken", "--seeds", "1", "2"]
    assert task.table(*grid) == 0
    shown = capfd.readouterr()
    table = shown.out
    # One preparation; the runs that diverge stop at training.
    assert commands.count("prepare") == 1
    assert commands.count("train") == 4
    assert commands.count("average_checkpoints") == commands.count("translate") == 2
    softmax, broken = row_of(table, "softmax"), row_of(table, "broken")
    runs = [task.runs / "softmax", task.runs / "softmax-seed2"]
    first, second = (score_of(run, "chrF2") for run in runs)
    deviation = abs(first - second) / 2**0.5
    assert softmax["chrF"] == f"{(first + second) / 2:.1f} ± {deviation:.1f}"
    bleu = sum(score_of(run, "BLEU") for run in runs) / 2
    assert softmax["BLEU"].startswith(f"{bleu:.2f} ± ")
    assert softmax["runs"] == "2"
    assert softmax["paper"] == "40.5"
    assert softmax["difference"] == f"{bleu - 40.5:.1f}".replace("-", "−")
    assert (broken["BLEU"], broken["paper"], broken["runs"]) == ("–", "–", "0, 2 diverged")
    loaded = load_model(task.runs / "softmax" / "average")
    assert softmax["parameters"] == f"{summarize(loaded.model).total / 1e6:.2f}M"
    assert json.loads((task.runs / "broken-seed2/result.json").read_bytes())["status"] == "diverged"
    assert "broken, seed 2 diverged" in shown.err
    seeds = [(task.runs / f"softmax{end}/config.yaml").read_text() for end in ("", "-seed2")]
    assert ["\nseed: 2\n" in text for text in seeds] == [False, True]
    one, two = (task.runs / f"softmax{end}/average/model.safetensors" for end in ("", "-seed2"))
    assert one.read_bytes() != two.read_bytes()

    # Again: nothing is trained or translated, what diverged is left alone, the table is the same.
    commands.clear()
    assert task.table(*grid) == 0
    again = capfd.readouterr()
    assert again.out == table
    assert commands == ["prepare", "train", "train"]
    assert again.err.count("is finished (update 12); nothing to do") >= 2
    assert again.err.count("diverged before, not tried again") == 2

    # Another variant, and the table as a file without running anything.
    assert task.table("--variants", "rela-g", "--seeds", "1") == 0
    commands.clear()
    output = tmp_path / "table.tex"
    options = ["--no-run", "--format", "latex", "--output", str(output)]
    rows = ["--variants", "softmax", "rela-g", "broken", "rela-i", "--baseline", "rela-g"]
    capfd.readouterr()
    assert task.table(*options, *rows) == 0
    assert commands == []
    assert capfd.readouterr().out == ""
    latex = output.read_text(encoding="ascii")
    assert r"against rela-g, on the translations of the first seed of each" in latex
    assert "\nbroken & rela-i, gain\\_init 3e+38 & -- & " in latex


def fail_at(name: str, code: int, run: Callable[[Sequence[str]], None]) -> Any:
    def execute(line: Sequence[str]) -> None:
        if f"nmt.cli.{name}" in line:
            raise stages.FailedError(code)
        run(line)

    return execute


def test_another_failure_stops_the_grid_and_a_mean_that_is_not_finite_does_not(
    commands, tmp_path, capfd, monkeypatch
):
    task = Task(tmp_path)
    grid = ["--variants", "softmax", "rela-g"]
    with monkeypatch.context() as patch:
        patch.setattr(stages, "execute", fail_at("translate", 4, stages.execute))
        assert task.table(*grid) == 4
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "stopped at softmax, seed 1; the same command goes on from here" in shown.err
    assert not (task.runs / "rela-g").exists()
    with monkeypatch.context() as patch:
        patch.setattr(stages, "execute", fail_at("translate", 6, stages.execute))
        assert task.table(*grid[:2]) == 0
    assert row_of(capfd.readouterr().out, "softmax")["BLEU"] == "–"
    commands.clear()
    assert task.table(*grid) == 0
    shown = capfd.readouterr()
    assert row_of(shown.out, "softmax")["BLEU"] == "–"
    assert float(row_of(shown.out, "rela-g")["BLEU"].split(" ")[0]) >= 0
    assert commands.count("train") == 1


@pytest.mark.usefixtures("commands")
def test_a_launcher_of_processes_has_its_own_exit_code(tmp_path, capfd, monkeypatch):
    task = Task(tmp_path)
    real = stages.execute

    def execute(line: Sequence[str]) -> None:
        if "nmt.cli.train" in line:
            with contextlib.suppress(stages.FailedError):
                real(line)
            raise stages.FailedError(1)
        real(line)

    monkeypatch.setattr(stages, "execute", execute)
    assert task.table("--variants", "broken") == 0
    assert row_of(capfd.readouterr().out, "broken")["BLEU"] == "–"
    assert task.table("--variants", "softmax") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "one"], "--seeds: expected a whole number, got 'one'"),
        (["softmax"], "expected settings section.key=value, got 'softmax'"),
        (["--baseline", "softmax", "--variants", "rela-g"], "expected one of the rows rela-g"),
        (["--variants", "rela-x"], "expected one of the variants"),
        (["--seeds", "1", "train.max_update=3"], "max_updates"),
        (["--variants", "rela-g", "run_dir=x"], "run_dir=x: every run has its own"),
        (["--output", "model/table"], "model/table: lies inside"),
    ],
)
def test_mistakes_are_one_line(commands, tmp_path, monkeypatch, capfd, arguments, message):
    task = Task(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "MANIFEST.json").touch()
    assert main([str(task.recipe), *arguments]) == 2
    shown = capfd.readouterr()
    assert message in shown.err
    assert shown.err.startswith("nmt-table: ")
    assert shown.out == ""
    assert commands == []
