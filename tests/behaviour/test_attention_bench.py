"""nmt-bench attention measures every kind and says what it measured."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from nmt.bench import attention
from nmt.bench.attention import AttentionSizes
from nmt.cli import bench
from nmt.config.attention_kinds import ATTENTION_KINDS
from nmt.config.config import AttentionConfig

QUICK = ["attention", "--tokens", "16", "--dim", "8", "--heads", "2", "--repeats", "1"]


def test_attention_in_bfloat16(tmp_path: Path) -> None:
    path = tmp_path / "attention.json"
    arguments = [*QUICK, "--lengths", "8", "--kinds", "softmax", "rela-g"]
    assert bench.main([*arguments, "--precision", "bfloat16", "--json", str(path)]) == 0
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["precision"] == "bfloat16"
    forms = [row["form"] for row in document["measurements"]]
    assert forms == ["plain softmax", "torch SDPA", "softmax", "rela-g"]
    for row in document["measurements"]:
        assert 0.0 < row["seconds"]["low"] <= row["seconds"]["high"]


@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
def test_every_kind_is_measured(
    mask: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "attention.json"
    arguments = [*QUICK, "--lengths", "4", "8", "--mask", mask, "--json", str(path)]
    assert bench.main(arguments) == 0
    table = capsys.readouterr().out
    document = json.loads(path.read_text(encoding="utf-8"))
    found = {(row["form"], row["length"]) for row in document["measurements"]}
    for kind in (*ATTENTION_KINDS, "plain softmax", "torch SDPA", "sparsemax, package"):
        assert {(kind, 4), (kind, 8)} <= found
        assert f"\n| {kind} |" in table
    for length in (4, 8):
        rows = [row for row in document["measurements"] if row["length"] == length]
        references = [row for row in rows if row["form"] in ("plain softmax", "torch SDPA")]
        best = min(row["milliseconds"] for row in references)
        for row in rows:
            assert row["relative_speed"] == pytest.approx(best / row["milliseconds"])
    assert document["mask"] == mask


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--heads", "3"], "--heads: expected a divisor of --dim (8), got 3"),
        (["--lengths", "0"], "--lengths"),
        (["--dropout", "1"], "--dropout"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: int | str | None = bench.main([*QUICK, *arguments])
    except SystemExit as error:
        code = error.code
    error_text = capsys.readouterr().err
    assert code == 2
    assert message in error_text
    assert error_text.count("\n") == 1


def test_each_length_is_printed_before_the_next_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is interrupted has printed what it measured."""
    printed: list[str] = []

    def make_forms(
        sizes: AttentionSizes, length: int, cases: Mapping[str, AttentionConfig]
    ) -> dict[str, Callable[[], None]]:
        printed.append(capsys.readouterr().out)
        return original(sizes, length, cases)

    original = attention.make_forms
    monkeypatch.setattr(attention, "make_forms", make_forms)
    assert bench.main([*QUICK, "--lengths", "4", "8"]) == 0
    printed.append(capsys.readouterr().out)
    assert [text.count("\n| rela-g | ") for text in printed] == [0, 1, 1]


def test_only_the_named_kinds_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([*QUICK, "--lengths", "4", "--kinds", "rela-g", "entmax-learned"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    names = [row.split(" | ")[0].removeprefix("| ") for row in rows]
    assert set(names[2:]) == {"plain softmax", "torch SDPA", "rela-g", "entmax-learned"}
