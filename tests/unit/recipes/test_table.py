"""The table of a grid: its arithmetic by hand, its text, and what it reads of runs."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from nmt.config.loading import load_config
from nmt.errors import ConfigError, DataError
from nmt.evaluation import TOKENIZED_BLEU
from nmt.recipes.grid import Outcome, make_grid, read_outcome
from nmt.recipes.table import (
    GridTable,
    PaperScore,
    Row,
    Summary,
    describe_attention,
    make_table,
    read_paper,
    summarize,
)
from nmt.recipes.table_text import as_json, columns, latex, markdown, notes

ROOT = Path(__file__).resolve().parents[3]
TASK = "wmt14_en_de"
SIGNATURE = "nrefs:1|case:mixed|tok:13a"


def scored(seed: int, bleu: float, tokenized: float, chrf: float = 50.0, **known) -> Outcome:
    scores = {"BLEU": bleu, TOKENIZED_BLEU: tokenized, "chrF2": chrf}
    return Outcome(seed, "scored", scores, {"BLEU": SIGNATURE}, **known)


def table_of(*rows: Row, seeds=(1, 2), baseline: str | None = "softmax") -> GridTable:
    return GridTable("a_task", "newstest en-de", seeds, baseline, rows)


EXAMPLE = table_of(
    Row(
        "softmax",
        "softmax",
        (
            scored(1, 26.0, 27.0, 50.0, parameters=72_310_000, training_hours=2.0),
            scored(2, 27.0, 28.0, 51.0, parameters=72_310_000, training_hours=3.0),
        ),
        PaperScore(26.9, 27.59),
    ),
    Row("relu_only", "rela-i, norm none", (Outcome(1, "diverged"),) * 2, PaperScore(failed=True)),
    Row(
        "rela-g",
        "rela-g",
        (scored(1, 27.0, 27.25), Outcome(2, "diverged")),
        PaperScore(26.6),
        0.0321,
    ),
    Row("rela-i", "rela-i", (Outcome(1, "missing"), Outcome(2, "missing"))),
)


# ---------------------------------------------------------------- arithmetic


def test_mean_and_deviation_of_a_sample():
    # Squares of the distances from 26: 1 + 0 + 1, over n - 1 = 2.
    assert summarize([25.0, 26.0, 27.0]) == Summary(26.0, 1.0, 3)
    assert summarize([25.0]) == Summary(25.0, None, 1)
    assert summarize([]) is None


def test_numbers_of_a_row():
    softmax, relu, rela_g, rela_i = EXAMPLE.rows
    assert softmax.difference == pytest.approx(26.5 - 26.9)
    assert softmax.training_hours == 2.5
    assert relu.difference is None
    assert rela_g.summary("BLEU") == Summary(27.0, None, 1)
    assert rela_i.summary("BLEU") is None


# ---------------------------------------------------------------- text


def test_cells():
    cells = columns(EXAMPLE)
    assert cells["BLEU"] == ["26.50 ± 0.71 (27.50)", "–", "27.00 (27.25)", ""]
    assert cells["chrF"] == ["50.5 ± 0.7", "", "50.0", ""]
    assert cells["runs"] == ["2", "0, 2 diverged", "1, 1 diverged", ""]
    assert cells["paper"] == ["26.9 (27.59)", "–", "26.6", ""]
    assert cells["difference"] == ["−0.4", "", "+0.4", ""]
    assert cells["p"] == ["baseline", "", "0.032", ""]
    assert cells["parameters"] == ["72.31M", "", "", ""]
    assert cells["training hours"] == ["2.50", "", "", ""]


def test_markdown():
    lines = markdown(EXAMPLE).split("\n")
    assert lines[0] == (
        "| variant | attention | BLEU | chrF | runs | paper | difference | p | parameters "
        "| training hours |"
    )
    assert lines[3] == "| relu_only | rela-i, norm none | – |  | 0, 2 diverged | – |  |  |  |  |"
    assert len({line.count("|") for line in lines[:6]}) == 1
    assert lines[6] == ""
    assert lines[7] == (
        "newstest en-de; mean ± standard deviation over seeds 1, 2. In brackets BLEU on tokenised "
        "text. –: training diverged or failed. p: paired bootstrap of BLEU (1000 samples) against "
        "softmax, on the translations of the first seed of each. Training hours are without "
        "validation. SacreBLEU nrefs:1\\|case:mixed\\|tok:13a."
    )
    assert len(lines) == 8


def test_one_variant_and_one_seed_need_few_columns():
    row = Row("rela-g", "rela-g", (scored(1, 27.0, 27.25),))
    table = table_of(row, seeds=(1,), baseline=None)
    assert list(columns(table)) == ["variant", "attention", "BLEU", "chrF", "runs"]
    assert notes(table)[0] == "newstest en-de; seed 1."
    assert "bootstrap" not in markdown(table)


def test_latex_is_whole_and_escaped():
    text = latex(EXAMPLE)
    lines = text.split("\n")
    assert r"softmax & softmax & 26.50 $\pm$ 0.71 (27.50) & 50.5 $\pm$ 0.7 & 2 &" in text
    assert r"relu\_only & rela-i, norm none & -- &" in text
    assert r"& $-$0.4 &" in text
    assert r"case:mixed\textbar{}tok:13a" in text
    assert text.isascii()
    body = lines[lines.index(r"\toprule") : lines.index(r"\bottomrule")]
    rows = [line for line in body if line.endswith(r" \\")]
    assert len(rows) == 5
    alignment = re.search(r"\\begin\{tabular\}\{([lr]+)\}", text)[1]
    assert {row.count("&") + 1 for row in rows} == {len(alignment)}
    assert re.findall(r"\\(begin|end)\{(\w+)\}", text) == [
        ("begin", "table"),
        ("begin", "tabular"),
        ("end", "tabular"),
        ("end", "table"),
    ]
    bare = re.sub(r"\\[&%$#_{}\\]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0


def test_json_has_the_numbers_unrounded():
    rows = json.loads(as_json(EXAMPLE))["rows"]
    assert rows[0]["over_seeds"]["BLEU"] == {"mean": 26.5, "deviation": 0.5**0.5, "count": 2}
    assert rows[1]["over_seeds"]["BLEU"] is None
    assert [run["status"] for run in rows[2]["runs"]] == ["scored", "diverged"]
    assert rows[2]["p_value"] == 0.0321


# ---------------------------------------------------------------- what is read


def attention_of(row: str) -> str:
    return describe_attention(load_config(ROOT / "configs" / TASK / f"{row}.yaml").model.attention)


def test_attention_in_words():
    assert attention_of("01-softmax") == "softmax"
    assert attention_of("04-relu-only") == "rela-i, norm none"
    assert attention_of("05-relu-rmsnorm") == "rela-i, gain_init 1"
    expected = "rela-g (encoder self); softmax (decoder self, cross)"
    assert attention_of("11-rela-g-encoder-only") == expected
    assert attention_of("entmax-learned") == "entmax, alpha learned"


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*/paper.tsv")), ids=str)
def test_numbers_of_the_paper_are_those_in_the_readme_and_of_variants(path):
    readme = (path.parent / "README.md").read_text(encoding="utf-8")
    for variant, score in read_paper(path).items():
        assert (ROOT / "configs" / path.parent.name / f"{variant}.yaml").is_file()
        lines = "\n".join(re.findall(rf"(?m)^\| `{re.escape(variant)}` .*", readme))
        tokenized = "" if score.tokenized_bleu is None else f" ({score.tokenized_bleu:.2f})"
        assert ("fails" in lines) == score.failed
        if score.bleu is not None:
            assert f"{score.bleu:.1f}{tokenized} |" in lines
        if score.adaptively_sparse_bleu is not None:
            assert f"| {score.adaptively_sparse_bleu:.2f} |" in lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("variant\tscore\n", ":1: expected variant"),
        ("variant\tbleu\nsoftmax\tgood\n", ":2: expected numbers or -"),
        ("variant\tbleu\nsoftmax\t1\t2\n", ":2: expected one line of 2 columns"),
        ("variant\tbleu\nsoftmax\t1\nsoftmax\t2\n", ":3: expected one line"),
    ],
)
def test_mistakes_in_the_numbers_of_the_paper(tmp_path, text, message):
    path = tmp_path / "paper.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=re.escape(message)):
        read_paper(path)
    path.unlink()
    assert read_paper(path) == {}


def test_numbers_that_a_paper_does_not_report(tmp_path):
    path = tmp_path / "paper.tsv"
    path.write_text(
        "variant\tbleu\ttokenized_bleu\tadaptively_sparse_bleu\nsoftmax\t1\t\t2\nrelu\t-\t-\t\nnew\t\t\t3\n"
    )
    assert read_paper(path) == {
        "softmax": PaperScore(1.0, None, 2.0),
        "relu": PaperScore(failed=True),
        "new": PaperScore(None, None, 3.0),
    }
    row = Row("new", "entmax", (Outcome(1, "scored", {"BLEU": 5.0}),), PaperScore(None, None, 3.0))
    table = markdown(GridTable("task", "test", (1,), None, (row,)))
    assert "paper" not in table


class Runs:
    """A task whose runs are written by hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("recipes", "configs"):
            shutil.copytree(ROOT / folder / TASK, root / folder / TASK)
        self.recipe = root / "recipes" / TASK
        self.reference = root / "data" / TASK / "newstest2014.de"
        self.reference.parent.mkdir(parents=True)
        lines = [f"Das ist der Satz mit der Nummer {n}, und er ist lang." for n in range(40)]
        self.lines = lines
        self.reference.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def write(self, name: str, lines: list[str], bleu: float, status: str = "finished") -> Path:
        directory = self.root / "runs" / TASK / name
        results = directory / "results"
        results.mkdir(parents=True)
        (results / "newstest2014.de").write_text("\n".join(lines) + "\n", encoding="utf-8")
        entry = {"metric": "BLEU", "value": bleu, "signature": SIGNATURE}
        (results / "scores.json").write_text(json.dumps({"scores": [entry]}))
        (directory / "result.json").write_text(json.dumps({"status": status}))
        return directory

    def grid(self, *names: str, seeds=(1, 2), **options):
        return make_grid(self.recipe, names, seeds, settings=[], **options)


