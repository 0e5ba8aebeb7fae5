"""Tables of an analysis, against numbers that can be worked out by hand."""

import dataclasses
from typing import Any

import pytest

from nmt.analysis.explorer_data import layer_measures
from nmt.analysis.results import ATTENTION_TYPES, Analysis, ModelResult, mean_density
from nmt.analysis.tables import all_tables, markdown
from nmt.tables import Table


def layer(sparsity: float, **more: Any) -> dict[str, Any]:
    """One layer of two heads."""
    heads = {
        "sparsity": [sparsity, sparsity],
        "null_rate": [0.0, 0.0],
        "entropy": [1.0, 2.0],
        "density": [[0, 3, 1], [2, 2]],
        **more.pop("heads", {}),
    }
    return {
        "sparsity": sparsity,
        "null_rate": 0.0,
        "entropy": 1.5,
        "diversity": {"plain": 0.25},
        "heads": heads,
        **more,
    }


def softmax() -> ModelResult:
    """A model of two layers per side whose weights sum to 1."""
    return ModelResult(
        name="plain",
        path="runs/plain",
        parameters=1234,
        attention=dict.fromkeys(ATTENTION_TYPES, "softmax"),
        nullable=dict.fromkeys(ATTENTION_TYPES, False),
        statistics={
            type_: {"layer_0": layer(0.0), "layer_1": layer(0.0)} for type_ in ATTENTION_TYPES
        },
    )


def rela() -> ModelResult:
    """A model of one layer per side that can be null."""
    one = layer(
        0.75,
        null_rate=0.1,
        shuffled_null_rate=0.4,
        diversity={"1.0": 1.0, "0.5": 0.5},
    )
    return dataclasses.replace(
        softmax(),
        name="a|b <c>",
        nullable=dict.fromkeys(ATTENTION_TYPES, True),
        statistics={type_: {"layer_0": one} for type_ in ATTENTION_TYPES},
    )


def analysis(*models: ModelResult) -> Analysis:
    return Analysis("test.en", "test.de", 7, 1, list(models))


def find(tables: list[Table], beginning: str) -> Table:
    (table,) = [table for table in tables if table.title.startswith(beginning)]
    return table


def test_measures_by_layer_are_percent_with_their_mean() -> None:
    tables = all_tables(analysis(softmax(), rela()))
    table = find(tables, "Sparsity")
    assert table.columns == ["model", "attention", "layer 0", "layer 1", "mean"]
    assert table.rows[2] == ["plain", "cross-attention", "0.0", "0.0", "0.0"]
    assert table.rows[5] == ["a|b <c>", "cross-attention", "75.0", "", "75.0"]


def test_diversity_has_a_row_for_each_temperature() -> None:
    table = find(all_tables(analysis(softmax(), rela())), "Head diversity (Table 6)")
    assert table.rows == [
        ["plain", "–", "0.25", "0.25", "0.25"],
        ["a|b <c>", "1", "1.00", "1.00", "1.00"],
        ["a|b <c>", "0.5", "0.50", "0.50", "0.50"],
    ]


def test_null_rates_are_of_those_that_can_be_null() -> None:
    table = find(all_tables(analysis(softmax(), rela())), "Null rate")
    assert [row[0] for row in table.rows] == ["a|b <c>"] * 6
    assert table.rows[4][1:4] == ["cross-attention", "real", "10.0"]
    assert table.rows[5][1:4] == ["cross-attention", "shuffled", "40.0"]
    assert not [table for table in all_tables(analysis(softmax())) if "Null" in table.title]


def test_error_rates_say_where_heads_were_chosen() -> None:
    row = {"layer": 0, "layer_attention": 0.5, "best_head": 1, "best_head_aer": 0.25, "heads": []}
    step = {"AoL": 0.5, "AoH": 0.25, "layers": [row]}
    rated = dataclasses.replace(rela(), aer={"normal": step, "shifted": {**step, "AoL": 0.125}})
    whole = dataclasses.replace(analysis(rated), gold="gold")
    table = find(all_tables(whole), "Alignment error rate (Table 5)")
    assert table.rows == [["a|b <c>", "50.00", "25.00", "12.50", "25.00"]]
    assert "chosen on the pairs that they are scored on" in table.note
    quoted = find(all_tables(whole), "Alignment error rate in the paper")
    assert quoted.rows[0] == ["softmax", "75.95", "67.51", "79.38", "54.31"]
    table = find(all_tables(dataclasses.replace(whole, development=3)), "Alignment error rate (T")
    assert "first 3 pairs" in table.note


def test_the_paper_is_quoted_apart_and_with_a_warning() -> None:
    quoted = find(all_tables(analysis(softmax())), "Head diversity in the paper")
    assert "compare the order of the kinds, not the values" in quoted.note
    assert ["entmax15", "–", "0.84", "0.39", "0.52"] in quoted.rows
    assert ["rela-g", "0.25", "0.92", "0.65", "0.71"] in quoted.rows


def learned(name: str) -> ModelResult:
    """A model with a learned parameter in the first layer of cross-attention."""
    first = layer(0.5, heads={name: [1.2, 1.6]})
    statistics = {**softmax().statistics, "cross": {"layer_0": first, "layer_1": layer(0.5)}}
    return dataclasses.replace(softmax(), statistics=statistics)


@pytest.mark.parametrize(
    ("name", "note"),
    [("alpha", "; 1 is softmax; 1.5 is 1.5-entmax; 2 is sparsemax"), ("threshold", "")],
)
def test_every_learned_parameter_has_a_table(name: str, note: str) -> None:
    table = find(all_tables(analysis(learned(name))), f"Learned {name}")
    assert table.rows == [["plain", "cross-attention", "1.40 (1.20 to 1.60)", "–"]]
    assert table.note == f"Mean of the heads, with the lowest and the highest{note}"


def test_every_learned_parameter_is_a_measure_of_the_report() -> None:
    first, second = layer_measures(learned("threshold"), "cross")
    assert first["threshold"] == [1.2, 1.6, 1.4]  # the mean of the layer at the end
    assert "threshold" not in second


def test_mean_density_counts_weights_a_query() -> None:
    # (0 * 0 + 3 * 1 + 1 * 2) / 4 of the first head, (2 * 0 + 2 * 1) / 4 of the second
    assert mean_density(layer(0.0)) == pytest.approx((1.25 + 0.5) / 2)


def test_markdown_shows_names_as_they_are() -> None:
    table = Table(["model", "x"], [["a|b <c>\n", "1"]], title="Title", note="note")
    text = markdown(dataclasses.replace(analysis(rela()), source="_a_*"), [table])
    assert text.startswith("# ")
    assert r"7 sentence pairs of \_a\_\* and test.de." in text
    assert text.endswith(
        "## Title\n\nnote.\n\n| model | x |\n| --- | ---: |\n| a\\|b \\<c\\>  | 1 |\n"
    )
