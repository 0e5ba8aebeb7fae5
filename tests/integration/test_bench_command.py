"""nmt-bench train and decode run everywhere, and their numbers agree with each other."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import tiny_config, write_run
from support.small_models import write_model

from nmt.bench.kinds import all_kinds
from nmt.cli import bench
from nmt.cli.bench import build_parser
from nmt.cli.bench_arguments import take_paper, write
from nmt.config.attention_kinds import ATTENTION_KINDS
from nmt.errors import StorageError

TINY = ["--dim", "16", "--heads", "2", "--layers", "1", "--feed-forward-dim", "32"]
RANDOM = [*TINY, "--vocabulary", "40", "--length", "3", "--repeats", "2"]
PNG = b"\x89PNG\r\n\x1a\n"
MACHINE = {"processor", "cores", "threads", "kernels", "gpu", "torch", "python", "load"}


def run(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """The JSON document of a run that succeeds."""
    path, figure = tmp_path / "numbers.json", tmp_path / "figure.png"
    assert bench.main([*arguments, "--json", str(path), "--figure", str(figure)]) == 0
    assert figure.read_bytes().startswith(PNG)
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert set(document["machine"]) == MACHINE
    check_spread(document["matrix_rate"])
    return document


def check_spread(values: dict[str, float]) -> None:
    assert 0.0 < values["low"] <= values["median"] <= values["high"]


def test_training_compares_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = run(tmp_path, "train", *RANDOM, "--batch-tokens", "60", "--updates", "1")
    output = capsys.readouterr().out
    rows = {row["kind"]: row for row in document["kinds"]}
    assert set(rows) == set(all_kinds()) > set(ATTENTION_KINDS)
    assert document["reference"] == "softmax"
    assert rows["softmax"]["relative_speed"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    for kind, row in rows.items():
        assert f"\n| {kind} |" in output
        check_spread(row["tokens_per_second"])
        check_spread(row["share_of_matrix_rate"])
        assert row["share_of_matrix_rate"]["high"] < 1.5
    # Gain and gate of each of three attentions; one alpha for each of their two heads.
    plain = rows["softmax"]["parameters"]
    assert rows["rela-g"]["parameters"] - plain == 3 * 2 * 16
    assert rows["rela-i"]["parameters"] - plain == 3 * 16
    assert rows["entmax-learned"]["parameters"] - plain == 3 * 2
    assert document["settings"]["model"]["dim"] == 16
    assert document["machine"]["processor"] in output


def test_the_setting_and_the_numbers_of_the_paper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options that are given change single values of the setting."""
    small = [*RANDOM, "--batch-tokens", "60"]
    document = run(tmp_path, "train", "--paper", *small, "--updates", "1")
    assert [row["kind"] for row in document["kinds"]] == [
        "softmax",
        "sparsemax",
        "entmax15",
        "rela-g",
    ]
    assert document["settings"]["model"]["dropout"] == 0.1
    assert "| 72.34M | 0.93x | 0.95x |" in capsys.readouterr().out
    arguments = build_parser().parse_args(["train", "--paper", "--layers", "2"])
    assert take_paper(arguments, None) == ["softmax", "sparsemax", "entmax15", "rela-g"]
    assert (arguments.dim, arguments.heads, arguments.layers) == (512, 8, 2)
    assert arguments.batch_tokens == 25_000
    assert bench.main(["train", "--paper", "--config", "x.yaml"]) == 2
    assert "--paper: is for random data" in capsys.readouterr().err


def test_training_accumulates_batches(tmp_path: Path) -> None:
    arguments = [*RANDOM, "--batch-tokens", "60", "--updates", "1", "--kinds", "softmax"]
    one = run(tmp_path, "train", *arguments)
    three = run(tmp_path, "train", *arguments, "--accumulate", "3")
    assert three["settings"]["train"]["accumulate"] == 3
    assert three["tokens"] > 2 * one["tokens"]
    assert three["processes"] == 1


