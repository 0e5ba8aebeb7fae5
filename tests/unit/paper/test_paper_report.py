"""The report of hand-made scores: means over seeds, the papers' numbers, and what is missing."""

import json
from pathlib import Path
from typing import Any

import pytest

from nmt.analysis.results import ATTENTION_TYPES, RESULTS_FORMAT
from nmt.cli.paper import main
from nmt.errors import DataError, UserError
from nmt.paper.average import by_variant, mean_analysis
from nmt.paper.curves import curve_drawing, seed_curves, trajectories_of
from nmt.paper.report import Extras, build_document
from nmt.paper.scores import (
    RunScores,
    flatten,
    read_scores,
    select_runs,
    unflatten,
    write_scores,
)
from nmt.paper.speeds import Speeds, read_speeds
from nmt.paper.tables import (
    adaptive_table,
    after_words_means,
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
    # Classes of words may have any name.
    classes = {"null_after": {"and/or": 1, "1": 2, "2": 3, "100 %": 4, "a\tb": 5, "٣": 6}}
    flat = dict(flatten(classes, "all"))
    assert all("\t" not in name for name in flat)
    assert unflatten(flat) == {"all": classes}


def test_scores_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "scores.tsv"
    write_scores(path, RUNS)
    assert read_scores(path) == RUNS
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


def test_a_run_that_is_missing_gives_way_to_a_result(tmp_path: Path) -> None:
    first, second = tmp_path / "first.tsv", tmp_path / "second.tsv"
    missing = RunScores("task", "07-rela-g", 1, {"status": "missing", "attention": "rela-g"})
    write_scores(first, [missing, RUNS[1]])
    write_scores(second, [RUNS[0], RUNS[3]])
    for paths in ((first, second), (second, first)):
        found = {str(run): run for run in read_scores(*paths)}
        assert found == {str(run): run for run in (RUNS[0], RUNS[1], RUNS[3])}


def test_a_number_that_is_there_twice_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "scores.tsv"
    write_scores(path, RUNS[:1])
    with path.open("a") as file:
        file.write("task\t07-rela-g\t1\tscore/BLEU\t30.0\n")
    with pytest.raises(
        DataError, match=r"scores.tsv:\d+: score/BLEU of 07-rela-g, seed 1 is there"
    ):
        read_scores(path)


def test_runs_are_chosen_by_variant_and_seed() -> None:
    assert select_runs(RUNS, [], []) == RUNS
    assert select_runs(RUNS, ["softmax", "7"], [1]) == [RUNS[3], RUNS[0]]
    assert select_runs(RUNS, ["07-rela-g"], [2]) == [RUNS[1]]
    with pytest.raises(UserError, match="--variants nosuch: expected one of 07-rela-g, 04-relu"):
        select_runs(RUNS, ["nosuch"], [])
    with pytest.raises(UserError, match="--seeds 2: expected seeds of these variants, 1"):
        select_runs(RUNS, ["softmax"], [1, 2])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("text/source", "other.en"),
        ("text/development", 50),
        ("model/heads", 4),
        ("attention", "rela-i"),
        ("signature/BLEU", "tok:intl"),
    ],
)
def test_seeds_that_differ_in_more_than_the_seed_are_rejected(name: str, value: Any) -> None:
    same = {"text/gold": "gold", "text/development": 0, "signature/BLEU": "tok:13a"}
    one = run("07-rela-g", 1, 20.0, sparsity=0.4, **same)
    other = run("07-rela-g", 2, 22.0, sparsity=0.6, **{**same, name: value})
    build_document([one], Extras(PAPER))
    with pytest.raises(DataError, match=rf"{name} is .* in 07-rela-g, seed 1, but .* seed 2: no"):
        build_document([one, other], Extras(PAPER))


def test_variants_that_were_analysed_on_other_texts_are_rejected() -> None:
    runs = [RUNS[0], run("01-softmax", 1, 20.0, sparsity=0.0, **{"text/pairs": 8})]
    with pytest.raises(DataError, match="text/pairs is 7 in 07-rela-g, seed 1, but 8 in 01-soft"):
        build_document(runs, Extras(PAPER))


