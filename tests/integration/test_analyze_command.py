"""nmt-analyze on small models with random weights."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.attention import corpus_statistics
from support.small_models import content, leftover_names
from translation_models import (
    make_broken_directory,
    make_codec,
    make_config,
    make_directory,
    make_model,
    random_lines,
)

from nmt.analysis.aligner import Aligner
from nmt.analysis.analyze import exchange_targets
from nmt.analysis.gold import Gold, read_gold
from nmt.analysis.pairs import shuffle_targets
from nmt.analysis.results import without_noise
from nmt.checkpoint.model_directory import load_model
from nmt.cli import analyze
from nmt.config.config import SublayerAttentionConfig
from nmt.decoding.translator import Translator

SOURCE = [*random_lines(9, seed=1, longest=12), "", "the <b>old</b> dog"]
TARGET = [*(line.upper() for line in random_lines(9, seed=2, longest=12)), "", "A CAT SEES"]
GOLD = ["0-0", *["0p0"] * 8, "", "0-0 1-1 2p1"]
FILES = {"analysis.json", "tables.md", "report.html", "MANIFEST.json"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with other kinds and vocabularies, a text and its gold links."""
    folder = tmp_path_factory.mktemp("analyze")
    for kind, subword in (("rela-g", "bpe"), ("softmax", "none")):
        config = make_config(kind, subword=subword)
        codec = make_codec(config)
        make_directory(folder / kind, config, codec, make_model(config, codec))
    far = ["0-99", *[""] * 10]
    for name, lines in (("source", SOURCE), ("target", TARGET), ("gold", GOLD), ("far", far)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def run(folder: Path, output: Path, *options: str, models: tuple[str, ...] = ("rela-g",)) -> int:
    inputs = [f"--source={folder / 'source'}", f"--target={folder / 'target'}"]
    directories = [str(folder / model) for model in models]
    return analyze.main(["--model", *directories, *inputs, f"--output={output}", *options])


def page_data(output: Path) -> dict[str, Any]:
    html = (output / "report.html").read_text(encoding="utf-8")
    (text,) = re.findall(r'id="data">(.*?)</script>', html, flags=re.DOTALL)
    return json.loads(text)


@pytest.fixture(scope="module")
def both(folder: Path) -> Path:
    """An analysis of two models with gold."""
    output = folder / "both"
    options = (f"--gold={folder / 'gold'}", "--development=5", "--sentences=4")
    assert run(folder, output, *options, models=("rela-g", "softmax")) == 0
    return output


def test_all_files_and_the_numbers_of_the_python_interface(folder: Path, both: Path) -> None:
    names = {path.name for path in both.iterdir()}
    assert names - FILES == {
        "sparsity.png",
        "alignment.png",
        "diversity.png",
        "null_rate.png",
        "density.png",
        "heads_0.png",
        "heads_1.png",
    }
    rela, softmax = json.loads((both / "analysis.json").read_text())["models"]
    loaded = load_model(folder / "rela-g")
    pairs = list(zip(SOURCE, TARGET, strict=True))
    expected = without_noise(corpus_statistics(loaded, pairs).summary())
    false_pairs = shuffle_targets(pairs, seed=1)
    shuffled = without_noise(corpus_statistics(loaded, false_pairs).summary())
    layer = rela["statistics"]["cross"]["layer_1"]
    false_rate = layer.pop("shuffled_null_rate")
    false_rates = layer["heads"].pop("shuffled_null_rate")
    found = {key: layer.pop(key) for key in ("shares", "roles", "without_sinks")}
    assert layer.pop("layer_null_rate") < layer["null_rate"]
    assert layer == expected["cross"]["layer_1"]
    assert all(len(shares) == 4 for shares in found["shares"].values())
    assert {"end symbol", "first token", "alignment"} <= found["shares"].keys()
    assert found["without_sinks"]["entropy"] != layer["entropy"]
    assert false_rate == shuffled["cross"]["layer_1"]["null_rate"] != layer["null_rate"]
    assert false_rates == shuffled["cross"]["layer_1"]["heads"]["null_rate"]
    gold = Gold(read_gold(folder / "gold"), folder / "gold", development=5)
    assert rela["aer"] == without_noise(Aligner(loaded).evaluate(pairs, gold).table())
    assert softmax["statistics"]["cross"]["layer_0"]["null_rate"] == 0.0
    assert "shuffled_null_rate" not in softmax["statistics"]["cross"]["layer_0"]


def test_the_page_has_words_weights_and_measures(both: Path) -> None:
    data = page_data(both)
    assert [model["name"] for model in data["models"]] == ["rela-g", "softmax"]
    assert [text.split(":")[0] for text in data["sentences"]] == ["1", "2", "3", "4"]
    rela, softmax = (model["sentences"][0] for model in data["models"])
    assert rela["source"]["words"] == softmax["source"]["words"] == SOURCE[0].split()
    assert rela["source"]["pieces"] != softmax["source"]["pieces"]
    measures = data["models"][0]["measures"]["cross"][1]
    assert len(measures["aer_shifted"]) == 4 + 1  # the heads, and all of them together
    numbers = json.loads((both / "analysis.json").read_text())["models"][0]
    layer = numbers["statistics"]["cross"]["layer_1"]
    assert measures["null_rate"] == pytest.approx(
        [*layer["heads"]["null_rate"], layer["null_rate"]], abs=1e-5
    )
    assert "| rela-g | – |" not in (both / "tables.md").read_text()
    # The model's own translation is beside the reference.
    translated = Translator.load(both.parent / "softmax").translate(SOURCE[:4])
    shown = [sentence["translation"] for sentence in data["models"][1]["sentences"]]
    assert shown == [one.text for one in translated]
    assert any(shown)


def test_measures_that_cannot_have_content_are_left_out(both: Path) -> None:
    rela, softmax = (model["measures"]["cross"][0] for model in page_data(both)["models"])
    assert {"null_rate", "shuffled_null_rate", "diversity"} <= rela.keys()
    assert not {"null_rate", "shuffled_null_rate"} & softmax.keys()
    assert rela["diversity"][:-1] == [None] * 4  # it is a measure of all heads together


def test_figures_as_pdf_on_request(folder: Path, tmp_path: Path) -> None:
    assert run(folder, tmp_path / "out", "--pdf", "--sentences=1", "--max-pairs=2") == 0
    figures = {path.name for path in (tmp_path / "out").iterdir() if path.suffix == ".png"}
    assert {"heads_0.png", "null_rate.png"} <= figures
    for name in figures:
        assert (tmp_path / "out" / name).with_suffix(".pdf").read_bytes().startswith(b"%PDF-")


def test_a_chosen_sentence_layer_and_heads_are_drawn(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    choice = ["--sentence=3", "--layer=1", "--heads", "3", "0"]
    assert run(folder, tmp_path / "out", "--sentences=0", *choice, "--pdf") == 0
    (picture,) = [
        one for one in page_data(tmp_path / "out")["figures"] if "layer 1" in one["title"]
    ]
    assert picture["title"] == "Cross-attention of rela-g, layer 1"
    assert (tmp_path / "out" / "heads_0.pdf").read_bytes().startswith(b"%PDF")
    first = (tmp_path / "out" / "heads_0.png").read_bytes()
    choice[-1] = "1"
    assert run(folder, tmp_path / "out", "--sentences=0", *choice) == 0
    assert (tmp_path / "out" / "heads_0.png").read_bytes() != first
    capfd.readouterr()
    for wrong, message in (
        (["--sentence=99"], "--sentence: expected 1 to 11, got 99"),
        (["--layer=2"], "--layer: expected 0 to 1"),
        (["--heads", "0", "4"], "--heads: expected 0 to 3"),
    ):
        assert run(folder, tmp_path / "out", *wrong) == 2
        assert message in capfd.readouterr().err


def test_trajectories_of_a_run_are_drawn(folder: Path, tmp_path: Path) -> None:
    config = make_config("softmax")
    learned = SublayerAttentionConfig("entmax", alpha="learned")
    object.__setattr__(config.model.attention, "cross", learned)
    codec = make_codec(config)
    make_directory(tmp_path / "best", config, codec, make_model(config, codec))
    records = [
        {
            "event": "validation",
            "update": update,
            "attention": {"cross": {"layer_0": {"alpha_0": 1.0 + update / 100}}},
        }
        for update in (10, 20, 30)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    options = [f"--source={folder / 'source'}", f"--target={folder / 'target'}", "--sentences=0"]
    output = tmp_path / "out"
    assert analyze.main(["--model", str(tmp_path / "best"), *options, f"--output={output}"]) == 0
    names = {path.name for path in output.iterdir()}
    assert {"alpha.png", "alpha_histogram.png", "alpha_trajectory_best.png"} <= names


def test_null_rates_after_words(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "nouns").write_text("man\ndog\ncat\n")
    (tmp_path / "tags").write_text(
        "\n".join(" ".join("x" for _ in t.split()) for t in TARGET) + "\n"
    )
    options = [f"--word-list=noun={tmp_path / 'nouns'}", f"--target-tags={tmp_path / 'tags'}"]
    assert (
        run(folder, tmp_path / "out", "--sentences=0", *options, models=("rela-g", "softmax")) == 0
    )
    rela, softmax = json.loads((tmp_path / "out" / "analysis.json").read_text())["models"]
    layer = rela["statistics"]["cross"]["layer_0"]
    words = sum(len(target.split()) for target in TARGET)
    assert layer["null_after"]["x"]["queries"] == words
    nouns = sum(word in ("MAN", "DOG", "CAT") for target in TARGET for word in target.split())
    assert layer["null_after"]["noun"]["queries"] == nouns
    assert "null_after" not in softmax["statistics"]["cross"]["layer_0"]
    tables = (tmp_path / "out" / "tables.md").read_text()
    assert "## Null rate after a class of words" in tables
    assert f"| rela-g | cross-attention | 0 | noun | {nouns} |" in tables
    assert run(folder, tmp_path / "out", "--sentences=0", *options, "--max-pairs=2") == 0


def test_batch_size_changes_nothing_and_a_second_run_replaces_the_first(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert run(folder, output, "--sentences=2", "--names=MINE") == 0
    before = content(output)
    assert run(folder, output, "--sentences=2", "--names=YOURS", "--batch-tokens=64") == 0
    after = content(output)
    assert after.keys() == before.keys()
    for name in ("analysis.json", "tables.md"):
        assert after[name] == before[name].replace(b"MINE", b"YOURS") != before[name]
    assert page_data(output)["models"][0]["sentences"][1] is not None
    assert not leftover_names(tmp_path)
    assert "report.html" in capfd.readouterr().err


def test_foreign_files_are_never_touched(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    assert run(folder, tmp_path) == 2
    assert "thesis.tex" in capfd.readouterr().err
    assert run(folder, tmp_path / "thesis.tex") == 2
    assert run(folder, tmp_path / "out", "--sentences=0") == 0
    (tmp_path / "out" / "mine.png").write_bytes(b"precious")
    assert run(folder, tmp_path / "out") == 2
    assert "mine.png" in capfd.readouterr().err
    assert run(folder, folder / "softmax") == 2  # a model has a manifest, too
    assert content(tmp_path)["out/mine.png"] == content(tmp_path)["thesis.tex"] == b"precious"


def test_text_without_words_to_measure(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Pairs that are all too long are an error; blank ones have measures that are numbers."""
    for name, text in (("long", "the old man\n" * 2), ("blank", "\n\n")):
        (tmp_path / name).write_text(text)
    given = ["--model", str(folder / "rela-g"), "--output", str(tmp_path / "out")]
    long, blank = ([f"--{side}={tmp_path / name}" for side in ("source", "target")]
                   for name in ("long", "blank"))  # fmt: skip
    assert analyze.main([*given, *long, "--max-length=1"]) == 2
    assert "all 2 pairs have more subwords on a side than --max-length" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
    assert analyze.main([*given, *blank]) == 0
    assert "NaN" not in (tmp_path / "out" / "analysis.json").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--names", "a", "b"], "--names: expected 1"),
        (["--development=3"], "--development: expected --gold"),
        (["--weights=norm"], "--weights: expected --gold"),
        (["--gold=GOLD", "--development=11"], "fewer than the 11 pairs"),
        (["--gold=GOLD", "--gold-index=1"], "below 1"),
        (["--gold=SOURCE"], "expected links"),
        (["--gold=FAR"], "joins source word 0 and target word 99"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    folder: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    given = [
        re.sub("=([A-Z]+)$", lambda name: f"={folder / name[1].lower()}", option)
        for option in options
    ]
    assert run(folder, tmp_path / "out", *given) == 2
    err = capfd.readouterr().err
    assert message in err
    assert err.startswith("nmt-analyze: ") or "\nnmt-analyze: " in err
    assert list(tmp_path.iterdir()) == []


def test_gold_must_have_a_line_a_pair(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short").write_text("0-0\n")
    assert run(folder, tmp_path / "out", f"--gold={tmp_path / 'short'}") == 2
    assert "expected a line for each of 11 pairs, got 1" in capfd.readouterr().err
    assert run(folder, tmp_path / "out", f"--gold={tmp_path / 'short'}", "--max-pairs=1") == 0


@pytest.mark.parametrize("development", [0, 1])
def test_gold_needs_every_pair(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], development: int
) -> None:
    """Without the sure links of a pair, the rates would be too low."""
    for name, lines in (
        ("source", [SOURCE[0] * 9, "the dog"]),
        ("target", ["A", "A DOG"]),
        ("gold", ["0-0", "0-0 1-1"]),
    ):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    inputs = [f"--{name}={tmp_path / name}" for name in ("source", "target", "gold")]
    options = [f"--output={tmp_path / 'out'}", "--max-length=8", "--sentences=0"]
    options += [f"--development={development}"] * bool(development)
    assert analyze.main(["--model", str(folder / "rela-g"), *inputs, *options]) == 2
    err = capfd.readouterr().err
    assert "pair 1 has more than 8 subwords on a side, and gold links need every pair" in err
    assert not (tmp_path / "out").exists()


def test_gold_links_are_compared_with_those_of_norm_based_weights(
    folder: Path, tmp_path: Path
) -> None:
    options = [f"--gold={folder / 'gold'}", "--weights=norm", "--sentences=0"]
    assert run(folder, tmp_path, *options) == 0
    document = json.loads((tmp_path / "analysis.json").read_text())
    loaded = load_model(folder / "rela-g")
    pairs = list(zip(SOURCE, TARGET, strict=True))
    gold = Gold(read_gold(folder / "gold"), folder / "gold")
    by_norm, by_attention = (
        without_noise(Aligner(loaded, weighting=weighting).evaluate(pairs, gold).table())
        for weighting in ("norm", "attention")
    )
    assert document["models"][0]["aer"] == by_norm != by_attention
    assert document["weights"] == "norm"
    assert "Links are those of norm-based weights." in (tmp_path / "tables.md").read_text()


def test_models_are_named_by_what_tells_them_apart(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, tmp_path / "out", models=("rela-g", "rela-g")) == 2
    assert "--names" in capfd.readouterr().err
    parser = analyze.build_parser()
    required = ["--source=a", "--target=b", "--output=c"]
    arguments = parser.parse_args(["--model", "x/best", "y/best", *required])
    assert analyze.model_names(arguments) == ["x/best", "y/best"]


def test_long_pairs_are_left_out_with_a_warning(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, tmp_path / "out", "--max-length=8") == 0
    assert "pairs have more than 8 subwords" in capfd.readouterr().err
    sentences = page_data(tmp_path / "out")["models"][0]["sentences"]
    assert None in sentences
    assert any(sentences)


def test_every_source_gets_a_false_target_in_flat_memory() -> None:
    pairs = [(f"s{number}", f"t{number}") for number in range(21)]
    for window in (2, 5, 20, 100):
        shuffled = list(exchange_targets(iter(pairs), seed=3, window=window))
        assert [source for source, _ in shuffled] == [source for source, _ in pairs]
        assert sorted(target for _, target in shuffled) == sorted(target for _, target in pairs)
        assert all(source[1:] != target[1:] for source, target in shuffled)
    whole = list(exchange_targets(iter(pairs), seed=3))
    assert whole == [tuple(pair) for pair in shuffle_targets(pairs, seed=3)]
    # Nothing is read far ahead of what is needed.
    endless = zip(map(str, itertools.count()), map(str, itertools.count()), strict=True)
    assert len(list(itertools.islice(exchange_targets(endless, seed=1, window=5), 12))) == 12


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["rela-g", "softmax", "entmax15"])
def test_a_model_that_computes_nan_ends_with_6_and_names_the_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, number: float
) -> None:
    make_broken_directory(tmp_path / "model", kind, number=number)
    (tmp_path / "source").write_text("the dog\na cat\nthe man\ncat cat\n")
    (tmp_path / "target").write_text("A\nA DOG\nTHE\nA\n")
    assert run(tmp_path, tmp_path / "report", models=("model",)) == 6
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert "for 2 of the pairs (lines 2, 4)" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "source", "target"]