def test_decoding_in_bfloat16(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--kinds", "softmax", "--batch", "2", "--sentences", "4", "--precision", "bfloat16"]
    document = run(tmp_path, "decode", *RANDOM, *options)
    assert [row["weights"] for row in document["models"]] == ["bfloat16"]
    assert "\n| softmax, bfloat16 | 2 |" in capsys.readouterr().out


def test_training_on_the_data_of_a_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_run(tmp_path, tiny_config(tmp_path))
    arguments = ["--config", str(config), "--repeats", "1"]
    kinds = ["--kinds", "config", "ReLA-g", "train.batch_tokens=50"]
    document = run(tmp_path, "train", *arguments, *kinds)
    assert [row["kind"] for row in document["kinds"]] == ["config", "rela-g"]
    assert document["reference"] == "config"
    assert document["settings"]["train"]["batch_tokens"] == 50
    # The config has ReLA-g in cross-attention only.
    configured, everywhere = (row["parameters"] for row in document["kinds"])
    assert everywhere - configured == 2 * 2 * 16
    # Two updates of two batches.
    assert 0 < document["tokens"] <= 4 * 50
    assert not (tmp_path / "run").exists(), "measuring is no run"
    assert "relative to config" in capsys.readouterr().out


def test_decoding_compares_random_models_of_every_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*RANDOM, "--sentences", "11", "--batch", "1", "4", "--beam", "2"]
    document = run(tmp_path, "decode", *arguments, "--repeats", "1")
    rows = document["models"]
    assert [(row["model"], row["batch_size"]) for row in rows] == [
        (kind, size) for size in (1, 4) for kind in all_kinds()
    ]
    check_decoding(document, sentences=11)
    # At batch 1 a forced output is as long as its source, so all models write the same number.
    tokens = [
        row["tokens_per_second"]["median"] / row["sentences_per_second"]["median"] for row in rows
    ]
    assert tokens[: len(all_kinds())] == pytest.approx([tokens[0]] * len(all_kinds()))
    sources = sum(group["mean_length"] * group["sentences"] for group in rows[0]["groups"])
    assert tokens[0] == pytest.approx(sources / 11)
    assert "| rela-g | 4 |" in capsys.readouterr().out


def check_decoding(document: dict[str, Any], *, sentences: int) -> None:
    """Positive numbers, ten groups, and the first model as fast as itself."""
    assert document["sentences"] == sentences
    first = document["models"][0]
    for row in document["models"]:
        for key in ("sentences_per_second", "tokens_per_second", "relative_speed"):
            check_spread(row[key])
        groups = row["groups"]
        assert len(groups) == 10
        assert sum(group["sentences"] for group in groups) == sentences
        assert max(g["sentences"] for g in groups) - min(g["sentences"] for g in groups) <= 1
        lengths = [group["mean_length"] for group in groups]
        assert lengths == sorted(lengths)
        assert all(group["sentences_per_second"] > 0.0 for group in groups)
        if (row["model"], row["weights"]) == (first["model"], first["weights"]):
            assert row["relative_speed"] == {"median": 1.0, "low": 1.0, "high": 1.0}
            assert [group["relative_speed"] for group in groups] == [1.0] * 10


