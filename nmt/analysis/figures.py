"""The figures of the papers from an analysis, as PNG and PDF files in memory."""

import math
from collections.abc import Callable, Iterator, Sequence
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

from nmt.analysis.plotting import (
    COLOURS,
    GREY,
    TITLE_SIZE,
    draw_band,
    legend,
    look,
    new_figure,
    png,
    render,
    styled,
)
from nmt.analysis.results import (
    ATTENTION_TYPES,
    LANDMARKS,
    Analysis,
    ModelResult,
    chosen_heads,
    diversity,
    learned_names,
)
from nmt.decoding.alignment import Weights

NULL_COLOUR = "#F6D3B3"
POSITIVE = LinearSegmentedColormap.from_list("positive", ["#DCEAF6", "#5B9CCB", "#08306B"])
NEGATIVE = LinearSegmentedColormap.from_list("negative", ["#F6DCE6", "#CC79A7", "#6B0830"])
PICTURED_HEADS = 4
WIDEST = 13.0  # inches; wider heat maps are split into two rows


@dataclass(frozen=True)
class Picture:
    """The files of a figure; `name` is the file name without its suffix."""

    name: str
    title: str
    caption: str
    png: bytes
    pdf: bytes | None = None

    def files(self) -> Iterator[tuple[str, bytes]]:
        """The names and contents of the files."""
        yield f"{self.name}.png", self.png
        if self.pdf is not None:
            yield f"{self.name}.pdf", self.pdf


@dataclass(frozen=True)
class Drawing:
    """A figure that is not a file yet; `text` names the sentences that it is about."""

    name: str
    title: str
    text: str
    caption: str
    figure: Figure

    def render(self, *, pdf: bool) -> Picture:
        """The files, with a title in the figure that tells it apart from those of other models."""
        self.figure.suptitle(f"{self.title}, {self.text}", fontsize=TITLE_SIZE, wrap=True)
        file = render(self.figure, "pdf") if pdf else None
        return Picture(self.name, self.title, self.caption, png(self.figure), file)


@dataclass(frozen=True)
class HeadWeights:
    """A few heads of one layer of cross-attention on one sentence."""

    model: str
    layer: int
    sentence: int  # its number in the text, from 1
    queries: Sequence[str]
    keys: Sequence[str]
    heads: dict[int, Weights]  # by number: [Q, K]
    normalised: bool = False  # whether weights sum to 1


def all_pictures(
    analysis: Analysis, heads: Sequence[HeadWeights], *, pdf: bool = False
) -> list[Picture]:
    """Every figure that the analysis has numbers for."""
    with styled():
        drawings = [
            sparsity_drawing(analysis),
            alignment_drawing(analysis),
            diversity_drawing(analysis),
            null_drawing(analysis),
            *(heads_drawing(number, one, analysis.source) for number, one in enumerate(heads)),
            density_drawing(analysis),
            *(learned_drawing(analysis, name) for name in learned_names(analysis.models)),
        ]
        return [drawing.render(pdf=pdf) for drawing in drawings if drawing is not None]


def whole_text(analysis: Analysis) -> str:
    """The text of a figure about all sentence pairs."""
    return f"{analysis.pairs:,} pairs of {analysis.source} and {analysis.target}"


def model_entries(models: Sequence[ModelResult]) -> dict[str, Any]:
    """Legend entries for all models."""
    return {model.name: Line2D([], [], **look(number)) for number, model in enumerate(models)}


def types_with(analysis: Analysis, present: Callable[[dict[str, Any]], bool]) -> list[str]:
    """The types of attention with a layer for which `present` holds, in any model."""
    return [
        type_
        for type_ in ATTENTION_TYPES
        if any(present(layer) for model in analysis.models for layer in model.layers(type_))
    ]


