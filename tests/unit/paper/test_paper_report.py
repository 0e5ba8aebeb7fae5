"""The report of hand-made scores: means over seeds, the papers' numbers, and what is missing."""

import json
from pathlib import Path
from typing import Any

import pytest

from nmt.analysis.results import ATTENTION_TYPES, RESULTS_FORMAT
from nmt.cli.paper import main
from nmt.errors import DataError
from nmt.paper.average import by_variant, mean_analysis
from nmt.paper.curves import mean_curve, trajectories_of
from nmt.paper.report import Extras, build_document
from nmt.paper.scores import RunScores, flatten, read_scores, unflatten, write_scores
from nmt.paper.speeds import Speeds, read_speeds
from nmt.paper.tables import (
    adaptive_table,
    alignment_table,
    diversity_table,
    flops_table,
    score_table,
    speed_table,
)
from nmt.recipes.stages import ANALYSIS_FORMAT
from nmt.recipes.table import PaperScore


def layer(sparsity: float, *, null_rate: float, alphas: list[float]) -> dict[str, Any]:
    """A layer of two heads."""
    return {
        "sparsity": sparsity,
        "null_rate": null_rate,
        "null_rate_variance": 0.01,
        "entropy": 1.0,
        "diversity": {"1.0": 1.0 + sparsity, "0.5": 0.5},
        "roles": [{"head": 0, "role": "sink"}],
        "heads": {
            "sparsity": [sparsity] * 2,
            "null_rate": [null_rate] * 2,
            "density": [[1, 2, 3][: 2 + (sparsity > 0.5)]],
            **({"alpha": alphas} if alphas else {}),
        },
    }


def run(variant: str, seed: int, bleu: float, *, sparsity: float, **values: Any) -> RunScores:
    """A run whose analysis has one layer per type."""
    one = layer(sparsity, null_rate=sparsity / 2, alphas=[1.0 + seed / 10, 1.9])
    model = {
        "name": variant,
        "parameters": 1000,
        "attention": dict.fromkeys(ATTENTION_TYPES, "rela-g"),
        "nullable": dict.fromkeys(ATTENTION_TYPES, True),
        "statistics": {type_: {"layer_0": one} for type_ in ATTENTION_TYPES},
    }
    flat = {
        "status": "scored",
        "attention": "rela-g",
        "model/dim": 16,
        "model/heads": 2,
        "score/BLEU": bleu,
        "text/source": "test.en",
        "text/target": "test.de",
        "text/pairs": 7,
        "text/seed": 1,
        **dict(flatten(model, "analysis")),
    }
    return RunScores("task", variant, seed, {**flat, **values})


RUNS = [
    run("07-rela-g", 1, 20.0, sparsity=0.4, **{"analysis/aer/shifted/AoL": 0.6}),
    run("07-rela-g", 2, 22.0, sparsity=0.6, **{"analysis/aer/shifted/AoL": 0.5}),
    RunScores("task", "04-relu-only", 1, {"status": "diverged", "attention": "rela-i"}),
    RunScores("task", "01-softmax", 1, {"status": "missing", "attention": "softmax"}),
]
PAPER = {
    "07-rela-g": PaperScore(26.6, 27.31),
    "04-relu-only": PaperScore(failed=True),
    "01-softmax": PaperScore(26.9, 27.59, 26.02),
}


def test_another_format_of_results_is_analysed_again() -> None:
    assert f"format {RESULTS_FORMAT}" == ANALYSIS_FORMAT


def test_documents_go_into_paths_and_back() -> None:
    document = {"a": {"b": [1, 2.5, [3]], "1.0": True}, "text": "x\ty", "none": None}
    flat = dict(flatten({"top": document}, "all"))
    assert flat["all/top/a/b/2/0"] == 3
    del document["none"]
    assert unflatten(flat) == {"all": {"top": document}}


