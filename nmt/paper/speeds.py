"""Speeds that nmt-bench measured, for Table 2 and Figure 2."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmt.analysis.figures import Drawing
from nmt.analysis.plotting import legend, look, new_figure
from nmt.bench.kinds import REFERENCE_KIND
from nmt.errors import DataError

MACHINE_FACTS = ("gpu", "processor", "cores", "threads", "kernels")  # of a machine


@dataclass(frozen=True)
class LengthGroup:
    """Sentences of similar length, and the speed of a model on them relative to softmax."""

    length: float
    speed: float


@dataclass(frozen=True)
class Speeds:
    """Speeds relative to softmax, by kind, and where they were measured; empty without a file."""

    parameters: dict[str, int] = field(default_factory=dict)
    train: dict[str, float] = field(default_factory=dict)
    decode: dict[str, float] = field(default_factory=dict)
    groups: dict[str, list[LengthGroup]] = field(default_factory=dict)  # batch size 1, by kind
    machines: list[str] = field(default_factory=list)


def read_speeds(paths: Sequence[Path]) -> Speeds:
    """The speeds in files that `nmt-bench train|decode --json` wrote."""
    speeds = Speeds()
    for path in paths:
        try:
            add_speeds(speeds, json.loads(path.read_bytes()))
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}: expected a file of nmt-bench train --json or decode --json"
            ) from error
    return speeds


def add_speeds(speeds: Speeds, document: dict[str, Any]) -> None:
    """Add the rows of one file, each divided by its row of softmax."""
    in_training = document["benchmark"] == "train"
    rows = training_rows(document) if in_training else decoding_rows(document)
    if REFERENCE_KIND not in rows:
        raise DataError(
            f"expected {REFERENCE_KIND} among the models, because speeds are relative to it; got "
            + ", ".join(rows)
        )
    softmax, found = rows[REFERENCE_KIND], speeds.train if in_training else speeds.decode
    for kind, row in rows.items():
        if kind in found and kind != REFERENCE_KIND:
            raise DataError(f"{kind} is in another file, too")
        if speeds.parameters.setdefault(kind, row["parameters"]) != row["parameters"]:
            raise DataError(f"{kind} is a model of another size in another file; measure one size")
        found[kind] = row["relative_speed"]["median"] / softmax["relative_speed"]["median"]
        if not in_training:
            speeds.groups[kind] = [
                LengthGroup(group["mean_length"], group["relative_speed"] / other["relative_speed"])
                for group, other in zip(row["groups"], softmax["groups"], strict=True)
            ]
    measured = (
        f"{'Training' if in_training else 'Translation'}: {machine_text(document['machine'])}"
    )
    if measured not in speeds.machines:
        speeds.machines.append(measured)


def training_rows(document: dict[str, Any]) -> dict[str, Any]:
    """The rows of a file of nmt-bench train, by kind."""
    return {row["kind"]: row for row in document["kinds"]}


def decoding_rows(document: dict[str, Any]) -> dict[str, Any]:
    """The rows of a file of nmt-bench decode with batch size 1, by kind.

    The kind of a trained model is the last part of its path.
    """
    rows = [row for row in document["models"] if row["batch_size"] == 1]
    if not rows:
        raise DataError("expected measurements with batch size 1: nmt-bench decode --batch 1")
    found: dict[str, Any] = {}
    for row in rows:
        kind = Path(row["model"]).name
        if row["weights"] != "int8" and found.setdefault(kind, row) is not row:
            raise DataError(f"expected one model called {kind}, got two")
    return found


def machine_text(machine: dict[str, Any]) -> str:
    """The processors and the number of threads."""
    known = [f"{key.replace('_', ' ')} {machine[key]}" for key in MACHINE_FACTS if machine.get(key)]
    return ", ".join(known)


def speed_drawing(speeds: Speeds) -> Drawing | None:
    """Figure 2: decoding speed by source length."""
    if not speeds.groups:
        return None
    figure = new_figure(6.5, 3.6)
    axes = figure.subplots()
    entries = {}
    for number, (kind, groups) in enumerate(speeds.groups.items()):
        lengths, ratios = [one.length for one in groups], [one.speed for one in groups]
        (entries[kind],) = axes.plot(lengths, ratios, **look(number))
    axes.set_xlabel("source length (subwords)")
    axes.set_ylabel(f"decoding speed ({REFERENCE_KIND} = 1)")
    axes.set_ylim(bottom=0.0)
    legend(figure, entries)
    caption = "Sentences in ten groups of equal size by source length; batch size 1"
    title = "Decoding speed by source length (Figure 2)"
    return Drawing("decoding_speed", title, "batch size 1", caption, figure)