def test_significance_is_that_of_the_first_seed_that_has_a_translation(tmp_path):
    runs = Runs(tmp_path)
    bad = [line.replace("der", "die").replace("ist", "war") for line in runs.lines]
    runs.write("01-softmax", bad, 20.0)
    runs.write("01-softmax-seed2", runs.lines, 100.0)
    runs.write("02-sparsemax", bad, 20.0)
    runs.write("07-rela-g-seed2", runs.lines, 100.0)
    grid = runs.grid("softmax", "sparsemax", "rela-g", "rela-i")
    table = make_table(grid, paper={}, baseline="01-softmax")
    softmax, sparsemax, rela_g, rela_i = table.rows
    assert softmax.summary("BLEU") == Summary(60.0, pytest.approx(3200**0.5), 2)
    assert softmax.p_value is None
    assert sparsemax.p_value == 1.0  # the same lines
    assert rela_g.p_value == pytest.approx(1 / 1001)  # better in every sample
    assert rela_i.p_value is None
    without = make_table(grid, paper={}, baseline="06-rela-i")
    assert all(row.p_value is None for row in without.rows)
    runs.reference.unlink()
    without = make_table(grid, paper={}, baseline="01-softmax")
    assert all(row.p_value is None for row in without.rows)


def test_outcome_of_a_run(tmp_path):
    runs = Runs(tmp_path)
    directory = runs.write("01-softmax", runs.lines, 100.0)
    (directory / "average").mkdir()
    tensors = {"a": np.zeros((3, 4)), "b": np.zeros(5), "c": np.zeros(())}
    save_file(tensors, directory / "average" / "model.safetensors", metadata={"format": "np"})
    records = [
        {"event": "train", "update": 1, "seconds": 1800},
        {"event": "validation", "update": 1, "seconds": 5000},
        {"event": "train", "update": 2, "seconds": 5400},
    ]
    text = "".join(json.dumps(record) + "\n" for record in records) + '{"event": "tra'
    (directory / "metrics.jsonl").write_text(text)
    ((first, second),) = runs.grid("softmax")
    assert first.run.config.run_dir == directory
    outcome = read_outcome(first)
    assert (outcome.status, outcome.parameters, outcome.training_hours) == ("scored", 18, 2.0)
    assert outcome.scores == {"BLEU": 100.0}
    assert read_outcome(second) == Outcome(2, "missing")
    # Trained on until it diverged: the old scores are no result.
    (directory / "result.json").write_text('{"status": "diverged"}')
    assert read_outcome(first).status == "diverged"
    assert read_outcome(first).scores == {}
    (directory / "result.json").unlink()
    (directory / "results" / "scores.json").write_text('{"scores": [{"metric": "BLEU"}]}')
    with pytest.raises(DataError, match=r"scores\.json: expected scores"):
        read_outcome(first)


