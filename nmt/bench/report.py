"""Results of benchmarks as Markdown and figures."""

import math
from collections.abc import Sequence
from typing import Any

from nmt.analysis.plotting import COLOURS, legend, look, new_figure, png, styled
from nmt.bench.attention import Measurement
from nmt.bench.decoding import DecodingSpeed
from nmt.bench.growth import Growth
from nmt.bench.paper import SPEEDS
from nmt.bench.result import Result, Speed
from nmt.bench.timing import Spread
from nmt.bench.training import TrainingSpeed
from nmt.tables import Table

MILLION = 1e6
GIGA = 1e9
DASHES = ("-", "--", ":")
ATTENTION_COLUMNS = ("attention", "length", "speed", "milliseconds", "peak memory")


def training_markdown(result: Result[TrainingSpeed], *, paper: bool = False) -> str:
    """The paper's Table 2, with absolute speeds, memory and the machine.

    `paper` adds what the paper reports, with its own code and in PyTorch.
    """
    facts = result.facts
    published = (
        ("parameters (paper)", "Δ train (paper)", "Δ train (paper, PyTorch)") if paper else ()
    )
    columns = ("attention", "parameters", "Δ train", *published, "target tokens/s")
    rows = [
        (
            speed.kind,
            f"{speed.parameters / MILLION:.2f}M",
            times(speed.relative_speed),
            *(published_cells(speed.kind) if paper else ()),
            spread(speed.tokens_per_second, "{:,.0f}"),
            *last_cells(speed),
        )
        for speed in result.rows
    ]
    return "\n".join(
        [
            f"{result.machine}",
            f"Matrix products: {spread(facts['matrix_rate'], '{:.0f}', 1 / GIGA)} GFLOP/s; "
            f"{facts['operations_per_token'] / MILLION:.1f} MFLOP per target token, "
            f"{facts['tokens']:,} target tokens per round. "
            f"Δ train: speed relative to {facts['reference']}.",
            "",
            Table([*columns, "of the matrix-product rate", "peak memory"], rows).markdown(),
        ]
    )


def published_cells(kind: str) -> tuple[str, str, str]:
    """Parameters and training speeds of a kind in the paper."""
    found = SPEEDS.get(kind)
    if found is None:
        return "", "", ""
    return f"{found.parameters:.2f}M", f"{found.train:.2f}x", f"{found.train_pytorch:.2f}x"


def published_decoding(speed: DecodingSpeed) -> str:
    """The decoding speed of a kind in the paper, which is for batch size 1."""
    found = SPEEDS.get(speed.model) if speed.batch_size == 1 else None
    return "" if found is None else f"{found.decode:.2f}x"


def decoding_markdown(result: Result[DecodingSpeed], *, paper: bool = False) -> str:
    """A table of all models and batch sizes, and one of the speeds by source length.

    `paper` adds what the paper reports.
    """
    published = ("Δ decode (paper)",) if paper else ()
    columns = ("model", "batch", "parameters", "Δ decode", *published, "sentences/s")
    columns = (*columns, "target tokens/s")
    rows = [
        (
            label(speed),
            f"{speed.batch_size}",
            f"{speed.parameters / MILLION:.2f}M",
            times(speed.relative_speed),
            *((published_decoding(speed),) if paper else ()),
            spread(speed.sentences_per_second, "{:.1f}"),
            spread(speed.tokens_per_second, "{:,.0f}"),
            *last_cells(speed),
        )
        for speed in result.rows
    ]
    groups = [f"{group.shortest}-{group.longest}" for group in result.rows[0].groups]
    by_length = [
        (label(speed), f"{speed.batch_size}", *(f"{g.relative_speed:.2f}x" for g in speed.groups))
        for speed in result.rows
    ]
    return "\n".join(
        [
            f"{result.machine}",
            f"Matrix products: {spread(result.facts['matrix_rate'], '{:.0f}', 1 / GIGA)} GFLOP/s; "
            f"{result.facts['sentences']} sentences, beam {result.facts['beam']}. Δ decode: speed "
            f"relative to {label(result.rows[0])} at the same batch size.",
            "",
            Table([*columns, "of the matrix-product rate", "memory on top"], rows).markdown(),
            "",
            "Speed by source length (subwords), relative to the first model:",
            "",
            Table(["model", "batch", *groups], by_length).markdown(),
        ]
    )


def growth_markdown(result: Result[Growth]) -> str:
    """One table per axis."""
    parts = [str(result.machine)]
    for axis in result.rows:
        rows = [
            (
                f"{point.size:,}",
                spread(point.seconds_per_unit, "{:,.1f}", MILLION),
                times(point.cost),
                f"{point.demand:.2f}x",
            )
            for point in axis.points
        ]
        columns = (axis.size, f"µs per {axis.unit}", "cost", "expected")
        parts += ["", f"{axis.title}:", "", Table(columns, rows, labels=0).markdown()]
    return "\n".join(parts)


