"""The first and last lines of commands: what was made, and which command follows."""

import shlex
from pathlib import Path

import pytest
from support.runs import tiny_config, write_run

from nmt.cli import align, analyze, average_checkpoints, export, filter, prepare, train, translate


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines on standard error."""
    return capsys.readouterr().err.splitlines()


def test_each_command_names_what_it_made_and_the_next_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_run(tmp_path, tiny_config(tmp_path, max_updates=12, log_every=6))
    monkeypatch.chdir(tmp_path)
    assert prepare.main(["--config", "config.yaml"]) == 0
    assert lines(capsys)[-1] == "next: nmt-train --config config.yaml"

    assert prepare.main(["--config", "config.yaml", "train={log_every: 5}"]) == 0
    assert lines(capsys)[-1] == "next: nmt-train --config config.yaml 'train={log_every: 5}'"
    assert prepare.main(["--config", "config.yaml"]) == 0
    capsys.readouterr()

    assert train.main(["--config", str(config)]) == 0
    said = lines(capsys)
    assert said[0] == "run directory: run"
    assert "update 1 of 12, " in "\n".join(said)
    assert any(line.startswith("update 6 of 12, ") and " left: loss " in line for line in said)
    assert said[-2:] == [
        "the model is in run",
        "next: nmt-translate --model run --input FILE --output FILE",
    ]

    assert average_checkpoints.main(["--run", "run"]) == 0
    assert lines(capsys)[-1] == "next: nmt-translate --model run --input FILE --output FILE"

    command = said[-1].removeprefix("next: ")
    command = command.replace("FILE", "data/validation.src", 1).replace("FILE", "out.tgt")
    assert translate.main(shlex.split(command)[1:]) == 0
    assert lines(capsys)[-2:] == [
        "out.tgt is written",
        "next: nmt-score --hypothesis out.tgt --reference FILE",
    ]
    assert len((tmp_path / "out.tgt").read_text().splitlines()) == 12

    pairs = ["--source", "data/validation.src", "--target", "out.tgt"]
    model = ["--model", "run"]
    assert align.main([*model, *pairs, "--output", "links"]) == 0
    assert lines(capsys)[-1] == "links is written"

    kept = ["--keep-source", "kept.src", "--keep-target", "kept.tgt"]
    kept_lines = [
        "kept.src is written",
        "kept.tgt is written",
        "next: nmt-train --config FILE data.train.source=kept.src data.train.target=kept.tgt",
    ]
    assert filter.main([*model, *pairs, "--output", "table", "--keep-best", "0.5", *kept]) == 0
    assert lines(capsys)[-4:] == ["table is written", *kept_lines]
    assert filter.main(["--clean", *pairs, *kept]) == 0
    assert lines(capsys)[-3:] == kept_lines

    assert analyze.main([*model, *pairs, "--output", "report"]) == 0
    assert lines(capsys)[-1] == "report/report.html is written; open it in a browser"
    assert export.main([*model, "--format", "onnx", "--output", "exported"]) == 0
    assert lines(capsys)[-1] == "exported/README.md has a program that translates with it"
