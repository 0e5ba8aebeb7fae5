"""All numbers of all runs of a task in one tab-separated file, from which a report is made.

Each line has a task, a variant, a seed, the name of a number and its value. Names are paths such as
`score/BLEU`, `curve/bleu/500` (at update 500) or `analysis/statistics/cross/layer_0/null_rate`.
Characters in a name that could be taken for a separator are written as %XX. Values are JSON:
numbers, true or false, or text in quotes.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from nmt.data.text import LineWriter, read_text
from nmt.errors import DataError, UserError
from nmt.recipes.variants import match_variant

SCORES_HEADER = ("task", "variant", "seed", "name", "value")
# In a key, such as a class of words: what separates names, and the first digit of a whole number.
UNSAFE = re.compile(r"[%/\x00-\x1f]|^\d(?=\d*$)")
# Runs of one report must agree on these: all of them on the text, and seeds on the others.
SHARED_BY_ALL = "text/"
SHARED_BY_SEEDS = ("attention", "parameters", "model/", "signature/")

Value = float | int | str | bool


@dataclass(frozen=True)
class RunScores:
    """The numbers of one run by name."""

    task: str
    variant: str
    seed: int
    values: dict[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.variant}, seed {self.seed}"

    @property
    def is_missing(self) -> bool:
        """Whether the run has no result yet."""
        return self.values.get("status") == "missing"

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
            yield from flatten(item, f"{prefix}/{UNSAFE.sub(percent_encoded, key)}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from flatten(item, f"{prefix}/{number}")
    elif value is not None:
        yield prefix, value


def percent_encoded(found: re.Match[str]) -> str:
    """The bytes of some characters as %XX."""
    return "".join(f"%{byte:02X}" for byte in found[0].encode())


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
    return {unquote(key): item for key, item in items.items()}


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
    """The runs of all files, in order.

    A run may have a result in one of them only; where it has none it gives way to the others.
    """
    runs: dict[tuple[str, str, int], RunScores] = {}
    for path in paths:
        for key, run in read_file(path).items():
            if key not in runs or runs[key].is_missing:
                runs[key] = run
            elif not run.is_missing:
                raise DataError(f"{path}: {run.task}, {run} is in another file, too")
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
        values = runs.setdefault(key, RunScores(*key)).values
        if name in values:
            raise DataError(f"{path}:{number}: {name} of {runs[key]} is there twice; remove one")
        values[name] = parsed
    if not runs:
        raise DataError(f"{path}: expected scores of runs, got none")
    return runs


def select_runs(
    runs: Sequence[RunScores], names: Sequence[str], seeds: Sequence[int]
) -> list[RunScores]:
    """The runs of these variants, in their order, and of these seeds; no names or seeds: of all."""
    known = list(dict.fromkeys(run.variant for run in runs))
    variants = []
    for name in names:
        if (found := match_variant(known, name)) is None:
            raise UserError(f"--variants {name}: expected one of {', '.join(known)}")
        variants.append(found)
    order = variants or known
    chosen = [run for run in runs if run.variant in order]
    there = sorted({run.seed for run in chosen})
    if unknown := set(seeds) - set(there):
        listed = ", ".join(map(str, there))
        raise UserError(f"--seeds {min(unknown)}: expected seeds of these variants, {listed}")
    chosen = [run for run in chosen if not seeds or run.seed in seeds]
    return sorted(chosen, key=lambda run: (order.index(run.variant), run.seed))


def check_agreement(runs: Sequence[RunScores]) -> None:
    """Reject runs that differ in what has to be the same, so that a mean would mix them."""
    first: dict[tuple[str, str], RunScores] = {}
    for run in runs:
        for name, value in run.values.items():
            if not name.startswith((SHARED_BY_ALL, *SHARED_BY_SEEDS)):
                continue
            scope = "" if name.startswith(SHARED_BY_ALL) else run.variant
            other = first.setdefault((scope, name), run)
            if other.values[name] != value:
                raise DataError(
                    f"{name} is {other.values[name]!r} in {other}, but {value!r} in {run}: no mean "
                    "can be taken of both; choose runs with --variants and --seeds"
                )