def attention_lines(measurements: Sequence[Measurement]) -> str:
    """Rows of a Markdown table with the columns ATTENTION_COLUMNS."""
    rows = [
        (
            m.form,
            f"{m.length}",
            f"{m.relative_speed:.2f}",
            f"{m.milliseconds:.1f}",
            memory(m.peak_memory_bytes),
        )
        for m in measurements
    ]
    return Table(ATTENTION_COLUMNS, rows).markdown().split("\n", 2)[2]


def label(speed: DecodingSpeed) -> str:
    """The name of a model in tables and figures."""
    return speed.model if speed.weights == "float32" else f"{speed.model}, {speed.weights}"


def last_cells(speed: Speed) -> tuple[str, str]:
    """The cells that end a row: the share of the matrix-product rate, and memory."""
    share = f"{100 * speed.share_of_matrix_rate.median:.0f} %"
    return share, memory(speed.peak_memory_bytes)


def memory(size: int | None) -> str:
    """A number of bytes, or that it is unknown."""
    return "unknown" if size is None else f"{size / MILLION:,.0f} MB"


def times(ratio: Spread) -> str:
    """A ratio of speeds."""
    return f"{ratio.median:.2f}x"


def spread(values: Spread, form: str, factor: float = 1.0) -> str:
    """The median and, in brackets, the lowest and highest value."""
    median, low, high = (form.format(factor * x) for x in (values.median, values.low, values.high))
    return f"{median} ({low} to {high})"


def training_figure(result: Result[TrainingSpeed]) -> bytes:
    """A PNG file with one bar per kind: the speed relative to the reference."""
    with styled():
        figure = new_figure(1.5 + 0.9 * len(result.rows), 3.2)
        axes = figure.subplots()
        names = [speed.kind for speed in result.rows]
        ratios = [speed.relative_speed for speed in result.rows]
        medians = [ratio.median for ratio in ratios]
        ends = [[r.median - r.low for r in ratios], [r.high - r.median for r in ratios]]
        axes.bar(names, medians, yerr=ends, capsize=3, color=look(0)["color"])
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_ylabel(f"training speed ({result.facts['reference']} = 1)")
        axes.tick_params(axis="x", rotation=30)
        axes.grid(visible=False, axis="x")
        return png(figure)


def line(number: int) -> dict[str, Any]:
    """Colour, marker and dashes of a curve; dashes change when the colours are used up."""
    return {**look(number), "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}


def decoding_figure(result: Result[DecodingSpeed]) -> bytes:
    """The paper's Figure 2 as a PNG file with one panel per batch size."""
    sizes = list(dict.fromkeys(speed.batch_size for speed in result.rows))
    with styled():
        figure = new_figure(4.5 * len(sizes), 3.6)
        row = figure.subplots(1, len(sizes), sharey=True, squeeze=False)[0]
        entries = {}
        for axes, size in zip(row, sizes, strict=True):
            models = [speed for speed in result.rows if speed.batch_size == size]
            for number, speed in enumerate(models):
                lengths = [group.mean_length for group in speed.groups]
                ratios = [group.relative_speed for group in speed.groups]
                (entries[label(speed)],) = axes.plot(lengths, ratios, **line(number))
            axes.set_title(f"batch {size}")
            axes.set_xlabel("source length (subwords)")
            axes.set_ylim(bottom=0.0)
        row[0].set_ylabel(f"decoding speed ({label(result.rows[0])} = 1)")
        legend(figure, entries)
        return png(figure)


def short(number: int) -> str:
    """A number as the tick of an axis: 32k for 32,000."""
    return f"{number // 1000}k" if number >= 2000 else str(number)


def growth_figure(result: Result[Growth]) -> bytes:
    """A PNG file with one panel per axis: cost per unit against size, both logarithmic."""
    columns = min(4, len(result.rows))
    rows = -(-len(result.rows) // columns)
    with styled():
        figure = new_figure(3.2 * columns, 3.0 * rows)
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        entries = {}
        for axes, axis in zip(panels, result.rows, strict=False):
            sizes = [point.size for point in axis.points]
            costs = [point.cost.median for point in axis.points]
            demands = [point.demand for point in axis.points]
            (entries["measured"],) = axes.plot(sizes, costs, **look(0))
            (entries["expected"],) = axes.plot(sizes, demands, **{**look(1), "linestyle": "--"})
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [short(size) for size in sizes])
            lowest, highest = (f(*costs, *demands) for f in (min, max))
            powers = range(math.floor(math.log2(lowest)), math.ceil(math.log2(highest)) + 1)
            axes.set_yscale("log", base=2)
            axes.set_yticks([2.0**power for power in powers], [f"{2.0**n:g}x" for n in powers])
            axes.minorticks_off()
            axes.set_title(axis.title)
            axes.set_xlabel(axis.size)
            axes.set_ylabel(f"cost per {axis.unit}")
        for axes in panels[len(result.rows) :]:
            axes.set_axis_off()
        legend(figure, entries)
        return png(figure)
