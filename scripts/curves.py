"""Draw the learning curves of runs: python scripts/curves.py RUN [RUN ...] --output curves.png"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from nmt.storage.records import METRICS_FILE, read_records


def series(run: Path, event: str, name: str) -> tuple[list[int], list[float]]:
    """Updates and values of one number in the metrics of a run."""
    records = read_records(run / METRICS_FILE)
    found = [(r["update"], r[name]) for r in records if r.get("event") == event and name in r]
    return [update for update, _ in found], [value for _, value in found]


def main() -> None:
    """Loss in training on the left, BLEU in validation on the right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--output", type=Path, required=True, metavar="PNG")
    arguments = parser.parse_args()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for run in arguments.runs:
        if not (run / METRICS_FILE).is_file():
            parser.error(f"expected directories of runs, but {run} has no {METRICS_FILE}")
        left.plot(*series(run, "train", "loss"), label=run.name)
        right.plot(*series(run, "validation", "bleu"), marker="o", label=run.name)
    left.set(xlabel="update", ylabel="training loss a token (smoothed)")
    right.set(xlabel="update", ylabel="validation BLEU", ylim=(0, None))
    left.legend(frameon=False)
    figure.savefig(arguments.output, dpi=120)


if __name__ == "__main__":
    main()
