"""The tables of an analysis, for tables.md and the report page.

Rates are in percent and entropies in nats.
"""

from collections.abc import Callable, Sequence
from typing import Any

from nmt.analysis.alignment import STEPS
from nmt.analysis.published import ALIGNMENT_ERROR, HEAD_DIVERSITY
from nmt.analysis.results import (
    ATTENTION_TYPES,
    LANDMARKS,
    Analysis,
    ModelResult,
    chosen_heads,
    diversity,
    learned_names,
    mean_density,
)
from nmt.analysis.role_tables import role_tables
from nmt.tables import Table, escape_markdown

NOTHING = "–"
OTHER_TASK = (
    "The numbers of the paper, for Transformer-base models trained on WMT14 with 32K subwords. "
    "Models and text differ here, so compare the order of the kinds, not the values"
)

MEANS = ("AoL", "AoH")


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
            note="Percent of the visible weights that are exactly 0, mean over the heads",
            value=lambda layer: 100 * float(layer["sparsity"]),
        ),
        *null_tables(models),
        layer_table(
            models,
            title="Density",
            note="Number of non-zero weights of a query, mean over queries and heads",
            value=mean_density,
        ),
        layer_table(
            models,
            title="Entropy",
            note="Entropy in nats of the weights of a query divided by their sum, mean over the "
            "queries that attend to something, then over the heads",
            value=lambda layer: float(layer["entropy"]),
            digits=2,
        ),
        *(learned_table(models, name) for name in learned_names(models)),
        *role_tables(models),
    ]


def model_table(models: Sequence[ModelResult]) -> Table:
    """The models that are compared."""
    rows = []
    for model in models:
        layers = f"{len(model.layers('encoder_self'))} + {len(model.layers('cross'))}"
        rows.append(
            [
                model.name,
                *(model.attention[type_] for type_ in ATTENTION_TYPES),
                layers,
                str(model.num_heads),
                f"{model.parameters:,}",
            ]
        )
    columns = ["model", *ATTENTION_TYPES.values(), "layers", "heads", "parameters"]
    return Table(columns, rows, labels=4, title="Models")


def layer_table(
    models: Sequence[ModelResult],
    *,
    title: str,
    note: str,
    value: Callable[[dict[str, Any]], float],
    digits: int = 1,
) -> Table:
    """One value per layer and type of attention, and the mean over the layers."""
    rows = []
    for model in models:
        for type_, type_name in ATTENTION_TYPES.items():
            values = [value(layer) for layer in model.layers(type_)]
            rows.append([model.name, type_name, *layer_cells(values, depth(models), digits)])
    columns = ["model", "attention", *layer_columns(depth(models))]
    return Table(columns, rows, labels=2, title=title, note=note)


def depth(models: Sequence[ModelResult]) -> int:
    """The number of layers of the deepest model."""
    return max(len(model.layers(type_)) for model in models for type_ in ATTENTION_TYPES)


def layer_columns(layers: int) -> list[str]:
    """The headings of values by layer."""
    return [*(f"layer {number}" for number in range(layers)), "mean"]


def layer_cells(values: Sequence[float], columns: int, digits: int) -> list[str]:
    """Values by layer, empty where a model has fewer layers, and their mean."""
    cells = [f"{number:.{digits}f}" for number in values]
    cells += [""] * (columns - len(values))
    return [*cells, f"{sum(values) / len(values):.{digits}f}"]


def error_rate_tables(analysis: Analysis) -> list[Table]:
    """Table 5, and the same by layer (Figure 4)."""
    rated = [(model, model.aer) for model in analysis.models if model.aer is not None]
    if not rated:
        return []
    columns = ["model", "normal AoL", "normal AoH", "shifted AoL", "shifted AoH"]
    rows = [
        [
            model.name,
            *(percent(aer[step][mean]) for step in STEPS for mean in MEANS),
        ]
        for model, aer in rated
    ]
    note = (
        "Percent, mean over the layers; lower is better. AoL: layer attention, the mean of the "
        "heads. AoH: the best head of each layer. "
        + chosen_heads(analysis.development, analysis.weights)
    )
    paper = [
        [kind, *(f"{rate:.2f}" for step in STEPS for rate in rates[step])]
        for kind, rates in ALIGNMENT_ERROR.items()
    ]
    width = max(len(aer["normal"]["layers"]) for _, aer in rated)
    by_layer = []
    for model, aer in rated:
        for step, layers in ((step, aer[step]["layers"]) for step in STEPS):
            attention = [100 * layer["layer_attention"] for layer in layers]
            best = [100 * layer["best_head_aer"] for layer in layers]
            by_layer.append([model.name, step, "layer", *layer_cells(attention, width, 1)])
            by_layer.append([model.name, step, "best head", *layer_cells(best, width, 1)])
    return [
        Table(columns, rows, title="Alignment error rate (Table 5)", note=note),
        Table(columns, paper, title="Alignment error rate in the paper", note=OTHER_TASK),
        Table(
            ["model", "step", "attention", *layer_columns(width)],
            by_layer,
            labels=3,
            title="Alignment error rate by layer (Figure 4)",
            note="Percent; lower is better",
        ),
    ]


