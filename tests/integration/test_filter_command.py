"""nmt-filter on small models with random weights."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from translation_models import (
    make_broken_directory,
    make_codec,
    make_config,
    make_directory,
    make_model,
    random_lines,
)

from nmt.cli import filter as command
from nmt.config.config import AttentionConfig, SublayerAttentionConfig

SOURCE = random_lines(10, seed=1, longest=12)
TARGET = [line.upper() for line in random_lines(10, seed=2, longest=12)]
COLUMNS = [
    "null_rate",
    "null_rate_layer_0",
    "null_rate_layer_1",
    "log_probability",
    "length_ratio",
    "coverage",
    "length_deviation",
    "combined",
    "problem",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each kind, and a text; line 3 is blank on one side, line 5 is no UTF-8."""
    folder = tmp_path_factory.mktemp("filter")
    for kind in ("rela-g", "softmax"):
        config = make_config(kind, subword="bpe")
        codec = make_codec(config)
        make_directory(folder / kind, config, codec, make_model(config, codec))
    source = [line.encode() for line in SOURCE]
    source[2], source[4] = b" ", b"the \xff dog"
    (folder / "source").write_bytes(b"".join(line + b"\n" for line in source))
    (folder / "target").write_text("".join(f"{line}\n" for line in TARGET), encoding="utf-8")
    (folder / "labels").write_text("clean\nshort\nclean\nother\nclean\n" * 2, encoding="utf-8")
    return folder


def run(folder: Path, *options: str, kind: str = "rela-g") -> int:
    files = [f"--source={folder / 'source'}", f"--target={folder / 'target'}"]
    return command.main([f"--model={folder / kind}", *files, *options])


def read_table(text: str) -> list[dict[str, str]]:
    header, *rows = [line.split("\t") for line in text.split("\n")[:-1]]
    assert header == COLUMNS
    return [dict(zip(header, row, strict=True)) for row in rows]


