"""Results of benchmarks as Markdown, JSON and figures."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from nmt.analysis.figures import COLOURS, legend, look, new_figure, png, styled
from nmt.bench.decoding import DecodingResult, DecodingSpeed
from nmt.bench.growth import GrowthResult
from nmt.bench.timing import Spread
from nmt.bench.training import TrainingResult

MILLION = 1e6
GIGA = 1e9
DASHES = ("-", "--", ":")


def training_markdown(result: TrainingResult) -> str:
    """The paper's Table 2, with what a reader needs besides."""
    rows = [
        (
            speed.kind,
            f"{speed.parameters / MILLION:.2f}M",
            times(speed.relative_speed),
            spread(speed.tokens_per_second, "{:,.0f}"),
            percent(speed.share_of_matrix_rate),
            megabytes(speed.peak_memory_bytes),
        )
        for speed in result.kinds
    ]
    header = (
        "attention",
        "parameters",
        "Δ train",
        "target tokens/s",
        "of the matrix-product rate",
        "peak memory",
    )
    return "\n".join(
        [
            f"{result.machine}",
            f"Matrix products: {spread(result.matrix_rate, '{:.0f}', 1 / GIGA)} GFLOP/s; "
            f"{result.operations_per_token / MILLION:.1f} MFLOP and {result.tokens:,} target "
            f"tokens a round. Δ train: speed relative to {result.reference}.",
            "",
            table(header, rows),
        ]
    )


def decoding_markdown(result: DecodingResult) -> str:
    """A table of all models and batch sizes, and one of the speeds by source length."""
    rows = [
        (
            label(speed),
            f"{speed.batch_size}",
            f"{speed.parameters / MILLION:.2f}M",
            times(speed.relative_speed),
            spread(speed.sentences_per_second, "{:.1f}"),
            spread(speed.tokens_per_second, "{:,.0f}"),
            percent(speed.share_of_matrix_rate),
            megabytes(speed.peak_memory_bytes),
        )
        for speed in result.models
    ]
    header = (
        "model",
        "batch",
        "parameters",
        "Δ decode",
        "sentences/s",
        "target tokens/s",
        "of the matrix-product rate",
        "memory on top",
    )
    return "\n".join(
        [
            f"{result.machine}",
            f"Matrix products: {spread(result.matrix_rate, '{:.0f}', 1 / GIGA)} GFLOP/s; "
            f"{result.sentences} sentences, beam {result.beam}. Δ decode: speed relative to "
            f"{label(result.models[0])} at the same batch size.",
            "",
            table(header, rows),
            "",
            "Speed by source length (subwords), relative to the first model:",
            "",
            group_table(result.models),
        ]
    )


def growth_markdown(result: GrowthResult) -> str:
    """A table for each axis."""
    parts = [str(result.machine)]
    for axis in result.axes:
        header = (axis.size, f"µs a {axis.unit}", "cost", "asked for")
        rows = [
            (
                f"{point.size:,}",
                spread(point.seconds_per_unit, "{:,.1f}", MILLION),
                times(point.cost),
                f"{point.demand:.2f}x",
            )
            for point in axis.points
        ]
        parts += ["", f"{axis.title}:", "", table(header, rows)]
    return "\n".join(parts)


def group_table(models: Sequence[DecodingSpeed]) -> str:
    """Figure 2 in numbers: a column a group."""
    groups = [f"{group.shortest}-{group.longest}" for group in models[0].groups]
    rows = [
        (label(speed), f"{speed.batch_size}", *(f"{g.relative_speed:.2f}x" for g in speed.groups))
        for speed in models
    ]
    return table(("model", "batch", *groups), rows)


def label(speed: DecodingSpeed) -> str:
    """The name of a model in tables and figures."""
    return f"{speed.model}, int8" if speed.weights == "int8" else speed.model


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def times(ratio: Spread) -> str:
    """A ratio of speeds."""
    return f"{ratio.median:.2f}x"


def percent(share: Spread) -> str:
    """A share."""
    return f"{100 * share.median:.0f} %"


