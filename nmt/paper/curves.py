"""Validation curves of all variants in one figure, and trajectories of what their heads learn."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from nmt.analysis.figures import Drawing
from nmt.analysis.plotting import draw_band, legend, look, new_figure
from nmt.analysis.trajectories import Trajectory
from nmt.paper.average import Variants
from nmt.paper.scores import RunScores

CURVE_LABELS = {"bleu": "validation BLEU", "loss": "validation loss"}


def curve_drawing(variants: Variants) -> Drawing | None:
    """The mean over seeds of BLEU (or, without it, of the loss) at each validation."""
    by_name = {
        name: {variant: seed_curves(runs, name) for variant, runs in variants.items()}
        for name in CURVE_LABELS
    }
    name = next((name for name, curves in by_name.items() if any(curves.values())), None)
    if name is None:
        return None
    figure = new_figure(6.5, 3.6)
    axes = figure.subplots()
    entries: dict[str, Any] = {}
    for number, (variant, curve) in enumerate(by_name[name].items()):
        if curve:
            style = {**look(number), "markersize": 3.0}
            (entries[variant],) = axes.plot(list(curve), list(map(fmean, curve.values())), **style)
            draw_band(axes, list(curve), list(curve.values()), style["color"])
    axes.set_xlabel("update")
    axes.set_ylabel(CURVE_LABELS[name])
    legend(figure, entries)
    caption = "Mean over the seeds of each variant, at the validations of the runs"
    return Drawing("curves", "Validation curves", "all variants", caption, figure)


def seed_curves(runs: Sequence[RunScores], name: str) -> dict[int, list[float]]:
    """The values of all seeds by update; updates that not all seeds have reached are left out."""
    curves = [
        {int(update): float(value) for update, value in run.group(f"curve/{name}").items()}
        for run in runs
    ]
    known = [curve for curve in curves if curve]
    shared = sorted(set.intersection(*(set(curve) for curve in known))) if known else []
    return {update: [curve[update] for curve in known] for update in shared}


def trajectories_of(run: RunScores) -> list[Trajectory]:
    """The trajectories of the heads of one run."""
    found: dict[str, Trajectory] = {}
    for path, value in run.group("learned").items():
        place, _, update = path.rpartition("/")
        name, type_, layer, head = place.rsplit("/", 3)
        one = found.setdefault(place, Trajectory(name, type_, int(layer), int(head)))
        one.updates.append(int(update))
        one.values.append(float(value))
    return list(found.values())
