"""The learned parameters of heads, such as alphas and thresholds, over the updates of a run.

The records of validations in metrics.jsonl have one number per head, such as `alpha_3`, for each
sublayer.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from nmt.analysis.figures import Drawing, Picture, panels_by_type, types_with
from nmt.analysis.plotting import COLOURS, GREY, legend, styled
from nmt.analysis.results import ATTENTION_TYPES, LANDMARKS, Analysis, learned_names
from nmt.storage.records import METRICS_FILE, read_records

HEAD = re.compile(r"(\w+)_(\d+)")
TRAJECTORY_MEASURES = ("sparsity", "null_rate", "entropy", "diversity")


@dataclass(frozen=True)
class Trajectory:
    """The value of one learned parameter of one head over the updates."""

    name: str  # of the parameter
    type: str  # of attention
    layer: int
    head: int
    updates: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


def validation_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of validations in metrics.jsonl; none if there is no such file.

    A run that was resumed before its last validation has the same update twice; the last counts.
    """
    records = {
        int(record["update"]): record
        for record in read_records(path)
        if record.get("event") == "validation"
    }
    yield from (records[update] for update in sorted(records))


def read_trajectories(path: Path) -> list[Trajectory]:
    """The trajectories of all heads of a run, from its metrics.jsonl."""
    found: dict[tuple[str, str, int, int], Trajectory] = {}
    for record in validation_records(path):
        for type_, layers in record.get("attention", {}).items():
            for layer, values in layers.items():
                number = int(layer.removeprefix("layer_"))
                for key, value in values.items():
                    match = HEAD.fullmatch(key)
                    if match is None or key in TRAJECTORY_MEASURES:
                        continue
                    place = (match[1], type_, number, int(match[2]))
                    one = found.setdefault(place, Trajectory(*place))
                    one.updates.append(record["update"])
                    one.values.append(value)
    return [found[place] for place in sorted(found)]


def metrics_of(model: Path) -> Path:
    """The metrics.jsonl of a run directory, or of the run that a model directory is part of."""
    places = (model, model.parent, model.parent.parent)  # a run, best, checkpoints/step-N
    found = (place / METRICS_FILE for place in places)
    return next((path for path in found if path.exists()), model / METRICS_FILE)


def learned_pictures(
    analysis: Analysis, trajectories: Mapping[str, Sequence[Trajectory]], *, pdf: bool
) -> list[Picture]:
    """Trajectories of every model that has some, and histograms of what all heads have learned."""
    with styled():
        drawings = [
            trajectory_drawing(model, name, [one for one in of_model if one.name == name])
            for model, of_model in trajectories.items()
            for name in dict.fromkeys(one.name for one in of_model)
        ]
        drawings += [histogram_drawing(analysis, name) for name in learned_names(analysis.models)]
        return [drawing.render(pdf=pdf) for drawing in drawings]


def trajectory_drawing(model: str, name: str, trajectories: Sequence[Trajectory]) -> Drawing:
    """The value of every head over the updates, one panel per type of attention."""
    types = [type_ for type_ in ATTENTION_TYPES if any(one.type == type_ for one in trajectories)]
    figure, panels = panels_by_type(types, f"learned {name}")
    layers = sorted({one.layer for one in trajectories})
    for one in trajectories:
        colour = COLOURS[one.layer % len(COLOURS)]
        panels[one.type].plot(one.updates, one.values, color=colour, linewidth=1.1, alpha=0.8)
    for type_, axes in panels.items():
        axes.set_xlabel("update")
        axes.locator_params(axis="x", nbins=4)
        draw_landmarks(axes, name, named=type_ == types[-1])
    legend(
        figure,
        {f"layer {layer}": Line2D([], [], color=COLOURS[layer % len(COLOURS)]) for layer in layers},
    )
    caption = "One line per head, at the validations of the run; the colour is the layer"
    file = re.sub(r"[^\w.-]", "_", model)
    title = f"Learned {name} during training"
    return Drawing(f"{name}_trajectory_{file}", title, model, caption, figure)


def draw_landmarks(axes: Axes, name: str, *, named: bool) -> None:
    """Mark the values at which a kind is another one, with the names right of the axes."""
    low, high = axes.get_ylim()
    for value, kind in LANDMARKS.get(name, {}).items():
        if low <= value <= high:
            axes.axhline(value, color="#AAAAAA", linewidth=1.0, linestyle=":", zorder=1)
            if named:
                place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "center"}
                axes.annotate(kind, (1.02, value), color=GREY, **place)


def histogram_drawing(analysis: Analysis, name: str) -> Drawing:
    """How many heads have learned which value, by type of attention."""
    types = types_with(analysis, lambda layer: bool(layer["heads"].get(name)))
    figure, panels = panels_by_type(types, "heads")
    values = {
        (number, type_): [
            value for layer in model.layers(type_) for value in layer["heads"].get(name, [])
        ]
        for number, model in enumerate(analysis.models)
        for type_ in types
    }
    marks = LANDMARKS.get(name)
    everything = [value for of_type in values.values() for value in of_type]
    low, high = (min(marks), max(marks)) if marks else (min(everything), max(everything))
    edges = np.linspace(low, high if high > low else low + 1.0, 21).tolist()
    shown: dict[str, Any] = {}
    for (number, type_), of_type in values.items():
        if of_type:
            colour = COLOURS[number % len(COLOURS)]
            panels[type_].hist(of_type, bins=edges, color=colour, alpha=0.55)
            shown[analysis.models[number].name] = Patch(facecolor=colour, alpha=0.55)
    for axes in panels.values():
        axes.set_xlabel(f"learned {name}")
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    legend(figure, shown)
    caption = f"Number of heads by the {name} that they have learned, over all layers of a type"
    title = f"Histogram of learned {name}"
    return Drawing(f"{name}_histogram", title, "all heads", caption, figure)