def test_scores_of_another_recipe_of_a_task_have_the_papers_numbers(tmp_path: Path) -> None:
    path, output = tmp_path / "scores.tsv", tmp_path / "report"
    runs = [
        RunScores("wmt14_en_de-stanford", variant, 1, {"status": "scored", "score/BLEU": 20.0})
        for variant in ("01-softmax", "07-rela-g")
    ]
    write_scores(path, runs)
    assert main(["--from", str(path), "--output", str(output), "--variants", "softmax"]) == 0
    text = (output / "report.md").read_text(encoding="utf-8")
    assert "| 01-softmax |  | 20.00 |  |  | 1 | 26.9 |" in text
    assert "| 07-rela-g |" not in text
    assert read_scores(output / "scores.tsv") == runs[:1]


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
    seeds = analysis.seeds[model.name]
    assert [one.layers("cross")[0]["sparsity"] for one in seeds] == [0.4, 0.6]


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
    assert rela[-1] == "2"
    assert cells(alignment_table(by_variant(RUNS)).rows, "01-softmax")[-1] == "0"
    rows = diversity_table(by_variant(RUNS)).rows
    warm = next(row for row in rows if row[:2] == ["07-rela-g", "1.0"])
    assert warm[2:5] == ["1.50 ± 0.14", "1.26", "+0.24"]
    assert warm[-1] == "2"
    assert cells(rows, "01-softmax")[2:4] == ["missing", "0.56"]


def test_flops_name_the_crossover() -> None:
    rows = flops_table([(512, 8), (256, 4)]).rows
    assert [row[1] for row in rows if row[-1]] == ["321", "321"]
    (hundred,) = [row for row in rows if row[:2] == ["d = 512, H = 8", "100"]]
    assert hundred[2:4] == ["239,200", "592,100"]


def bench_file(path: Path, benchmark: str, speeds: dict[str, float], **more: Any) -> Path:
    """A file of nmt-bench."""
    name, rows = ("kind", "kinds") if benchmark == "train" else ("model", "models")
    values = [
        {
            name: kind,
            "parameters": 5_000_000,
            "relative_speed": {"median": speed},
            "groups": [{"mean_length": 10.0, "relative_speed": speed / 2}],
            "batch_size": 1,
            "weights": "bfloat16",
            **more,
        }
        for kind, speed in speeds.items()
    ]
    machine = {"processor": benchmark.upper(), "cores": 2, "threads": 1, "kernels": None}
    path.write_text(json.dumps({"benchmark": benchmark, "machine": machine, rows: values}))
    return path


def test_speeds_of_the_bench_fill_table_2(tmp_path: Path) -> None:
    # Both are measured relative to another kind.
    train = bench_file(tmp_path / "train.json", "train", {"rela-g": 1.0, "softmax": 1.25})
    decode = bench_file(tmp_path / "decode.json", "decode", {"rela-g": 1.0, "runs/softmax": 2.0})
    table = speed_table(speeds := read_speeds([train, decode]))
    rela = cells(table.rows, "rela-g")
    assert rela[1:6] == ["5.00M", "72.34M", "0.80x", "0.93x", "−0.13"]
    assert rela[6:] == ["0.95x", "0.50x", "0.98x", "−0.48"]
    assert cells(table.rows, "softmax")[3:9:4] == ["1.00x", "1.00x"]
    assert [group.speed for group in speeds.groups["rela-g"]] == [0.5]
    assert (
        "Training: processor TRAIN, cores 2, threads 1. Translation: processor DECODE" in table.note
    )
    assert cells(speed_table(Speeds()).rows, "softmax")[3] == "missing"


