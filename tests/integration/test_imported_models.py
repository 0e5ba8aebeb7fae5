"""Imported models are used like our own: every command that takes a model, and more training."""

import json
import math
from pathlib import Path

import pytest

import nmt.cli.align
import nmt.cli.analyze
import nmt.cli.export
import nmt.cli.filter
import nmt.cli.import_
import nmt.cli.train
import nmt.cli.translate
from nmt.checkpoint.model_directory import load_model
from nmt.decoding.translator import Translator

FOLDER = Path(__file__).parents[1] / "unit/exchange/huggingface"
RECORDED = json.loads((FOLDER / "recorded.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an imported model, and a text with its translation."""
    directory = tmp_path_factory.mktemp("imported")
    arguments = ["--format", "huggingface", str(FOLDER), "--output", str(directory / "model")]
    assert nmt.cli.import_.main(arguments) == 0
    for name, key in (("source", "lines"), ("target", "targets")):
        text = "".join(f"{line}\n" for line in RECORDED[key])
        (directory / name).write_text(text, encoding="utf-8")
    return directory


def pair_arguments(place: Path) -> list[str]:
    files = ["--source", str(place / "source"), "--target", str(place / "target")]
    return ["--model", str(place / "model"), *files]


def test_commands(place: Path) -> None:
    output = place / "translated"
    arguments = ["--model", str(place / "model"), "--input", str(place / "source")]
    assert nmt.cli.translate.main([*arguments, "--output", str(output)]) == 0
    assert len(output.read_text().splitlines()) == len(RECORDED["lines"])
    pairs = pair_arguments(place)
    assert nmt.cli.align.main([*pairs, "--output", str(place / "links")]) == 0
    links = (place / "links").read_text().splitlines()
    for line, link in zip(RECORDED["lines"], links, strict=True):
        words = len([word for word in line.split(" ") if word])
        assert all(int(one.split("-")[0]) < words for one in link.split())
    assert any(links)
    assert nmt.cli.filter.main([*pairs, "--output", str(place / "scores.tsv")]) == 0
    assert len((place / "scores.tsv").read_text().splitlines()) >= len(RECORDED["lines"])
    assert nmt.cli.analyze.main([*pairs, "--output", str(place / "report")]) == 0
    assert (place / "report/report.html").exists()


@pytest.mark.parametrize("attention", ["", "model: {attention: {cross: rela-g}}"])
def test_fine_tuning(place: Path, tmp_path: Path, attention: str) -> None:
    """The validation loss before the first update is the model's, and a few updates lower it.

    Other attention kinds can take the place of softmax.
    """
    for side in ("source", "target"):
        lines = (place / side).read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / f"validation.{side}").write_text("".join(lines[:8]), encoding="utf-8")
    (tmp_path / "train.yaml").write_text(
        f"""
run_dir: run
{attention}
data:
  train: {{source: {place / "source"}, target: {place / "target"}}}
  validation: {{source: validation.source, target: validation.target}}
  workers: 1
train:
  start_from: {place / "model"}
  max_updates: 20
  learning_rate: 1e-3
  schedule: {{kind: constant, warmup: 1}}
  batch_tokens: 500
  accumulate: 1
  device: cpu
  average_last: 0
validate: {{every: 10, beam: 0, metric: loss}}
"""
    )
    assert nmt.cli.train.main(["--config", str(tmp_path / "train.yaml")]) == 0
    lines = (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found = [one for one in map(json.loads, lines) if one["event"] == "validation"]
    assert found[-1]["loss"] < found[0]["loss"] - 0.05
    best = tmp_path / "run/best"
    assert load_model(best).codec.files() == load_model(place / "model").codec.files()
    if not attention:
        texts = ((place / side).read_text(encoding="utf-8") for side in ("source", "target"))
        scores = Translator.load(place / "model", device="cpu").score_pairs(
            *(text.splitlines()[:8] for text in texts)
        )
        total = -sum(score.log_probability for score in scores)
        mean = total / sum(len(score.tokens) for score in scores)
        assert math.log(found[0]["perplexity"]) == pytest.approx(mean, abs=1e-4)
