"""Tables of what heads attend to: sinks, what remains without them, word classes and roles."""

from collections.abc import Callable, Sequence
from typing import Any

from nmt.analysis.key_classes import SINKS
from nmt.analysis.results import ATTENTION_TYPES, ModelResult
from nmt.analysis.roles import ALIGNMENT_THRESHOLD, THRESHOLD
from nmt.tables import Table

LONGEST_TEXT = 60  # characters of an example in a table


def role_tables(models: Sequence[ModelResult]) -> list[Table]:
    """The tables that these models have numbers for."""
    tables = [
        sink_table(models),
        sink_free_table(models),
        layer_null_table(models),
        after_words_table(models),
        role_table(models),
    ]
    return [table for table in tables if table.rows]


def depth(models: Sequence[ModelResult]) -> int:
    """The number of layers of the deepest model."""
    return max(len(model.layers(type_)) for model in models for type_ in ATTENTION_TYPES)


def by_layer(
    models: Sequence[ModelResult],
    rows: Sequence[tuple[ModelResult, str, str, Sequence[float]]],
    *,
    heading: str,
    digits: int,
    title: str,
    note: str,
) -> Table:
    """A table of (model, type of attention, name, value by layer), with the mean of the layers."""
    width = depth(models)
    cells = []
    for model, type_, name, values in rows:
        numbers = [f"{value:.{digits}f}" for value in [*values, sum(values) / len(values)]]
        padding = [""] * (width - len(values))
        cells.append(
            [model.name, ATTENTION_TYPES[type_], name, *numbers[:-1], *padding, numbers[-1]]
        )
    columns = ["model", "attention", heading, *(f"layer {n}" for n in range(width)), "mean"]
    return Table(columns, cells, labels=3, title=title, note=note)


def collect(
    models: Sequence[ModelResult],
    names: Sequence[str],
    value: Callable[[dict[str, Any], str], float | None],
) -> list[tuple[ModelResult, str, str, list[float]]]:
    """The rows for which every layer has a value."""
    rows = []
    for model in models:
        for type_ in ATTENTION_TYPES:
            for name in names:
                values = [value(layer, name) for layer in model.layers(type_)]
                known = [number for number in values if number is not None]
                if len(known) == len(values):
                    rows.append((model, type_, name, known))
    return rows


def mean_share(layer: dict[str, Any], name: str) -> float | None:
    """The share of a class of keys in percent, mean over the heads that see it; None without."""
    heads = [share for share in layer.get("shares", {}).get(name, []) if share is not None]
    return 100 * sum(heads) / len(heads) if heads else None


def sink_table(models: Sequence[ModelResult]) -> Table:
    """How much attention goes to sinks."""
    return by_layer(
        models,
        collect(models, SINKS, mean_share),
        heading="keys",
        digits=1,
        title="Sink rate",
        note="Percent of the weight of a query that goes to these keys, mean over the queries that "
        "attend to something and see both such a key and another one, then over the heads that "
        "have such queries. The first token of the decoder is its start symbol; it reads no end "
        "symbol",
    )


def sink_free_table(models: Sequence[ModelResult]) -> Table:
    """The measures without sinks."""
    factors = {"sparsity": 100.0, "entropy": 1.0, "diversity": 1.0}

    def value(layer: dict[str, Any], name: str) -> float | None:
        measures = layer.get("without_sinks")
        return None if measures is None else factors[name] * float(measures[name])

    return by_layer(
        models,
        collect(models, list(factors), value),
        heading="measure",
        digits=2,
        title="Sparsity, entropy and diversity without sinks",
        note="End symbol, first token and punctuation are left out as keys. Weights that sum to 1 "
        "are divided by what remains. Sparsity in percent, entropy and diversity in nats; ReLA at "
        "temperature 1",
    )


def layer_null_table(models: Sequence[ModelResult]) -> Table:
    """Null rate of the layer attention and variance of the heads (section 5.2)."""
    keys = {
        "null rate of the layer attention (%)": ("layer_null_rate", 100.0),
        "variance of the heads' null rates": ("null_rate_variance", 1.0),
    }

    def value(layer: dict[str, Any], name: str) -> float | None:
        key, factor = keys[name]
        return factor * float(layer[key]) if key in layer else None

    nullable = [model for model in models if any(model.nullable.values())]
    rows = [row for row in collect(nullable, list(keys), value) if row[0].nullable[row[1]]]
    return by_layer(
        models,
        rows,
        heading="number",
        digits=3,
        title="Null rate of whole layers, and how heads differ",
        note="The layer attention is the mean of the heads; it is null if all heads are. The "
        "variance is that of a sample, of rates from 0 to 1. The paper reports 0.256 for its "
        "middle layer of cross-attention without saying which variance it means, and almost no "
        "null layer attention",
    )


def after_words_table(models: Sequence[ModelResult]) -> Table:
    """Null rates of every head after words of a class."""
    rows = []
    heads = max(model.num_heads for model in models)
    for model in models:
        for type_, type_name in ATTENTION_TYPES.items():
            for number, layer in enumerate(model.layers(type_)):
                classes = layer.get("null_after", {})
                every = {"heads": layer["heads"]["null_rate"], "queries": ""}
                for name, found in {"(all queries)": every, **classes}.items() if classes else ():
                    rates = [f"{100 * rate:.1f}" for rate in found["heads"]]
                    rates += [""] * (heads - len(rates))
                    labels = [model.name, type_name, f"{number}", name, f"{found['queries']}"]
                    rows.append([*labels, *rates])
    columns = ["model", "attention", "layer", "after", "queries"]
    columns += [f"head {head}" for head in range(heads)]
    note = (
        "Percent of the queries whose weights are all 0, among those that read the last subword "
        "of a word of the class"
    )
    return Table(columns, rows, labels=4, title="Null rate after a class of words", note=note)


def role_table(models: Sequence[ModelResult]) -> Table:
    """The heads with a role."""
    rows = []
    for model in models:
        for type_, type_name in ATTENTION_TYPES.items():
            for number, layer in enumerate(model.layers(type_)):
                for found in layer.get("roles", []):
                    labels = [model.name, type_name, f"{number}", f"{found['head']}", found["role"]]
                    rows.append([*labels, f"{found['score']:.2f}", example_text(found)])
    note = (
        "Score: the share of the weight that goes to the keys of the role, mean over the queries "
        "that attend to something and see both such a key and another one; a head has a role from "
        f"{THRESHOLD:g} on. Alignment: the information of its links about the source word, as a "
        "share of the entropy of source words, on the first 1,000 pairs; from "
        f"{ALIGNMENT_THRESHOLD:g} on. The example is the line in which the role is clearest"
    )
    columns = ["model", "attention", "layer", "head", "role", "score", "example"]
    return Table(columns, rows, labels=5, title="Roles of heads", note=note)


def example_text(found: dict[str, Any]) -> str:
    """The best example of a role."""
    if not found["examples"]:
        return ""
    best = found["examples"][0]
    text = best["text"]
    shown = text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT].rstrip()} …"
    return f"{best['line']}: {shown}"
