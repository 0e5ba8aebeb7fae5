"""nmt-align on small models with random weights."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.attention import loaded_model, observe_pairs
from translation_models import (
    make_broken_directory,
    make_codec,
    make_config,
    make_directory,
    make_model,
    random_lines,
)

from nmt.analysis.alignment import chosen_links
from nmt.analysis.gold import GoldLinks, count_links
from nmt.analysis.symmetrization import grow_diag_final
from nmt.cli import align
from nmt.decoding.alignment import AlignmentHead, links_of

SOURCE = [*random_lines(9, seed=1, longest=12), "", "the old dog"]
TARGET = [*(line.upper() for line in random_lines(9, seed=2, longest=12)), "", "A CAT SEES"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models and a text to align."""
    folder = tmp_path_factory.mktemp("align")
    for name, seed in (("forward", 1), ("reverse", 2)):
        config = make_config("rela-g", subword="bpe")
        codec = make_codec(config)
        model = make_model(config, codec, seed=seed)
        if name == "reverse":
            languages = {"source_language": "deu", "target_language": "en-GB"}
            config = replace(config, data=replace(config.data, **languages))
        make_directory(folder / name, config, codec, model)
    (folder / "source").write_text("".join(f"{line}\n" for line in SOURCE), encoding="utf-8")
    (folder / "target").write_text("".join(f"{line}\n" for line in TARGET), encoding="utf-8")
    return folder


def run(folder: Path, *options: str) -> int:
    inputs = [f"--source={folder / 'source'}", f"--target={folder / 'target'}"]
    return align.main([f"--model={folder / 'forward'}", *inputs, *options])


def expected_links(seed: int, head: AlignmentHead, *, reverse: bool = False) -> list[tuple]:
    """The links by the Python interface."""
    config = make_config("rela-g", subword="bpe")
    codec = make_codec(config)
    loaded = loaded_model(config, codec, make_model(config, codec, seed=seed))
    sides = (TARGET, SOURCE) if reverse else (SOURCE, TARGET)
    seen = observe_pairs(loaded, zip(*sides, strict=True))
    links = [links_of(chosen_links(one, head)) for one in seen]
    return [tuple(sorted(link[::-1] if reverse else link for link in one)) for one in links]


def parse(text: str) -> list[tuple[tuple[int, int], ...]]:
    assert text.endswith("\n")
    lines = text.split("\n")[:-1]
    return [
        tuple((int(a), int(b)) for a, b in (link.split("-") for link in line.split(" ") if link))
        for line in lines
    ]


@pytest.mark.parametrize(
    ("options", "head"),
    [
        (["--layer=1"], AlignmentHead(1, None, shifted=True)),
        (["--layer=0", "--head=3", "--normal"], AlignmentHead(0, 3, shifted=False)),
    ],
)
def test_links_of_a_given_head(
    folder: Path, capfd: pytest.CaptureFixture[str], options: list[str], head: AlignmentHead
) -> None:
    assert run(folder, *options, "--batch-tokens=64") == 0
    out, err = capfd.readouterr()
    links = parse(out)
    assert links == expected_links(1, head)
    assert len(links) == len(SOURCE)
    assert links[-2] == ()  # the blank pair
    assert sum(map(len, links)) > 20
    assert "(as given)" in err


def test_without_gold_a_head_is_chosen_and_named(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "--output", str(tmp_path / "links"), "--json") == 0
    out, err = capfd.readouterr()
    (direction,) = json.loads(out)["directions"]
    head = AlignmentHead(direction["layer"], direction["head"], direction["step"] == "shifted")
    written = (tmp_path / "links").read_text(encoding="utf-8")
    assert parse(written) == expected_links(1, head)
    assert f"layer {head.layer}" in err
    assert "too few pairs to choose a head" in err