def panels_by_type(types: Sequence[str], ylabel: str) -> tuple[Figure, dict[str, Axes]]:
    """A figure with axes by type of attention that share their scale; the x axis is the layer."""
    figure = new_figure(3.0 + 2.0 * len(types), 3.2)
    row = figure.subplots(1, len(types), sharey=True, squeeze=False)[0]
    panels = dict(zip(types, row, strict=True))
    for type_, axes in panels.items():
        axes.set_title(ATTENTION_TYPES[type_])
        axes.set_xlabel("layer")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    row[0].set_ylabel(ylabel)
    return figure, panels


def by_layer(
    axes: Axes, values: Sequence[float], *, seeds: Sequence[Sequence[float]] = (), **options: Any
) -> None:
    """Plot values over the layers, with some space at the ends of the axis.

    `seeds` are the values of the seeds that these are the mean of.
    """
    axes.plot(range(len(values)), values, **options)
    draw_band(axes, range(len(values)), list(zip(*seeds, strict=True)), options["color"])
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -0.3), max(high, len(values) - 0.7))


def layer_figure(
    analysis: Analysis,
    types: Sequence[str],
    value: Callable[[dict[str, Any]], float],
    *,
    ylabel: str,
) -> Figure:
    """A figure with one curve per model and type of attention."""
    figure, panels = panels_by_type(types, ylabel)
    for number, model in enumerate(analysis.models):
        for type_, axes in panels.items():
            values, *seeds = (
                [value(layer) for layer in one.layers(type_)] for one in analysis.with_seeds(model)
            )
            by_layer(axes, values, seeds=seeds, **look(number), clip_on=False)
    legend(figure, model_entries(analysis.models))
    return figure


def solid_and_dashed(
    axes: Axes,
    number: int,
    solid: Sequence[float],
    dashed: Sequence[float] | None,
    seeds: Sequence[Sequence[float]],
) -> None:
    """Plot two curves of one model, in percent; `seeds` are those of the solid one."""
    bands = [[100 * value for value in seed] for seed in seeds]
    by_layer(axes, [100 * value for value in solid], seeds=bands, **look(number))
    if dashed is not None:
        values = [100 * value for value in dashed]
        by_layer(axes, values, **look(number), linestyle="--", markerfacecolor="white")


def line_styles(solid: str, dashed: str) -> dict[str, Any]:
    """Legend entries for solid and dashed curves."""
    return {solid: Line2D([], [], color=GREY), dashed: Line2D([], [], color=GREY, linestyle="--")}


def sparsity_drawing(analysis: Analysis) -> Drawing | None:
    """Figure 3, for the types of attention in which any weight is exactly 0."""
    types = types_with(analysis, lambda layer: layer["sparsity"] > 0)
    if not types:
        return None
    figure = layer_figure(
        analysis, types, lambda layer: 100 * float(layer["sparsity"]), ylabel="sparsity rate (%)"
    )
    figure.axes[0].set_ylim(0, 100)
    caption = (
        "Share of the visible weights that are exactly 0, mean over the heads of a layer. Types of "
        "attention without zeros are not shown"
    )
    return Drawing("sparsity", "Sparsity rate", whole_text(analysis), caption, figure)


def diversity_drawing(analysis: Analysis) -> Drawing:
    """Figure 5."""
    figure = layer_figure(analysis, list(ATTENTION_TYPES), diversity, ylabel="JS divergence (nats)")
    figure.axes[0].set_ylim(0, 1.05 * figure.axes[0].get_ylim()[1])
    caption = (
        "How much the heads of a layer differ (Jensen-Shannon divergence): 0 if all are alike. "
        "ReLA at temperature 1"
    )
    return Drawing("diversity", "Head diversity", whole_text(analysis), caption, figure)


def alignment_drawing(analysis: Analysis) -> Drawing | None:
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
            mean = [layer["layer_attention"] for layer in model.aer[step]["layers"]]
            best, *seeds = (
                [layer["best_head_aer"] for layer in one.aer[step]["layers"]]
                for one in analysis.with_seeds(model)
                if one.aer is not None
            )
            solid_and_dashed(axes, number, best, mean, seeds)
    row[0].set_ylabel("alignment error rate (%)")
    styles = line_styles("best head", "layer attention")
    legend(figure, {**model_entries(analysis.models), **styles})
    caption = (
        "How far links differ from the gold alignments: 0 % is equal, and lower is better. Solid: "
        "the best head of each layer. Dashed: the mean of its heads. Normal: weights of the step "
        "that predicts a word. Shifted: weights of the step that reads it. "
        + chosen_heads(analysis.development, analysis.weights)
    )
    title = "Alignment error rate"
    return Drawing("alignment", title, f"gold links of {analysis.gold}", caption, figure)