def test_every_run_has_a_directory_and_a_seed(tmp_path):
    runs = Runs(tmp_path)
    grid = runs.grid("1", "rela-g", seeds=(3, 1))
    home = tmp_path / "runs" / TASK
    assert [[cell.run.config.run_dir for cell in row] for row in grid] == [
        [home / "01-softmax-seed3", home / "01-softmax"],
        [home / "07-rela-g-seed3", home / "07-rela-g"],
    ]
    assert [cell.run.config.seed for cell in grid[0]] == [3, 1]
    other = runs.grid("softmax", seeds=(2,), runs=tmp_path / "short", recipe_name="stanford")
    assert other[0][0].run.config.run_dir == tmp_path / "short" / "01-softmax-seed2"
    assert len(runs.grid(seeds=())) == 14


@pytest.mark.parametrize(
    ("names", "seeds", "settings", "message"),
    [
        (["softmax", "1"], [1], [], "01-softmax is named more than once"),
        (["softmax"], [1, 1], [], "--seeds: 1 is named more than once"),
        (["softmax"], [1], ["seed=3"], "seed=3: every run has its own; use --seeds and --runs"),
        (["softmax"], [1], ["run_dir=x"], "run_dir=x: every run has its own"),
        (["hardmax"], [1], [], "expected one of the variants"),
    ],
)
def test_mistakes_in_what_is_asked_for(tmp_path, names, seeds, settings, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_grid(Runs(tmp_path).recipe, names, seeds, settings=settings)