def test_scores_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "scores.tsv"
    write_scores(path, RUNS)
    assert read_scores(path) == RUNS
    assert "roles" not in path.read_text()
    path.write_text("task\tvariant\tseed\tname\tvalue\nt\tv\tone\tx\t1\n")
    with pytest.raises(DataError, match=r"scores.tsv:2: expected"):
        read_scores(path)
    path.write_text("task\tvariant\tseed\tname\tvalue\n")
    with pytest.raises(DataError, match="got none"):
        read_scores(path)


def test_runs_of_several_files_come_together(tmp_path: Path) -> None:
    first, second = tmp_path / "first.tsv", tmp_path / "second.tsv"
    write_scores(first, RUNS[:1])
    write_scores(second, RUNS[1:])
    assert read_scores(first, second) == RUNS
    with pytest.raises(DataError, match="is in another file, too"):
        read_scores(first, first)


@pytest.mark.parametrize(
    "row",
    [
        'score/BLEU\t"x"',
        "parameters\tnull",
        "curve/bleu/x\t1",
        "analysis/statistics/cross/layer_0\t1",
        "model/dim\t8",
    ],
)
def test_scores_of_another_type_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: str
) -> None:
    path = tmp_path / "scores.tsv"
    path.write_text(f"task\tvariant\tseed\tname\tvalue\nt\tv\t1\t{row}\n")
    assert main(["--from", str(path), "--output", str(tmp_path / "report")]) == 2
    assert "scores.tsv: a number is missing or of another type" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


def test_analyses_are_averaged_over_seeds() -> None:
    analysis = mean_analysis(by_variant(RUNS))
    assert analysis is not None
    (model,) = analysis.models
    found = model.layers("cross")[0]
    assert found["sparsity"] == pytest.approx(0.5)
    assert found["heads"]["sparsity"] == pytest.approx([0.5, 0.5])
    assert found["heads"]["density"] == [[1.0, 2.0, 1.5]]  # the bar that one seed lacks is 0
    assert found["heads"]["alpha"] == [1.1, 1.9, 1.2, 1.9]  # heads of seeds are not the same
    assert model.nullable == dict.fromkeys(ATTENTION_TYPES, True)
    assert (analysis.source, analysis.pairs) == ("test.en", 7)


def cells(rows: Any, variant: str) -> list[str]:
    (row,) = [row for row in rows if row[0] == variant]
    return list(row)


def test_scores_are_beside_those_of_the_paper() -> None:
    rows = score_table(by_variant(RUNS), PAPER).rows
    rela = cells(rows, "07-rela-g")
    assert rela[2] == "21.00 ± 1.41"
    assert rela[5:8] == ["2", "26.6", "−5.6"]
    assert cells(rows, "04-relu-only")[2:8:4] == ["–", "–"]
    assert cells(rows, "01-softmax")[2] == "missing"
    second = adaptive_table(by_variant(RUNS), PAPER)
    assert second is not None
    assert second.rows == [["01-softmax", "missing", "26.02", ""]]
    assert adaptive_table(by_variant(RUNS), {}) is None


def test_the_p_value_is_that_of_the_lowest_seed() -> None:
    runs = [RunScores("t", "v", seed, {"p_value": p}) for seed, p in ((2, 0.4), (1, 0.001))]
    assert cells(score_table(by_variant(runs), {}).rows, "v")[8] == "0.001"


def test_alignment_says_on_which_pairs_heads_were_chosen() -> None:
    values: dict[str, Any] = {"text/gold": "gold.links", "text/development": 50}
    assert "on the first 50 pairs" in alignment_table({"v": [RunScores("t", "v", 1, values)]}).note
    assert "chosen" not in alignment_table(by_variant(RUNS)).note