def null_drawing(analysis: Analysis) -> Drawing | None:
    """Figure 6, for the types of attention in which a query can attend to nothing."""
    types = [
        type_
        for type_ in ATTENTION_TYPES
        if any(model.nullable[type_] for model in analysis.models)
    ]
    if not types:
        return None
    figure, panels = panels_by_type(types, "null rate (%)")
    shown: dict[str, Any] = {}
    styles: dict[str, Any] = {}
    for number, model in enumerate(analysis.models):
        for type_, axes in panels.items():
            if not model.nullable[type_]:
                continue
            layers = model.layers(type_)
            shown[model.name] = Line2D([], [], **look(number))
            shuffled = None
            if any("shuffled_null_rate" in layer for layer in layers):
                shuffled = [layer.get("shuffled_null_rate", 0.0) for layer in layers]
                styles = line_styles("translations", "shuffled targets")
            rates, *seeds = (
                [layer["null_rate"] for layer in one.layers(type_)]
                for one in analysis.with_seeds(model)
            )
            solid_and_dashed(axes, number, rates, shuffled, seeds)
    figure.axes[0].set_ylim(0, 1.05 * figure.axes[0].get_ylim()[1])
    legend(figure, {**shown, **styles})
    caption = (
        "Share of the queries that attend to nothing, mean over the heads of a layer. Dashed: each "
        "source with the target of another pair. Models and types of attention that are not shown "
        "always attend to something"
    )
    return Drawing("null_rate", "Null rate", whole_text(analysis), caption, figure)


def density_drawing(analysis: Analysis) -> Drawing:
    """A histogram of the number of non-zero weights, by type (second paper)."""
    figure, panels = panels_by_type(list(ATTENTION_TYPES), "queries (% for each number)")
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
    return Drawing("density", "Head density", whole_text(analysis), caption, figure)


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


def learned_drawing(analysis: Analysis, name: str) -> Drawing:
    """A learned parameter of all heads (the alphas of the second paper)."""
    types = types_with(analysis, lambda layer: bool(layer["heads"].get(name)))
    figure, panels = panels_by_type(types, f"learned {name}")
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
            if type_ == types[-1]:
                axes.annotate(
                    kind, (1.02, value), xycoords=("axes fraction", "data"), va="center", color=GREY
                )
    legend(figure, learning)
    caption = "One marker per head; the heads of a layer are side by side, in order"
    return Drawing(name, f"Learned {name}", "all heads", caption, figure)


def heads_drawing(number: int, shown: HeadWeights, text: str) -> Drawing:
    """Figure 7: heat maps of heads, with zeros in white and null rows in their own colour."""
    cell = 0.19
    rows, columns = len(shown.queries), len(shown.keys)
    beside = len(shown.heads)
    if columns * cell * beside + 2.0 > WIDEST and beside > 1:
        beside = math.ceil(beside / 2)
    lines = math.ceil(len(shown.heads) / beside)
    labels = 0.085 * max(map(len, [*shown.queries, *shown.keys]))
    width = columns * cell * beside + 0.15 * beside + labels + 0.3
    height = (rows * cell + 0.35) * lines + labels + 0.6
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
    sentence = f"sentence {shown.sentence} of {text}"
    darkest = "1" if shown.normalised else "the largest weight of the head"
    caption = (
        "Rows are the predicted subwords, columns the source. White is exactly 0; a row of zeros "
        f"has its own colour. The darkest shade is {darkest}"
    )
    return Drawing(f"heads_{number}", title, sentence, caption, figure)


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
