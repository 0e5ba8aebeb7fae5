"""All numbers of all runs of a task in one tab-separated file, from which a report is made.

Each line has a task, a variant, a seed, the name of a number and its value. Names are paths such as
`score/BLEU`, `curve/bleu/500` (at update 500) or `analysis/statistics/cross/layer_0/null_rate`.
Values are JSON: numbers, true or false, or text in quotes.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nmt.data.text import LineWriter, read_text
from nmt.errors import DataError

SCORES_HEADER = ("task", "variant", "seed", "name", "value")
# Lists of sentences, and paths of machines, are no scores.
LEFT_OUT = ("roles", "path", "name", "null_after")

Value = float | int | str | bool


@dataclass(frozen=True)
class RunScores:
    """The numbers of one run by name."""

    task: str
    variant: str
    seed: int
    values: dict[str, Value] = field(default_factory=dict)

    def group(self, prefix: str) -> dict[str, Value]:
        """The numbers whose names begin with `prefix/`, without it."""
        start = f"{prefix}/"
        return {
            name.removeprefix(start): value
            for name, value in self.values.items()
            if name.startswith(start)
        }


def flatten(value: Any, prefix: str) -> Iterator[tuple[str, Value]]:
    """The numbers and texts of a nested document, by path; None is left out."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in LEFT_OUT:
                yield from flatten(item, f"{prefix}/{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from flatten(item, f"{prefix}/{number}")
    elif value is not None:
        yield prefix, value


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The nested document of paths; keys that count from 0 make a list."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *folders, last = name.split("/")
        place = tree
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return {key: with_lists(item) for key, item in tree.items()}


def with_lists(tree: Any) -> Any:
    """The same tree with lists where all keys are whole numbers."""
    if not isinstance(tree, dict):
        return tree
    items = {key: with_lists(item) for key, item in tree.items()}
    if items and all(key.isdecimal() for key in items):
        return [items[key] for key in sorted(items, key=int)]
    return items


def write_scores(path: Path, runs: list[RunScores]) -> None:
    """Write the file."""
    with LineWriter(path) as writer:
        for line in score_lines(runs):
            writer.write(line)


def score_lines(runs: list[RunScores]) -> Iterator[str]:
    """The lines of the file."""
    yield "\t".join(SCORES_HEADER)
    for run in runs:
        for name, value in run.values.items():
            shown = json.dumps(value, ensure_ascii=False)
            yield "\t".join([run.task, run.variant, str(run.seed), name, shown])


def read_scores(*paths: Path) -> list[RunScores]:
    """The runs of all files, in order; a run may be in one of them only."""
    runs: dict[tuple[str, str, int], RunScores] = {}
    for path in paths:
        found = read_file(path)
        if doubled := runs.keys() & found.keys():
            task, variant, seed = min(doubled)
            raise DataError(f"{path}: {task}, {variant}, seed {seed} is in another file, too")
        runs |= found
    return list(runs.values())


def read_file(path: Path) -> dict[tuple[str, str, int], RunScores]:
    """The runs of one file by task, variant and seed."""
    runs: dict[tuple[str, str, int], RunScores] = {}
    lines = read_text(path)
    if tuple(next(lines, "").split("\t")) != SCORES_HEADER:
        raise DataError(f"{path}:1: expected the columns {', '.join(SCORES_HEADER)}")
    for number, line in enumerate(lines, start=2):
        cells = line.split("\t")
        try:
            task, variant, seed, name, value = cells
            key = (task, variant, int(seed))
            parsed = json.loads(value)
        except ValueError as error:
            raise DataError(
                f"{path}:{number}: expected {', '.join(SCORES_HEADER)} with a value in JSON; "
                f"got {line!r}"
            ) from error
        runs.setdefault(key, RunScores(*key)).values[name] = parsed
    if not runs:
        raise DataError(f"{path}: expected scores of runs, got none")
    return runs
