"""The figures of the papers from an analysis, as PNG files in memory."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from nmt.analysis.plotting import COLOURS, GREY, legend, look, new_figure, png, styled
from nmt.analysis.results import LANDMARKS, TYPES, Analysis, ModelResult, diversity, learned_names

NULL_COLOUR = "#F6D3B3"
POSITIVE = LinearSegmentedColormap.from_list("positive", ["#DCEAF6", "#5B9CCB", "#08306B"])
NEGATIVE = LinearSegmentedColormap.from_list("negative", ["#F6DCE6", "#CC79A7", "#6B0830"])
PICTURED_HEADS = 4
WIDEST = 13.0  # inches; wider heat maps are split into two rows

Weights = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Picture:
    """A figure; `name` is the file name without its suffix."""

    name: str
    title: str
    caption: str
    png: bytes


@dataclass(frozen=True)
class HeadWeights:
    """A few heads of one layer of cross-attention on one sentence."""

    model: str
    layer: int
    queries: Sequence[str]
    keys: Sequence[str]
    heads: dict[int, Weights]  # by number: [Q, K]
    normalised: bool = False  # whether weights sum to 1


def all_pictures(analysis: Analysis, heads: Sequence[HeadWeights]) -> list[Picture]:
    """Every figure that the analysis has numbers for."""
    with styled():
        pictures = [
            sparsity_picture(analysis),
            alignment_picture(analysis),
            diversity_picture(analysis),
            null_picture(analysis),
            *(heads_picture(number, one) for number, one in enumerate(heads)),
            density_picture(analysis),
            *(learned_picture(analysis, name) for name in learned_names(analysis.models)),
        ]
    return [picture for picture in pictures if picture is not None]


def model_entries(models: Sequence[ModelResult]) -> dict[str, Any]:
    """Legend entries for all models."""
    return {model.name: Line2D([], [], **look(number)) for number, model in enumerate(models)}


def three_panels(figure: Figure, ylabel: str) -> dict[str, Axes]:
    """Axes by type of attention that share their scale; the x axis is the layer."""
    row = figure.subplots(1, len(TYPES), sharey=True)
    panels = dict(zip(TYPES, row, strict=True))
    for type_, axes in panels.items():
        axes.set_title(TYPES[type_])
        axes.set_xlabel("layer")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels["encoder_self"].set_ylabel(ylabel)
    return panels


def by_layer(axes: Axes, values: Sequence[float], **options: Any) -> None:
    """Plot values over the layers, with some space at the ends of the axis."""
    axes.plot(range(len(values)), values, **options)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -0.3), max(high, len(values) - 0.7))


def layer_picture(
    analysis: Analysis, value: Callable[[dict[str, Any]], float], *, ylabel: str
) -> Figure:
    """A figure with one curve per model and type of attention."""
    figure = new_figure(9.0, 3.0)
    panels = three_panels(figure, ylabel)
    for number, model in enumerate(analysis.models):
        for type_, axes in panels.items():
            values = [value(layer) for layer in model.layers(type_)]
            by_layer(axes, values, **look(number), clip_on=False)
    legend(figure, model_entries(analysis.models))
    return figure


def solid_and_dashed(
    axes: Axes, number: int, solid: Sequence[float], dashed: Sequence[float] | None
) -> None:
    """Plot two curves of one model, in percent."""
    by_layer(axes, [100 * value for value in solid], **look(number))
    if dashed is not None:
        values = [100 * value for value in dashed]
        by_layer(axes, values, **look(number), linestyle="--", markerfacecolor="white")


def line_styles(solid: str, dashed: str) -> dict[str, Any]:
    """Legend entries for solid and dashed curves."""
    return {solid: Line2D([], [], color=GREY), dashed: Line2D([], [], color=GREY, linestyle="--")}


def sparsity_picture(analysis: Analysis) -> Picture:
    """Figure 3."""
    figure = layer_picture(
        analysis, lambda layer: 100 * float(layer["sparsity"]), ylabel="sparsity rate (%)"
    )
    figure.axes[0].set_ylim(0, 100)
    caption = "Share of the visible weights that are exactly 0, mean over the heads of a layer"
    return Picture("sparsity", "Sparsity rate", caption, png(figure))


def diversity_picture(analysis: Analysis) -> Picture:
    """Figure 5."""
    figure = layer_picture(analysis, diversity, ylabel="JS divergence (nats)")
    figure.axes[0].set_ylim(0, 1.05 * figure.axes[0].get_ylim()[1])
    caption = (
        "Jensen-Shannon divergence of the heads of a layer; higher means that they differ more. "
        "ReLA at temperature 1"
    )
    return Picture("diversity", "Head diversity", caption, png(figure))


def alignment_picture(analysis: Analysis) -> Picture | None:
    """Figure 4."""
    rated = [model for model in analysis.models if model.aer is not None]
    if not rated:
        return None
    figure = new_figure(9.0, 3.6)
    row = figure.subplots(1, 2, sharey=True)
    for axes, step in zip(row, ("normal", "shifted"), strict=True):
        axes.set_title(f"{step} attention")
        axes.set_xlabel("layer")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for number, model in enumerate(analysis.models):
            if model.aer is None:
                continue
            layers = model.aer[step]["layers"]
            best = [layer["best_head_aer"] for layer in layers]
            mean = [layer["layer_attention"] for layer in layers]
            solid_and_dashed(axes, number, best, mean)
    row[0].set_ylabel("alignment error rate (%)")
    styles = line_styles("best head", "layer attention")
    legend(figure, {**model_entries(analysis.models), **styles})
    caption = (
        "Error rate of the links of the best head of each layer (solid) and of the layer "
        "attention, the mean of its heads (dashed); lower is better. Normal: weights of the step "
        "that predicts a word. Shifted: weights of the step that reads it"
    )
    return Picture("alignment", "Alignment error rate", caption, png(figure))


def null_picture(analysis: Analysis) -> Picture | None:
    """Figure 6."""
    if not any(any(model.nullable.values()) for model in analysis.models):
        return None
    figure = new_figure(9.0, 3.0)
    panels = three_panels(figure, "null rate (%)")
    shown: dict[str, Any] = {}
    for number, model in enumerate(analysis.models):
        for type_, axes in panels.items():
            if not model.nullable[type_]:
                continue
            layers = model.layers(type_)
            shown[model.name] = Line2D([], [], **look(number))
            shuffled = None
            if any("shuffled_null_rate" in layer for layer in layers):
                shuffled = [layer.get("shuffled_null_rate", 0.0) for layer in layers]
            solid_and_dashed(axes, number, [layer["null_rate"] for layer in layers], shuffled)
    for type_, axes in panels.items():
        if not axes.lines:
            place: dict[str, Any] = {"transform": axes.transAxes, "ha": "center"}
            text = "never null: weights sum to 1"
            axes.text(0.5, 0.5, text, color=GREY, backgroundcolor="white", **place)
            axes.set_xlim(-0.3, max(len(model.layers(type_)) for model in analysis.models) - 0.7)
    figure.axes[0].set_ylim(0, 1.05 * figure.axes[0].get_ylim()[1])
    legend(figure, {**shown, **line_styles("translations", "shuffled targets")})
    caption = (
        "Share of the queries that attend to nothing, mean over the heads of a layer. Dashed: each "
        "source with the target of another pair. Models that are not shown always attend to "
        "something"
    )
    return Picture("null_rate", "Null rate", caption, png(figure))


def density_picture(analysis: Analysis) -> Picture:
    """A histogram of the number of non-zero weights, by type (second paper)."""
    figure = new_figure(9.0, 3.0)
    panels = three_panels(figure, "queries (% for each number)")
    for type_, axes in panels.items():
        axes.set_xlabel("non-zero weights of a query")
        shares = [density_shares(model, type_) for model in analysis.models]
        usual = [np.searchsorted(np.cumsum(values), 0.99) for values in shares]
        edges = density_edges(int(max(usual)))
        for number, values in enumerate(shares):
            padded = np.zeros(max(len(values), edges[-1] + 1))
            padded[: len(values)] = values
            steps = 100 * np.add.reduceat(padded, edges[:-1])
            steps[-1] = 100 * padded[edges[-2] : edges[-1]].sum()
            steps /= np.diff(edges)
            colour = COLOURS[number % len(COLOURS)]
            axes.stairs(steps, edges - 0.5, color=colour, linewidth=1.6)
            axes.stairs(steps, edges - 0.5, color=colour, fill=True, alpha=0.12)
        axes.set_xlim(-0.5, edges[-1] - 0.5)
    entries = {
        model.name: Patch(facecolor=COLOURS[number % len(COLOURS)], alpha=0.75)
        for number, model in enumerate(analysis.models)
    }
    legend(figure, entries)
    caption = (
        "Number of keys that a query attends to, over all heads and layers of a type; a query at "
        "0 attends to nothing. The highest 1 % of the numbers is not shown"
    )
    return Picture("density", "Head density", caption, png(figure))


def density_edges(last: int) -> npt.NDArray[np.int64]:
    """The edges of the bars: one bar for 0, then bars of equal width."""
    width = max(1, math.ceil(last / 30))
    return np.array([0, *range(1, last + 1 + width, width)])


def density_shares(model: ModelResult, type_: str) -> npt.NDArray[np.float64]:
    """The share [N] of the queries with n non-zero weights, over all heads and layers."""
    rows = [counts for layer in model.layers(type_) for counts in layer["heads"]["density"]]
    totals = np.zeros(max(map(len, rows)))
    for counts in rows:
        totals[: len(counts)] += counts
    shares: npt.NDArray[np.float64] = totals / max(totals.sum(), 1.0)
    return shares


def learned_picture(analysis: Analysis, name: str) -> Picture:
    """A learned parameter of all heads (the alphas of the second paper)."""
    figure = new_figure(9.0, 3.0)
    panels = three_panels(figure, f"learned {name}")
    landmarks = LANDMARKS.get(name, {})
    learning: dict[str, Any] = {}
    for number, model in enumerate(analysis.models):
        for type_, axes in panels.items():
            for layer, numbers in enumerate(model.layers(type_)):
                values = numbers["heads"].get(name, [])
                if values:
                    learning[model.name] = Line2D([], [], **look(number), linestyle="none")
                # Side by side, so that equal values stay visible.
                places = layer + np.linspace(-0.22, 0.22, len(values))
                axes.plot(places, values, **look(number), linestyle="none", alpha=0.8)
    for type_, axes in panels.items():
        deepest = max(len(model.layers(type_)) for model in analysis.models)
        axes.set_xlim(-0.5, deepest - 0.5)
        if landmarks:
            axes.set_ylim(min(landmarks) - 0.03, max(landmarks) + 0.03)
        for value, kind in landmarks.items():
            axes.axhline(value, color="#AAAAAA", linewidth=1.0, linestyle=":", zorder=1)
            if type_ == "cross":
                axes.annotate(
                    kind, (1.02, value), xycoords=("axes fraction", "data"), va="center", color=GREY
                )
    legend(figure, learning)
    caption = "One marker per head; the heads of a layer are side by side, in order"
    return Picture(name, f"Learned {name}", caption, png(figure))


def heads_picture(number: int, shown: HeadWeights) -> Picture:
    """Figure 7: heat maps of heads, with zeros in white and null rows in their own colour."""
    cell = 0.19
    rows, columns = len(shown.queries), len(shown.keys)
    beside = len(shown.heads)
    if columns * cell * beside + 2.0 > WIDEST and beside > 1:
        beside = math.ceil(beside / 2)
    lines = math.ceil(len(shown.heads) / beside)
    labels = 0.085 * max(map(len, [*shown.queries, *shown.keys]))
    width = columns * cell * beside + 0.15 * beside + labels + 0.3
    height = (rows * cell + 0.35) * lines + labels + 0.4
    figure = new_figure(width, height)
    grid = figure.subplots(lines, beside, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(shown.heads) :]:
        axes.set_visible(False)
    for axes, (head, weights) in zip(grid.flat, shown.heads.items(), strict=False):
        axes.imshow(
            coloured(weights, normalised=shown.normalised), aspect="equal", interpolation="nearest"
        )
        null = float((~(weights != 0).any(axis=1)).mean())
        axes.set_title(f"head {head}" + (f", {100 * null:.0f} % null" if null else ""))
        axes.set_xticks(range(columns), shown.keys, rotation=90, fontsize=8.5)
        axes.set_yticks(range(rows), shown.queries, fontsize=8.5)
        axes.tick_params(length=0)
        axes.grid(visible=False)
        axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
        axes.grid(which="minor", color="#EEEEEE", linewidth=0.6)
        axes.tick_params(which="minor", length=0)
        axes.spines[:].set_visible(True)
        axes.spines[:].set_color("#BBBBBB")
    legend(
        figure,
        {
            "weight (darker is more)": Patch(facecolor=POSITIVE(0.75)),
            **({} if shown.normalised else {"attends to nothing": Patch(facecolor=NULL_COLOUR)}),
        },
    )
    title = f"Cross-attention of {shown.model}, layer {shown.layer}"
    darkest = "1" if shown.normalised else "the largest weight of the head"
    caption = (
        "Rows are the predicted subwords, columns the source. White is exactly 0; a row of zeros "
        f"has its own colour. The darkest shade is {darkest}"
    )
    return Picture(f"heads_{number}", title, caption, png(figure))


def coloured(weights: Weights, *, normalised: bool) -> npt.NDArray[np.float64]:
    """The colours [Q, K, 3] of weights [Q, K]; a square root makes small weights visible.

    Shades are absolute for weights that sum to 1, and relative to the largest weight otherwise.
    """
    largest = 1.0 if normalised else float(np.abs(weights).max()) or 1.0
    sizes = np.sqrt(np.abs(weights) / largest)
    image = np.where((weights > 0)[..., None], POSITIVE(sizes)[..., :3], NEGATIVE(sizes)[..., :3])
    image[weights == 0] = 1.0
    image[~(weights != 0).any(axis=1)] = to_rgb(NULL_COLOUR)
    return image