@pytest.mark.parametrize("kind", ["rela-g", "softmax"])
def test_bfloat16_scores_nearly_alike(
    folder: Path, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    tables = []
    for precision in ("auto", "bfloat16"):
        assert run(folder, f"--precision={precision}", kind=kind) == 0
        tables.append([row for row in read_table(capfd.readouterr().out) if not row["problem"]])
    scores = [[float(row["log_probability"]) for row in table] for table in tables]
    assert scores[0] != scores[1]
    assert scores[0] == pytest.approx(scores[1], abs=0.3)


def test_a_line_for_each_pair_in_order(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--batch-tokens=64") == 0
    out, err = capfd.readouterr()
    rows = read_table(out)
    assert len(rows) == len(SOURCE)
    for number, row in enumerate(rows):
        if number in (2, 4):
            assert row["problem"] == {2: "empty line", 4: "invalid UTF-8"}[number]
            assert all(row[name] == "nan" for name in COLUMNS[:-1])
            continue
        words = len(SOURCE[number].split(" ")), len(TARGET[number].split(" "))
        assert float(row["length_ratio"]) == pytest.approx(min(words) / max(words), abs=1e-6)
        layers = float(row["null_rate_layer_0"]), float(row["null_rate_layer_1"])
        assert float(row["null_rate"]) == pytest.approx(sum(layers) / 2, abs=2e-6)
        assert float(row["log_probability"]) < 0
        assert float(row["length_deviation"]) >= 0
        difference = float(row["log_probability"]) - float(row["length_deviation"])
        assert float(row["combined"]) == pytest.approx(difference, abs=2e-6)
        assert row["problem"] == ""
    assert "1 of 10 pairs not scored: invalid UTF-8" in err
    assert run(folder, "--batch-tokens=4000") == 0
    assert capfd.readouterr().out == out


@pytest.mark.parametrize("column", ["null_rate", "log_probability", "null_rate_layer_1", None])
def test_the_best_pairs_are_kept_in_order(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], column: str | None
) -> None:
    """Without --rank-by, log probability and length deviation count."""
    kept = [tmp_path / "kept.source", tmp_path / "kept.target"]
    files = [f"--keep-source={kept[0]}", f"--keep-target={kept[1]}"]
    table = tmp_path / "table"
    options = ["--keep-best=0.5", f"--output={table}", "--json"]
    if column is None:
        column = "combined"
    else:
        options.append(f"--rank-by={column}")
    assert run(folder, *files, *options) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["kept"] == {"pairs": 5, "rank_by": column}
    rows = read_table(table.read_text(encoding="utf-8"))
    sign = -1 if column in ("log_probability", "combined") else 1
    cost = [math.inf if row["problem"] else sign * float(row[column]) for row in rows]
    best = sorted(sorted(range(10), key=lambda number: cost[number])[:5])
    lines = [path.read_text(encoding="utf-8").split("\n")[:-1] for path in kept]
    assert lines[0] == [SOURCE[number] for number in best]
    assert lines[1] == [TARGET[number] for number in best]


def test_areas_under_the_curve_by_label(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(folder, f"--labels={folder / 'labels'}", "--json") == 0
    out, err = capfd.readouterr()
    report = json.loads(out)
    assert report["labels"] == {"clean": 6, "short": 2, "other": 2}
    areas = report["area_under_roc"]
    assert list(areas) == COLUMNS[:-1]
    assert run(folder) == 0
    rows = read_table(capfd.readouterr().out)
    values = [-math.inf if row["problem"] else float(row["length_ratio"]) for row in rows]
    good = [values[number] for number in (0, 2, 4, 5, 7, 9)]
    for label, places in (("short", (1, 6)), ("other", (3, 8)), ("all kinds", (1, 6, 3, 8))):
        won = [
            (one > values[place]) + 0.5 * (one == values[place]) for one in good for place in places
        ]
        assert areas["length_ratio"][label] == pytest.approx(sum(won) / len(won))
    assert "null_rate_layer_1" in err


def test_softmax_has_no_null_rate_and_says_so(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, kind="softmax") == 0
    out, err = capfd.readouterr()
    scored = [row for row in read_table(out) if not row["problem"]]
    assert {row["null_rate"] for row in scored} == {"0.000000"}
    assert "all null rates are 0" in err
    kept = [f"--keep-source={tmp_path / 'a'}", f"--keep-target={tmp_path / 'b'}"]
    assert run(folder, "--keep-best=0.8", "--rank-by=null_rate", *kept, kind="softmax") == 2
    assert "leave --rank-by out" in capfd.readouterr().err
    assert os.listdir(tmp_path) == []
    assert run(folder, "--keep-best=0.8", *kept, kind="softmax") == 0
    assert "by combined" in capfd.readouterr().err
    assert len((tmp_path / "a").read_text(encoding="utf-8").split("\n")) == 8 + 1


def test_a_layer_without_nulls_ranks_nothing(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = make_config("rela-g", subword="bpe")
    cross = SublayerAttentionConfig("rela-g", layers={0: AttentionConfig("softmax")})
    attention = replace(config.model.attention, cross=cross)
    config = replace(config, model=replace(config.model, attention=attention))
    codec = make_codec(config)
    make_directory(folder / "mixed", config, codec, make_model(config, codec))
    kept = [f"--keep-source={tmp_path / 'a'}", f"--keep-target={tmp_path / 'b'}"]
    options = ["--keep-best=0.8", *kept]
    assert run(folder, *options, "--rank-by=null_rate_layer_0", kind="mixed") == 2
    assert "it is 0 for every pair with this model" in capfd.readouterr().err
    for name in ("null_rate_layer_1", "null_rate"):
        assert run(folder, *options, f"--rank-by={name}", kind="mixed") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep-best=0.5"], "belong together"),
        (
            ["--rank-by=beauty", "--keep-best=0.5", "--keep-source=a", "--keep-target=b"],
            "--rank-by: expected one of null_rate, null_rate_layer_0",
        ),
        (["--output=target"], "is also another file of this command"),
        (["--labels=GOOD"], "expected the label 'clean' and others, got fine, noise"),
        (["--labels=FEW"], "expected a label for each of 10 pairs, got 2"),
        (["--labels=WORDS"], "WORDS:1: expected one word"),
        (["--target=FEW"], "has 10 lines but FEW has 2"),
        (["--source=nowhere"], "nowhere: cannot be read"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_file(
    folder: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    Path("GOOD").write_text("fine\nnoise\n", encoding="utf-8")
    Path("FEW").write_text("clean\nbad\n", encoding="utf-8")
    Path("WORDS").write_text("two words\n", encoding="utf-8")
    assert run(folder, f"--output={tmp_path / 'table'}", *options) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert message in err.rstrip("\n").split("\n")[-1]


@pytest.mark.parametrize("value", ["0", "1.5", "nan", "half", "-1"])
def test_a_share_is_a_share(folder: Path, capfd: pytest.CaptureFixture[str], value: str) -> None:
    with pytest.raises(SystemExit) as caught:
        run(folder, f"--keep-best={value}")
    assert caught.value.code == 2
    assert "--keep-best: expected a number" in capfd.readouterr().err


@pytest.mark.parametrize("kind", ["rela-g", "softmax"])
def test_pairs_without_finite_numbers_are_not_scored_and_end_with_6(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    make_broken_directory(tmp_path / kind, kind)
    (tmp_path / "source").write_text("the dog\na cat\nthe man\n")
    (tmp_path / "target").write_text("A DOG\nA CAT\nTHE\n")
    kept = [f"--keep-source={tmp_path / 'a'}", f"--keep-target={tmp_path / 'b'}"]
    options = ["--keep-best=1", "--rank-by=log_probability", *kept]
    assert run(tmp_path, *options, kind=kind) == 6
    out, err = capfd.readouterr()
    rows = read_table(out)
    assert [row["problem"] == "" for row in rows] == [True, False, True]
    assert {rows[1][column] for column in COLUMNS[:-1]} == {"nan"}
    assert "nan" not in {rows[number][column] for number in (0, 2) for column in COLUMNS}
    assert "not finite" in rows[1]["problem"]
    assert "source:2: not scored" in err
    assert err.strip().splitlines()[-1].endswith("(the first is line 2); their scores are nan")
    assert (tmp_path / "a").read_text() == "the dog\nthe man\n"


CLEANED = [
    ("A dog sleeps.", "Ein Hund schläft.", True),
    ("A dog sleeps.", "Ein Hund schläft.", False),  # a duplicate
    ("A man and a dog and a cat and a bird are here now.", "Ja.", False),  # the ratio
    ("A cat.", "Кошка.", False),  # the script
    ("word " * 300, "Wort " * 300, False),  # the length
    ("A cat\u200b sleeps.", "Eine Katze schläft.", True),
]


def test_cleaning_needs_no_model(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    paths = {name: tmp_path / name for name in ("source", "target", "keep-source", "keep-target")}
    for name, column in (("source", 0), ("target", 1)):
        text = "".join(f"{row[column].strip()}\n" for row in CLEANED)
        paths[name].write_text(text, encoding="utf-8")
    options = [f"--{name}={path}" for name, path in paths.items()]
    assert command.main(["--clean", *options, "--max-ratio=5", "--target-script=latin"]) == 0
    kept = paths["keep-target"].read_text(encoding="utf-8").splitlines()
    assert kept == [target for _, target, wanted in CLEANED if wanted]
    error = capfd.readouterr().err
    assert "kept 2 of 6 pairs" in error.splitlines()
    assert "1 pairs left out: duplicate" in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--clean"], "--clean needs --keep-source FILE and --keep-target FILE"),
        (["--clean", "--model=x"], "leave out --model"),
        (["--clean", "--rank-by=null_rate"], "leave out --rank-by"),
        (["--clean", "--device=auto"], "leave out --device"),
        (["--model=x", "--max-words=250"], "--max-words: expected --clean with it"),
        (["--model=x", "--keep-duplicates"], "--keep-duplicates: expected --clean with it"),
        (["--model=x", "--rank-by=null_rate"], "--rank-by: expected --keep-best with it"),
        (["--model=x", "--clean-label=good"], "--clean-label: expected --labels with it"),
        ([], "--model DIR is needed"),
    ],
)
def test_mistakes_of_cleaning(
    folder: Path, options: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    files = [f"--source={folder / 'source'}", f"--target={folder / 'target'}"]
    assert command.main([*files, *options]) == 2
    assert message in capfd.readouterr().err