def test_speeds_that_cannot_be_compared_are_rejected(tmp_path: Path) -> None:
    path = bench_file(tmp_path / "train.json", "train", {"rela-g": 1.0})
    with pytest.raises(DataError, match=r"train.json: expected softmax among the models.*rela-g"):
        read_speeds([path])
    path = bench_file(path, "train", {"softmax": 1.0, "rela-g": 0.9})
    with pytest.raises(DataError, match=r"train.json: rela-g is in another file, too"):
        read_speeds([path, path])
    small = bench_file(tmp_path / "small.json", "decode", {"softmax": 1.0}, parameters=7)
    with pytest.raises(DataError, match=r"small.json: softmax is a model of another size"):
        read_speeds([path, small])
    other = bench_file(tmp_path / "other.json", "train", {"softmax": 1.0, "sparsemax": 0.3})
    assert read_speeds([path, other]).train == {"softmax": 1.0, "rela-g": 0.9, "sparsemax": 0.3}


def test_speeds_of_decoding_may_be_of_any_floats(tmp_path: Path) -> None:
    path = bench_file(tmp_path / "decode.json", "decode", {"softmax": 1.0, "rela-g": 0.9})
    document = json.loads(path.read_text())
    small = [
        {**row, "weights": "int8", "relative_speed": {"median": 2.0}} for row in document["models"]
    ]
    path.write_text(json.dumps({**document, "models": [*document["models"], *small]}))
    assert cells(speed_table(read_speeds([path])).rows, "rela-g")[7] == "0.90x"
    bench_file(path, "decode", {"softmax": 1.0}, batch_size=64)
    with pytest.raises(DataError, match=r"decode.json: expected measurements with batch size 1"):
        read_speeds([path])


def test_curves_are_means_at_shared_updates() -> None:
    runs = [
        RunScores("t", "v", 1, {"curve/bleu/100": 10.0, "curve/bleu/200": 20.0}),
        RunScores("t", "v", 2, {"curve/bleu/100": 14.0}),
    ]
    assert seed_curves(runs, "bleu") == {100: [10.0, 14.0]}
    assert seed_curves(runs, "loss") == {}
    drawing = curve_drawing({"v": runs})
    assert drawing is not None
    (axes,) = drawing.figure.axes
    assert axes.lines[0].get_ydata().tolist() == [12.0]
    (band,) = axes.collections  # from the lowest to the highest seed
    assert {y for _, y in band.get_paths()[0].vertices} == {10.0, 14.0}
    single = curve_drawing({"v": runs[:1]})
    assert single is not None
    assert not single.figure.axes[0].collections


def test_null_rates_after_words_are_means_over_seeds() -> None:
    def after(seed: int, heads: list[float]) -> RunScores:
        one = {"null_after": {"comma": {"queries": 3, "null_rate": 0.5, "heads": heads}}}
        one["heads"] = {"null_rate": [0.125, 0.25]}
        statistics = {"cross": {"layer_1": one}}
        return RunScores("t", "v", seed, dict(flatten(statistics, "analysis/statistics")))

    runs = [after(1, [0.0, 1.0]), after(2, [0.5, 0.25]), RunScores("t", "v", 3, {})]
    table = after_words_means({"v": runs})
    assert table.rows == [
        [
            "v",
            "cross-attention",
            "1",
            "(all queries)",
            "18.8 ± 0.0",
            "12.5 ± 0.0",
            "25.0 ± 0.0",
            "2",
        ],
        ["v", "cross-attention", "1", "comma", "43.8 ± 8.8", "12.5 ± 17.7", "75.0 ± 35.4", "2"],
    ]
    assert not after_words_means(by_variant(RUNS)).rows


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
    runs = [run("07-rela-g", 1, 20.0, sparsity=0.4)]
    from_scores = build_document(runs, Extras(PAPER, from_scores=True)).markdown()
    assert from_scores.count("are made from the runs, and are not in a file of scores") == 3


def test_text_is_escaped() -> None:
    runs = [RunScores("<b>", "a|b<i>", 1, {"status": "missing", "attention": "<u>"})]
    document = build_document(runs, Extras())
    assert "<b>" not in document.html().replace("<body>", "")
    assert "<u>" not in document.html()
    assert "a\\|b\\<i\\>" in document.markdown()
