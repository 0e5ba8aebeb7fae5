"""Built-in configs, and the plan of a config."""

import json
import shlex
from pathlib import Path

import pytest
from support.runs import tiny_config, write_run

from nmt.cli import train
from nmt.config.loading import builtin_configs, load_config

SMALL = shlex.split(
    "model.dim=16 model.heads=2 model.encoder_layers=1 model.decoder_layers=1 "
    "model.feed_forward_dim=32 train.max_updates=3 train.schedule.warmup=2 train.batch_tokens=256 "
    "train.threads=1 validate.sentences=5 validate.beam=1 data.workers=1"
)


@pytest.mark.parametrize("name", builtin_configs())
def test_builtin_configs_are_found_in_any_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(Path(name))
    assert config.run_dir == tmp_path / "runs" / name
    files = [*config.data.train[0].source, *config.data.validation[0].target]
    assert all(path.is_file() for path in files)
    assert load_config(Path(name), ["run_dir=mine"]).run_dir == tmp_path / "mine"


def test_a_file_goes_before_a_builtin_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path)
    path.rename(tmp_path / "quickstart")
    monkeypatch.chdir(tmp_path)
    assert load_config(Path("quickstart")).run_dir == tmp_path / "run"


def test_an_unknown_name_lists_those_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train.main(["--config", "quikstart"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("nmt-train: quikstart: ")
    assert all(name in error for name in builtin_configs())


def test_quickstart_trains_and_translates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train.main(["--config", "quickstart", *SMALL]) == 0
    result = json.loads((tmp_path / "runs" / "quickstart" / "result.json").read_bytes())
    assert result["status"] == "finished"
    error = capsys.readouterr().err
    assert "  translation " in error
    assert error.splitlines()[-1].startswith("next: nmt-translate --model runs/quickstart")


def test_the_plan_of_a_config_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tiny_config(tmp_path, max_updates=10_000)
    settings["data"]["max_length"] = 8
    settings["train"]["schedule"]["warmup"] = 6_000
    settings["validate"]["every"] = 20_000
    config = write_run(tmp_path, settings)
    before = sorted(tmp_path.rglob("*"))
    many = ["data.subword.merges=32000", "train.batch_tokens=1000"]
    assert train.main(["--config", str(config), "--plan", *many]) == 0
    assert sorted(tmp_path.rglob("*")) == before
    output = capsys.readouterr().out
    rows = dict(line.split("  ", 1) for line in output.splitlines() if "  " in line)
    assert rows["training pairs"].strip().startswith("240, ")
    assert rows["validation pairs"].strip() == "12"
    assert " left" not in rows["time"]
    assert " s per update" in rows["time"]
    warned = [line for line in output.splitlines() if line.startswith("warning: ")]
    expected = [
        "data.subword: 32,000 subwords are many for 240 pairs",
        "data.max_length 8",
        "train.schedule.warmup 6,000",
        "an epoch has only",
        "each pair is seen",
        "validate.every 20,000",
    ]
    assert len(warned) == len(expected), output
    for line, start in zip(warned, expected, strict=True):
        assert line.removeprefix("warning: ").startswith(start)


def test_a_fitting_config_has_no_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_run(tmp_path, tiny_config(tmp_path, max_updates=100, batch_tokens=60))
    assert train.main(["--config", str(config), "--plan"]) == 0
    assert "warning" not in capsys.readouterr().out
