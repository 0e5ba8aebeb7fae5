"""Speeds that nmt-bench measured, for Table 2 and Figure 2."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmt.analysis.figures import Drawing
from nmt.analysis.plotting import legend, look, new_figure
from nmt.errors import DataError


@dataclass(frozen=True)
class LengthGroup:
    """Sentences of similar length, and the speed of a model on them relative to the first model."""

    length: float
    speed: float


@dataclass(frozen=True)
class Speeds:
    """Relative speeds by kind, and what they were measured on; all empty without a measurement."""

    parameters: dict[str, int] = field(default_factory=dict)
    train: dict[str, float] = field(default_factory=dict)
    decode: dict[str, float] = field(default_factory=dict)
    groups: dict[str, list[LengthGroup]] = field(default_factory=dict)  # batch size 1, by kind
    machine: str = ""


def read_speeds(paths: Sequence[Path]) -> Speeds:
    """The speeds in files that `nmt-bench train|decode --json` wrote."""
    speeds = Speeds()
    machine = ""
    for path in paths:
        try:
            document = json.loads(path.read_bytes())
            machine = machine_text(document["machine"])
            add_speeds(speeds, document)
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}: expected a file of nmt-bench train --json or decode --json"
            ) from error
    return Speeds(speeds.parameters, speeds.train, speeds.decode, speeds.groups, machine)


def add_speeds(speeds: Speeds, document: dict[str, Any]) -> None:
    """Add the rows of one file."""
    if document["benchmark"] == "train":
        for row in document["kinds"]:
            speeds.parameters[row["kind"]] = row["parameters"]
            speeds.train[row["kind"]] = row["relative_speed"]["median"]
        return
    rows = [row for row in document["models"] if row["batch_size"] == 1]
    if not rows:
        raise DataError("expected measurements with batch size 1: nmt-bench decode --batch 1")
    for row in rows:
        if row["weights"] != "int8":
            speeds.parameters.setdefault(row["model"], row["parameters"])
            speeds.decode[row["model"]] = row["relative_speed"]["median"]
            speeds.groups[row["model"]] = [
                LengthGroup(group["mean_length"], group["relative_speed"])
                for group in row["groups"]
            ]


def machine_text(machine: dict[str, Any]) -> str:
    """The processor and the number of threads."""
    known = [f"{key.replace('_', ' ')} {machine[key]}" for key in machine if machine[key]]
    return "Measured on: " + ", ".join(known[:4])


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
    axes.set_ylabel(f"decoding speed ({next(iter(speeds.groups))} = 1)")
    axes.set_ylim(bottom=0.0)
    legend(figure, entries)
    caption = "Sentences in ten groups of equal size by source length; batch size 1"
    title = "Decoding speed by source length (Figure 2)"
    return Drawing("decoding_speed", title, "batch size 1", caption, figure)
