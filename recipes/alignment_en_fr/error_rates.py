"""Collect the alignment error rates of checkpoints in a table and a figure.

python recipes/alignment_en_fr/error_rates.py RESULTS

reads RESULTS/align-KIND-step-UPDATE.json, which `nmt-align --json` has written, and writes
error_rates.tsv and error_rates.png beside them.
"""

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

NAME = re.compile(r"align-(.+)-step-(\d+)\.json")


class ErrorRates(NamedTuple):
    """Error rates in percent of one checkpoint, on pairs on which no head was chosen."""

    kind: str
    update: int
    chosen: float  # the attention with the lowest rate on the development pairs
    layer: int
    head: int | None  # None: the mean of all heads
    step: str
    normal_layer: float  # means over the layers, as in Table 5 of the paper
    normal_head: float
    shifted_layer: float
    shifted_head: float


def read_rates(path: Path) -> ErrorRates:
    """The error rates in a file of nmt-align."""
    name = NAME.fullmatch(path.name)
    assert name is not None, path
    document = json.loads(path.read_bytes())
    (direction,) = document["directions"]
    means = [
        100 * direction["aer"][step][mean]
        for step in ("normal", "shifted")
        for mean in ("AoL", "AoH")
    ]
    place = direction["layer"], direction["head"], direction["step"]
    return ErrorRates(name[1], int(name[2]), 100 * document["aer"], *place, *means)


def cell(value: str | float | None) -> str:
    """A value of the table."""
    if isinstance(value, float):
        return f"{value:.2f}"
    return "" if value is None else str(value)


def main() -> None:
    """Write the table and the figure."""
    results = Path(sys.argv[1])
    rates = sorted(read_rates(path) for path in results.glob("align-*-step-*.json"))
    lines = ["\t".join(ErrorRates._fields), *("\t".join(map(cell, row)) for row in rates)]
    (results / "error_rates.tsv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for kind in dict.fromkeys(row.kind for row in rates):
        own = [row for row in rates if row.kind == kind]
        axes.plot([row.update for row in own], [row.chosen for row in own], marker="o", label=kind)
    axes.set(xlabel="update", ylabel="alignment error rate, %", ylim=(0, None))
    axes.legend()
    figure.savefig(results / "error_rates.png", dpi=150)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()