def test_decoding_with_saved_models(tmp_path: Path) -> None:
    softmax = write_model(tmp_path / "softmax", seed=1)
    rela = write_model(tmp_path / "rela", seed=1, model=", attention: rela-g")
    words = ["the", "old", "man", "sees", "a", "dog"]
    lines = [" ".join(words[: 1 + number % 6]) for number in range(14)]
    source = tmp_path / "source.txt"
    source.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    models = ["--model", str(softmax), str(rela), "--input", str(source), "--batch", "3", "--int8"]
    document = run(tmp_path, "decode", *models, "--sentences", "24", "--repeats", "2")
    rows = document["models"]
    assert [(row["model"], row["weights"]) for row in rows] == [
        (str(softmax), "float32"),
        (str(softmax), "int8"),
        (str(rela), "float32"),
        (str(rela), "int8"),
    ]
    assert rows[0]["parameters"] == rows[1]["parameters"] < rows[2]["parameters"]
    check_decoding(document, sentences=12)  # every second line is blank


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--kinds", "softmaxx"], "--kinds: expected some of softmax"),
        (["train", "--heads", "3"], "--heads: expected a divisor of --dim (256), got 3"),
        (["train", "model.dim=8"], "model.dim=8: replaces a value of a config"),
        (["train", "--config", "x.yaml", "--dim", "8"], "--dim: is for random data"),
        (["train", "--config", "x.yaml", "--precision", "float32"], "--precision: is for random"),
        (["train", "--precision", "float16", "--device", "cpu"], "float16 needs a GPU"),
        (["decode", "--model", "m"], "--input: expected the text"),
        (["decode", "--input", "m"], "--input: untrained models"),
        (["decode", "--model", "m", "--input", "f", "--kinds", "topk"], "--kinds: is for random"),
        (["decode", "--vocabulary", "4"], "--vocabulary: expected above 4, got 4"),
        (["decode", "--batch", "0"], "--batch"),
        (["decode", "--json", "no/such/place.json"], "no/such/place.json: expected the name of a"),
        (["train", "--json", "same", "--figure", "same"], "same: is to be written, but is also"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: int | str | None = bench.main(arguments)
    except SystemExit as error:
        code = error.code
    text = capsys.readouterr().err
    assert code == 2
    assert message in text
    assert text.count("\n") == 1


def test_a_full_disk_is_named_by_the_file() -> None:
    with pytest.raises(StorageError, match="/dev/full: cannot be written"):
        write(Path("/dev/full"), lambda: "numbers")


def test_growth_sets_cost_beside_what_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, figure = tmp_path / "numbers.json", tmp_path / "figure.png"
    arguments = ["growth", *RANDOM, "--repeats", "1", "--sizes", "2", "--kind", "rela-g"]
    axes = [axis for axis in bench.AXIS_NAMES if axis != "prepare"]
    files = ["--json", str(path), "--figure", str(figure)]
    assert bench.main([*arguments, *files, "--axes", *axes]) == 0
    output = capsys.readouterr().out
    document = json.loads(path.read_text(encoding="utf-8"))
    assert figure.read_bytes().startswith(PNG)
    assert len(document["axes"]) == len(axes)
    for axis in document["axes"]:
        first, second = axis["points"]
        assert f"| {axis['size']} |" in output
        assert first["cost"] == {"median": 1.0, "low": 1.0, "high": 1.0}
        assert first["demand"] == 1.0
        check_spread(second["seconds_per_unit"])
    demands = [axis["points"][1]["demand"] for axis in document["axes"]]
    # A batch of translations asks for the same at any size; all else asks for more.
    assert demands[axes.index("decode-batch")] == pytest.approx(1.0, abs=0.05)
    for axis in ("train-length", "train-vocabulary", "decode-beam", "decode-vocabulary"):
        assert demands[axes.index(axis)] > 1.05


def test_the_names_of_axes_are_those_that_can_be_measured() -> None:
    from nmt.bench.growth import GROWTH_AXES

    assert tuple(GROWTH_AXES) == bench.AXIS_NAMES


def test_preparing_more_pairs_asks_for_the_same_a_pair(tmp_path: Path) -> None:
    from nmt.bench.growth import Setting, preparation
    from nmt.bench.synthetic import Shapes

    case = preparation(50, Setting(Shapes(), "softmax", torch.device("cpu"), tmp_path))
    case.run()
    assert logging.getLogger("nmt.data").level == logging.NOTSET
    assert case.demand == case.units == 50
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["train.source", "train.target"]