def spread(values: Spread, form: str, factor: float = 1.0) -> str:
    """The median and, in brackets, the lowest and highest value."""
    median, low, high = (form.format(factor * x) for x in (values.median, values.low, values.high))
    return f"{median} ({low} to {high})"


def megabytes(size: int | None) -> str:
    """Memory."""
    return "unknown" if size is None else f"{size / MILLION:,.0f} MB"


def as_json(
    benchmark: str,
    settings: dict[str, Any],
    result: TrainingResult | DecodingResult | GrowthResult,
) -> str:
    """Everything measured, with what it was measured on and how."""
    return json.dumps({"benchmark": benchmark, "settings": settings, **asdict(result)}, indent=2)


def training_figure(result: TrainingResult) -> bytes:
    """A bar for each kind: speed relative to the reference; a PNG."""
    with styled():
        figure = new_figure(1.5 + 0.9 * len(result.kinds), 3.2)
        axes = figure.subplots()
        ratios = [speed.relative_speed for speed in result.kinds]
        names = [speed.kind for speed in result.kinds]
        medians = [ratio.median for ratio in ratios]
        ends = [
            [ratio.median - ratio.low for ratio in ratios],
            [ratio.high - ratio.median for ratio in ratios],
        ]
        axes.bar(names, medians, yerr=ends, capsize=3, color=look(0)["color"])
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_ylabel(f"training speed ({result.reference} = 1)")
        axes.tick_params(axis="x", rotation=30)
        axes.grid(visible=False, axis="x")
        return png(figure)


def line(number: int) -> dict[str, Any]:
    """Colour, mark and dashes of a curve; colours begin again after all have been used."""
    return {**look(number), "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}


def decoding_figure(result: DecodingResult) -> bytes:
    """The paper's Figure 2, a panel for each batch size; a PNG."""
    sizes = list(dict.fromkeys(speed.batch_size for speed in result.models))
    with styled():
        figure = new_figure(4.5 * len(sizes), 3.6)
        row = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
        entries = {}
        for axes, size in zip(row, sizes, strict=True):
            models = [speed for speed in result.models if speed.batch_size == size]
            for number, speed in enumerate(models):
                lengths = [group.mean_length for group in speed.groups]
                ratios = [group.relative_speed for group in speed.groups]
                (entries[label(speed)],) = axes.plot(lengths, ratios, **line(number))
            axes.set_title(f"batch {size}")
            axes.set_xlabel("source length (subwords)")
            axes.set_ylim(bottom=0.0)
        row[0].set_ylabel(f"decoding speed ({label(result.models[0])} = 1)")
        legend(figure, entries)
        return png(figure)


def short(number: int) -> str:
    """For the ticks of an axis: 32k for 32,000."""
    return f"{number // 1000}k" if number >= 2000 else str(number)


def growth_figure(result: GrowthResult) -> bytes:
    """A panel for each axis, cost a unit against size, both logarithmic; a PNG."""
    columns = min(4, len(result.axes))
    rows = -(-len(result.axes) // columns)
    with styled():
        figure = new_figure(3.2 * columns, 3.0 * rows)
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        entries = {}
        for axes, axis in zip(panels, result.axes, strict=False):
            sizes = [point.size for point in axis.points]
            costs = [point.cost.median for point in axis.points]
            demands = [point.demand for point in axis.points]
            (entries["measured"],) = axes.plot(sizes, costs, **look(0))
            (entries["asked for"],) = axes.plot(sizes, demands, **{**look(1), "linestyle": "--"})
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [short(size) for size in sizes])
            lowest, highest = (f(*costs, *demands) for f in (min, max))
            powers = range(math.floor(math.log2(lowest)), math.ceil(math.log2(highest)) + 1)
            axes.set_yscale("log", base=2)
            axes.set_yticks([2.0**power for power in powers], [f"{2.0**n:g}x" for n in powers])
            axes.minorticks_off()
            axes.set_title(axis.title)
            axes.set_xlabel(axis.size)
            axes.set_ylabel(f"cost of a {axis.unit}")
        for axes in panels[len(result.axes) :]:
            axes.set_axis_off()
        legend(figure, entries)
        return png(figure)