def percent(share: float) -> str:
    """A share in percent with two digits, as in the paper."""
    return f"{100 * share:.2f}"


def diversity_tables(models: Sequence[ModelResult]) -> list[Table]:
    """Table 6."""
    columns = ["model", "temperature", "encoder", "decoder", "cross"]
    rows = []
    for model in models:
        keys = {
            key
            for type_ in ATTENTION_TYPES
            for layer in model.layers(type_)
            for key in layer["diversity"]
        }
        temperatures = sorted(keys - {"plain"}, key=float, reverse=True)
        for temperature in temperatures or ["plain"]:
            cells = [mean_diversity(model, type_, temperature) for type_ in ATTENTION_TYPES]
            rows.append([model.name, temperature_cell(temperature), *cells])
    paper = [
        [kind, temperature_cell(temperature), *(f"{value:.2f}" for value in values)]
        for kind, by_temperature in HEAD_DIVERSITY.items()
        for temperature, values in by_temperature.items()
    ]
    note = (
        "Generalised Jensen-Shannon divergence of the heads in nats, mean over the layers; higher "
        "is more diverse. Weights that do not sum to 1 (ReLA) are first renormalised with a "
        "temperature"
    )
    return [
        Table(columns, rows, labels=2, title="Head diversity (Table 6)", note=note),
        Table(columns, paper, labels=2, title="Head diversity in the paper", note=OTHER_TASK),
        layer_table(
            models,
            title="Head diversity by layer (Figure 5)",
            note="Nats; ReLA at temperature 1",
            value=diversity,
            digits=2,
        ),
    ]


def temperature_cell(temperature: str) -> str:
    """A temperature as the paper writes it; nothing for weights that sum to 1."""
    return NOTHING if temperature == "plain" else f"{float(temperature):g}"


def mean_diversity(model: ModelResult, type_: str, temperature: str) -> str:
    """The mean over the layers; layers whose weights sum to 1 have no temperature."""
    values = [
        layer["diversity"].get(temperature, layer["diversity"].get("plain", 0.0))
        for layer in model.layers(type_)
    ]
    return f"{sum(values) / len(values):.2f}"


def null_tables(models: Sequence[ModelResult]) -> list[Table]:
    """Figure 6, for the models whose queries can attend to nothing."""
    rows = []
    for model in models:
        for type_, type_name in ATTENTION_TYPES.items():
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
        "Percent of the queries whose weights are all 0, mean over the heads. Shuffled: each "
        "source with the target of another pair. Models that are not listed always attend to "
        "something"
    )
    columns = ["model", "attention", "targets", *layer_columns(depth(models))]
    return [Table(columns, rows, labels=3, title="Null rate (Figure 6)", note=note)]


def learned_table(models: Sequence[ModelResult], name: str) -> Table:
    """A learned parameter: mean, lowest and highest of the heads."""
    rows = []
    for model in models:
        for type_, type_name in ATTENTION_TYPES.items():
            heads = [layer["heads"].get(name) for layer in model.layers(type_)]
            if any(heads):
                cells = [learned_cell(values) for values in heads]
                cells += [""] * (depth(models) - len(cells))
                rows.append([model.name, type_name, *cells])
    marks = [f"{value:g} is {kind}" for value, kind in LANDMARKS.get(name, {}).items()]
    note = "; ".join(["Mean of the heads, with the lowest and the highest", *marks])
    columns = ["model", "attention", *layer_columns(depth(models))[:-1]]
    return Table(columns, rows, labels=2, title=f"Learned {name}", note=note)


def learned_cell(values: Sequence[float] | None) -> str:
    """The values of the heads of a layer."""
    if not values:
        return NOTHING
    mean = sum(values) / len(values)
    return f"{mean:.2f} ({min(values):.2f} to {max(values):.2f})"


def markdown(analysis: Analysis, tables: Sequence[Table]) -> str:
    """The content of tables.md."""
    gold = f", gold alignments {escape_markdown(analysis.gold)}" if analysis.gold else ""
    lines = [
        "# Attention analysis",
        "",
        f"{analysis.pairs} sentence pairs of {escape_markdown(analysis.source)} and "
        f"{escape_markdown(analysis.target)}{gold}. Layers and heads are counted from 0.",
    ]
    for table in tables:
        lines += ["", f"## {table.title}", ""]
        if table.note:
            lines += [f"{table.note}.", ""]
        lines.append(table.markdown())
    return "\n".join(lines) + "\n"