def test_own_links_as_gold_have_no_error(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The links of one head, counted from 1 with the target first, lead back to that head."""
    head = AlignmentHead(1, 2, shifted=True)
    gold = tmp_path / "gold"
    gold.write_text(
        "".join(
            " ".join(f"{t + 1}-{s + 1}" for s, t in links) + "\n"
            for links in expected_links(1, head)
        ),
        encoding="utf-8",
    )
    options = ["--gold-index=1", "--gold-order=target-source", "--json"]
    assert run(folder, "--gold", str(gold), *options) == 0
    report = json.loads(capfd.readouterr().out)
    (direction,) = report["directions"]
    assert (direction["layer"], direction["head"], direction["step"]) == (1, 2, "shifted")
    assert report["aer"] == 0.0
    assert report["precision"] == report["recall"] == 1.0
    assert report["pairs"] == len(SOURCE)
    table = direction["aer"]["shifted"]["layers"][1]
    assert (table["best_head"], table["best_head_aer"]) == (2, 0.0)


def test_a_head_is_chosen_on_development_pairs_and_reported_on_the_others(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The gold is that of one head on the first four pairs and of another on the rest."""
    chosen, other = AlignmentHead(0, 1, shifted=False), AlignmentHead(1, 0, shifted=True)
    links = [*expected_links(1, chosen)[:4], *expected_links(1, other)[4:]]
    gold = tmp_path / "gold"
    gold.write_text(
        "".join(" ".join(f"{s}-{t}" for s, t in one) + "\n" for one in links), encoding="utf-8"
    )
    assert run(folder, "--gold", str(gold), "--development=4", "--json") == 0
    report = json.loads(capfd.readouterr().out)
    (direction,) = report["directions"]
    assert (direction["layer"], direction["head"], direction["step"]) == (0, 1, "normal")
    counts = [
        count_links(found, GoldLinks(frozenset(true), frozenset(true)))
        for found, true in zip(expected_links(1, chosen), links, strict=True)
    ]
    total = sum(counts[5:], counts[4])
    assert report["aer"] == pytest.approx(total.error_rate)
    assert report["aer"] > 0.1
    assert report["pairs"] == len(SOURCE) - 4


def test_two_directions_are_combined(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--reverse-model", str(folder / "reverse"), "--reverse-layer=0", "--layer=1"]
    assert run(folder, *options) == 0
    forward = expected_links(1, AlignmentHead(1))
    reverse = expected_links(2, AlignmentHead(0), reverse=True)
    expected = [grow_diag_final(*both) for both in zip(forward, reverse, strict=True)]
    assert parse(capfd.readouterr().out) == expected
    assert expected != forward
    assert run(folder, *options, "--symmetrize=intersection") == 0
    both = [tuple(sorted(set(a) & set(b))) for a, b in zip(forward, reverse, strict=True)]
    assert parse(capfd.readouterr().out) == both


def test_own_translations(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    translated = tmp_path / "translated"
    model = f"--model={folder / 'forward'}"
    source = f"--source={folder / 'source'}"
    assert align.main([model, source, f"--translate-to={translated}", "--layer=0"]) == 0
    links = parse(capfd.readouterr().out)
    text = translated.read_text(encoding="utf-8").split("\n")[:-1]
    assert len(text) == len(links) == len(SOURCE)
    again = [model, source, f"--target={translated}", "--layer=0"]
    assert align.main(again) == 0
    assert parse(capfd.readouterr().out) == links
    for line, pairs in zip(text, links, strict=True):
        assert all(target < len(line.split(" ")) for _, target in pairs)


def test_too_long_pairs_get_an_empty_line_and_a_warning(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    codec = make_codec(make_config("rela-g", subword="bpe"))
    lengths = [
        max(len(codec.source.encode(source)), len(codec.target.encode(target))) - 1
        for source, target in zip(SOURCE, TARGET, strict=True)
    ]
    limit = sorted(lengths)[5]
    assert run(folder, "--layer=0", f"--max-length={limit}") == 0
    out, err = capfd.readouterr()
    full = expected_links(1, AlignmentHead(0))
    assert parse(out) == [
        links if length <= limit else () for links, length in zip(full, lengths, strict=True)
    ]
    assert f"{sum(length > limit for length in lengths)} pairs have more than" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--head=1"], "--head: expected --layer with it"),
        (["--layer=2"], "--layer: expected 0 to 1 for this model, got 2"),
        (["--layer=0", "--head=4"], "--head: expected 0 to 3 for this model, got 4"),
        (["--development=3"], "--development: expected --gold with it"),
        (["--gold-index=0"], "--gold-index: expected --gold with it"),
        (["--symmetrize=union"], "--symmetrize: expected --reverse-model with it"),
        (
            ["--reverse-model=forward"],
            "translates from en, but forward into de: --reverse-model needs a model of the other",
        ),
        (["--gold=GOLD", "--development=9"], "expected fewer than the 2 pairs"),
        (["--gold=GOLD"], "expected a line for each of 11 pairs, got 2"),
        (["--gold=FAR"], "FAR:1: a link joins source word 0 and target word 99"),
        (["--output=source"], "is also another file of this command"),
        (["--model=nothing"], "nothing: expected a model or run directory"),
    ],
)
def test_mistakes_are_one_line(
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    Path("GOLD").write_text("0-0\n0-0\n", encoding="utf-8")
    Path("FAR").write_text("0-99\n" * len(SOURCE), encoding="utf-8")
    assert run(folder, *options) in (2, 3)
    out, err = capfd.readouterr()
    assert out == ""
    last = err.rstrip("\n").split("\n")[-1]  # after what the log says of implementations
    assert last.startswith("nmt-align: ")
    assert message in last
    assert "Traceback" not in err
    assert (folder / "source").read_text(encoding="utf-8").startswith(SOURCE[0])


def test_files_of_different_length_leave_no_output(folder: Path, tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_text("A\n", encoding="utf-8")
    output = tmp_path / "links"
    options = [f"--target={short}", "--layer=0", f"--output={output}"]
    assert run(folder, *options) == 2
    assert not output.exists()
    assert os.listdir(tmp_path) == ["short"]


def test_random_heads_differ() -> None:
    """The tests above could not tell heads apart if all gave the same links."""
    found = {
        tuple(expected_links(1, AlignmentHead(layer, head, shifted)))
        for layer, head, shifted in np.ndindex(2, 4, 2)
    }
    assert len(found) == 16


@pytest.mark.parametrize("kind", ["rela-g", "softmax"])
@pytest.mark.parametrize("options", [[], ["--layer=1", "--head=0"]])
def test_pairs_without_finite_numbers_are_empty_and_end_with_6(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str, options: list[str]
) -> None:
    make_broken_directory(tmp_path / "forward", kind)
    (tmp_path / "source").write_text("the dog\na cat\nthe man\n")
    (tmp_path / "target").write_text("A DOG\nA CAT\nTHE MAN\n")
    assert run(tmp_path, *options) == 6
    out, err = capfd.readouterr()
    assert [bool(links) for links in parse(out)] == [True, False, True]
    assert "source:2: not aligned" in err
    assert "1 lines were not aligned" in err.strip().splitlines()[-1]
    (tmp_path / "gold").write_text("0-0\n0-0\n0-0\n")
    assert run(tmp_path, *options, f"--gold={tmp_path / 'gold'}") == 6
    assert "pair 2: not aligned" in capfd.readouterr().err


def test_translations_that_fail_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = make_broken_directory(tmp_path / "broken", "softmax")
    source = tmp_path / "source"
    source.write_text("the dog\nthe cat\na tree\n")
    translated = tmp_path / "translated"
    given = [f"--model={broken}", f"--source={source}", f"--translate-to={translated}", "--layer=0"]
    assert align.main(given) == 6
    errors = capfd.readouterr().err.split("\n")
    assert [line.split(":")[2] for line in errors if "not translated, the model" in line] == ["2"]
    assert translated.read_text().split("\n")[1] == ""
    assert translated.read_text().count("\n") == 3


def test_bad_lines_end_the_command_or_have_no_links(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = make_config()
    codec = make_codec(config)
    model = make_directory(tmp_path / "model", config, codec, make_model(config, codec))
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"the dog\na tree\nthe \xff\na house\n")
    target.write_bytes(b"THE DOG\nA TREE\nTHE CAT\nA HOUSE\n")
    given = [f"--model={model}", f"--source={source}", f"--target={target}", "--layer=0"]
    assert align.main(given) == 2
    found = capfd.readouterr()
    assert found.out.count("\n") == 2
    assert f"{source}:3: invalid UTF-8 (byte 19 of the text)" in found.err
    assert align.main([*given, "--on-bad-line=skip"]) == 0
    skipped = capfd.readouterr()
    assert skipped.out.startswith(found.out)
    assert [bool(line) for line in skipped.out.split("\n")] == [True, True, False, True, False]
    assert "line 3: invalid UTF-8" in skipped.err
    assert "1 bad lines are empty in the output" in skipped.err