def test_alignment_and_diversity_are_beside_those_of_the_paper() -> None:
    rela = cells(alignment_table(by_variant(RUNS)).rows, "07-rela-g")
    assert rela[1:4] == ["missing", "64.46", ""]
    assert rela[7:10] == ["55.00 ± 7.07", "59.24", "−4.24"]
    rows = diversity_table(by_variant(RUNS)).rows
    warm = next(row for row in rows if row[:2] == ["07-rela-g", "1.0"])
    assert warm[2:5] == ["1.50 ± 0.14", "1.26", "+0.24"]
    assert cells(rows, "01-softmax")[2:4] == ["missing", "0.56"]


def test_flops_name_the_crossover() -> None:
    rows = flops_table([(512, 8), (256, 4)]).rows
    assert [row[1] for row in rows if row[-1]] == ["321", "321"]
    (hundred,) = [row for row in rows if row[:2] == ["d = 512, H = 8", "100"]]
    assert hundred[2:4] == ["239,200", "592,100"]


def test_speeds_of_the_bench_fill_table_2(tmp_path: Path) -> None:
    row = {"kind": "rela-g", "parameters": 5_000_000, "relative_speed": {"median": 0.9}}
    machine = {"processor": "P", "cores": 2, "threads": 1, "kernels": "k"}
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"benchmark": "train", "machine": machine, "kinds": [row]}))
    rela = cells(speed_table(read_speeds([path])).rows, "rela-g")
    assert rela[1:6] == ["5.00M", "72.34M", "0.90x", "0.93x", "−0.03"]
    assert rela[6] == "missing"
    assert cells(speed_table(Speeds()).rows, "softmax")[3] == "missing"


def test_speeds_of_decoding_may_be_of_any_floats(tmp_path: Path) -> None:
    path = tmp_path / "decode.json"
    row = {"model": "rela-g", "parameters": 5, "relative_speed": {"median": 0.9}, "groups": []}
    rows = [{**row, "batch_size": 1, "weights": weights} for weights in ("bfloat16", "int8")]
    rows[1]["relative_speed"] = {"median": 2.0}
    document = {"benchmark": "decode", "machine": {}, "models": rows}
    path.write_text(json.dumps(document))
    assert cells(speed_table(read_speeds([path])).rows, "rela-g")[6] == "0.90x"
    path.write_text(json.dumps({**document, "models": [{**rows[0], "batch_size": 64}]}))
    with pytest.raises(DataError, match=r"decode.json: expected measurements with batch size 1"):
        read_speeds([path])


def test_curves_are_means_at_shared_updates() -> None:
    runs = [
        RunScores("t", "v", 1, {"curve/bleu/100": 10.0, "curve/bleu/200": 20.0}),
        RunScores("t", "v", 2, {"curve/bleu/100": 14.0}),
    ]
    assert mean_curve(runs, "bleu") == {100: 12.0}
    assert mean_curve(runs, "loss") == {}


def test_trajectories_come_back_from_scores() -> None:
    values = {"learned/alpha/cross/0/3/100": 1.5, "learned/alpha/cross/0/3/200": 1.25}
    (one,) = trajectories_of(RunScores("t", "v", 1, values))
    assert (one.name, one.type, one.layer, one.head) == ("alpha", "cross", 0, 3)
    assert (one.updates, one.values) == ([100, 200], [1.5, 1.25])


def test_what_is_missing_is_shown_as_missing() -> None:
    document = build_document(RUNS[2:], Extras(PAPER))
    text = document.markdown()
    missing = [section.title for section in document.sections if section.missing]
    assert "Sparsity rate (Figure 3)" in missing
    assert "Speed (Table 2 and Figure 2)" in missing
    assert text.count("**Missing.**") == len(missing) == 10
    assert "<script" not in document.html()


def test_text_is_escaped() -> None:
    runs = [RunScores("<b>", "a|b<i>", 1, {"status": "missing", "attention": "<u>"})]
    document = build_document(runs, Extras())
    assert "<b>" not in document.html().replace("<body>", "")
    assert "<u>" not in document.html()
    assert "a\\|b\\<i\\>" in document.markdown()
