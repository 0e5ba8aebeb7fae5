"""The numbers of an analysis as tables for people, in Markdown and for the report.

Rates are in percent, entropies in nats, layers and heads counted from 0 as everywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nmt.analysis.results import TYPES, Analysis, ModelResult, diversity, mean_density

NOTHING = "–"
OTHER_TASK = (
    "The paper's numbers, for orientation only: Transformer base models trained on WMT14 with "
    "32K subwords. Models and text here are others, so the sizes cannot be compared, only the order"
)

PAPER_AER = [
    ["softmax", "75.95", "67.51", "79.38", "54.31"],
    ["sparsemax", "78.17", "67.88", "82.32", "54.95"],
    ["1.5-entmax", "78.82", "67.69", "79.84", "58.98"],
    ["ReLA-g", "64.46", "61.64", "59.24", "52.41"],
]
PAPER_DIVERSITY = [
    ["softmax", NOTHING, "0.56", "0.31", "0.45"],
    ["1.5-entmax", NOTHING, "0.84", "0.39", "0.52"],
    ["ReLA-g", "1", "1.26", "0.81", "0.78"],
    ["ReLA-g", "0.5", "0.97", "0.65", "0.69"],
    ["ReLA-g", "0.25", "0.92", "0.65", "0.71"],
    ["ReLA-g", "0.1", "0.92", "0.66", "0.72"],
]


@dataclass(frozen=True)
class Table:
    """Cells as text; the first `labels` columns say what a row is, all others are numbers."""

    title: str
    note: str
    columns: list[str]
    rows: list[list[str]]
    labels: int = 1


def all_tables(analysis: Analysis) -> list[Table]:
    """Every table that the analysis has numbers for."""
    models = analysis.models
    return [
        model_table(models),
        *error_rate_tables(analysis),
        *diversity_tables(models),
        layer_table(
            models,
            title="Sparsity rate (Figure 3)",
            note="Percent of the weights that a query may use which are exactly 0, mean over heads",
            value=lambda layer: 100 * float(layer["sparsity"]),
        ),
        *null_tables(models),
        layer_table(
            models,
            title="Density",
            note="Weights of a query that are not 0, mean over queries and heads",
            value=mean_density,
        ),
        layer_table(
            models,
            title="Entropy",
            note="Of the weights of a query divided by their sum, in nats, mean over the queries "
            "that attend to something, then over heads",
            value=lambda layer: float(layer["entropy"]),
            digits=2,
        ),
        *alpha_tables(models),
    ]


def model_table(models: Sequence[ModelResult]) -> Table:
    """What is compared."""
    rows = []
    for model in models:
        layers = f"{len(model.layers('encoder_self'))} + {len(model.layers('cross'))}"
        rows.append(
            [
                model.name,
                *(model.attention[type_] for type_ in TYPES),
                layers,
                str(model.num_heads),
                f"{model.parameters:,}",
            ]
        )
    columns = ["model", *TYPES.values(), "layers", "heads", "parameters"]
    return Table("Models", "", columns, rows, labels=4)


def layer_table(
    models: Sequence[ModelResult],
    *,
    title: str,
    note: str,
    value: Callable[[dict[str, Any]], float],
    digits: int = 1,
) -> Table:
    """A number for each layer and type of attention, and the mean over the layers."""
    rows = []
    for model in models:
        for type_, type_name in TYPES.items():
            values = [value(layer) for layer in model.layers(type_)]
            rows.append([model.name, type_name, *layer_cells(values, depth(models), digits)])
    return Table(title, note, ["model", "attention", *layer_columns(models)], rows, labels=2)


def depth(models: Sequence[ModelResult]) -> int:
    """The layers of the deepest model."""
    return max(len(model.layers(type_)) for model in models for type_ in TYPES)


def layer_columns(models: Sequence[ModelResult]) -> list[str]:
    """The headings of numbers by layer."""
    return [*(f"layer {number}" for number in range(depth(models))), "mean"]


def layer_cells(values: Sequence[float], columns: int, digits: int) -> list[str]:
    """Numbers by layer, blank where a model has fewer of them, and their mean."""
    cells = [f"{number:.{digits}f}" for number in values]
    cells += [""] * (columns - len(values))
    return [*cells, f"{sum(values) / len(values):.{digits}f}"]


def error_rate_tables(analysis: Analysis) -> list[Table]:
    """Table 5, and the same by layer (Figure 4)."""
    rated = [(model, model.aer) for model in analysis.models if model.aer is not None]
    if not rated:
        return []
    chosen = (
        f"Best heads were chosen on the first {analysis.development} pairs, rates are of the others"
        if analysis.development
        else "Best heads were chosen on the pairs they are scored on, as in the paper"
    )
    columns = ["model", "normal AoL", "normal AoH", "shifted AoL", "shifted AoH"]
    rows = [
        [
            model.name,
            *(percent(aer[step][mean]) for step in ("normal", "shifted") for mean in MEANS),
        ]
        for model, aer in rated
    ]
    note = (
        "Percent, lower is better, mean over the layers. AoL: layer attention (mean of the heads). "
        f"AoH: best head of the layer. {chosen}"
    )
    width = max(len(aer["normal"]["layers"]) for _, aer in rated)
    by_layer = []
    for model, aer in rated:
        for step, layers in ((step, aer[step]["layers"]) for step in ("normal", "shifted")):
            attention = [100 * layer["layer_attention"] for layer in layers]
            best = [100 * layer["best_head_aer"] for layer in layers]
            by_layer.append([model.name, step, "layer", *layer_cells(attention, width, 1)])
            by_layer.append([model.name, step, "best head", *layer_cells(best, width, 1)])
    layer_names = [*(f"layer {number}" for number in range(width)), "mean"]
    return [
        Table("Alignment error rate (Table 5)", note, columns, rows),
        Table("Alignment error rate in the paper", OTHER_TASK, columns, PAPER_AER),
        Table(
            "Alignment error rate by layer (Figure 4)",
            "Percent, lower is better",
            ["model", "step", "attention", *layer_names],
            by_layer,
            labels=3,
        ),
    ]


MEANS = ("AoL", "AoH")


def percent(share: float) -> str:
    """A share with two digits, as the paper gives error rates."""
    return f"{100 * share:.2f}"


def diversity_tables(models: Sequence[ModelResult]) -> list[Table]:
    """Table 6."""
    columns = ["model", "temperature", "encoder", "decoder", "cross"]
    rows = []
    for model in models:
        keys = {
            key for type_ in TYPES for layer in model.layers(type_) for key in layer["diversity"]
        }
        temperatures = sorted(keys - {"plain"}, key=float, reverse=True)
        for temperature in temperatures or ["plain"]:
            cells = [mean_diversity(model, type_, temperature) for type_ in TYPES]
            shown = NOTHING if temperature == "plain" else f"{float(temperature):g}"
            rows.append([model.name, shown, *cells])
    note = (
        "Generalised Jensen-Shannon divergence of the heads in nats, mean over the layers; higher "
        "is more diverse. The weights of ReLA are first renormalised with a temperature; those of "
        "other kinds are taken as they are"
    )
    return [
        Table("Head diversity (Table 6)", note, columns, rows, labels=2),
        Table("Head diversity in the paper", OTHER_TASK, columns, PAPER_DIVERSITY, labels=2),
        layer_table(
            models,
            title="Head diversity by layer (Figure 5)",
            note="In nats; ReLA at temperature 1",
            value=diversity,
            digits=2,
        ),
    ]


def mean_diversity(model: ModelResult, type_: str, temperature: str) -> str:
    """The mean over layers at a temperature; layers whose weights sum to 1 have no temperature."""
    values = [
        layer["diversity"].get(temperature, layer["diversity"].get("plain", 0.0))
        for layer in model.layers(type_)
    ]
    return f"{sum(values) / len(values):.2f}"


def null_tables(models: Sequence[ModelResult]) -> list[Table]:
    """Figure 6, for the models that can attend to nothing."""
    rows = []
    for model in models:
        for type_, type_name in TYPES.items():
            if not model.nullable[type_]:
                continue
            layers = model.layers(type_)
            for key, text in (("null_rate", "real"), ("shuffled_null_rate", "shuffled")):
                if any(key in layer for layer in layers):
                    values = [100 * layer.get(key, 0.0) for layer in layers]
                    cells = layer_cells(values, depth(models), 1)
                    rows.append([model.name, type_name, text, *cells])
    if not rows:
        return []
    note = (
        "Percent of the queries whose every weight is 0, mean over heads; shuffled: each source "
        "with the target of another pair. Models that are not listed cannot attend to nothing"
    )
    columns = ["model", "attention", "targets", *layer_columns(models)]
    return [Table("Null rate (Figure 6)", note, columns, rows, labels=3)]


def alpha_tables(models: Sequence[ModelResult]) -> list[Table]:
    """Learned alphas: lowest, mean and highest of the heads."""
    rows = []
    for model in models:
        for type_, type_name in TYPES.items():
            heads = [layer["heads"].get("alpha") for layer in model.layers(type_)]
            if any(heads):
                cells = [alpha_cell(values) for values in heads]
                cells += [""] * (depth(models) - len(cells))
                rows.append([model.name, type_name, *cells])
    if not rows:
        return []
    note = "1 is softmax, 2 is sparsemax; mean of the heads, with the lowest and the highest"
    columns = ["model", "attention", *layer_columns(models)[:-1]]
    return [Table("Learned alpha", note, columns, rows, labels=2)]


def alpha_cell(values: Sequence[float] | None) -> str:
    """The alphas of the heads of a layer."""
    if not values:
        return NOTHING
    mean = sum(values) / len(values)
    return f"{mean:.2f} ({min(values):.2f} to {max(values):.2f})"


def markdown(analysis: Analysis, tables: Sequence[Table]) -> str:
    """The content of tables.md."""
    gold = f", gold alignments {in_text(analysis.gold)}" if analysis.gold else ""
    lines = [
        "# What the attention does",
        "",
        f"{analysis.pairs} sentence pairs of {in_text(analysis.source)} and "
        f"{in_text(analysis.target)}{gold}. Layers and heads are counted from 0.",
    ]
    for table in tables:
        lines += ["", f"## {table.title}", ""]
        if table.note:
            lines += [f"{table.note}.", ""]
        lines += markdown_rows(table)
    return "\n".join(lines) + "\n"


def markdown_rows(table: Table) -> list[str]:
    """The heading, the line below it and the rows."""
    rule = ["---" if place < table.labels else "---:" for place in range(len(table.columns))]
    rows = [table.columns, rule, *([in_text(cell) for cell in row] for row in table.rows)]
    return [f"| {' | '.join(row)} |" for row in rows]


def in_text(text: str) -> str:
    """Text of the user's that Markdown shows as it is."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return "".join(
        f"\\{character}" if character in "\\`*_{}[]<>#|" else character for character in plain
    )
