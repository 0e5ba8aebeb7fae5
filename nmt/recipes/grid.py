"""A grid of runs, variants times seeds of one recipe: run or resumed, and what came out of each."""

import contextlib
import json
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from nmt.config.config import resolved_prepared_dir
from nmt.data.text import LineWriter
from nmt.errors import ConfigError, DataError, DivergedError
from nmt.recipes.stages import FailedError, Run, StageName, run_stage, training_status
from nmt.recipes.variants import configs_of, find_variant, make_run, path_setting, variants
from nmt.storage.records import METRICS_FILE, read_records

logger = logging.getLogger(__name__)

CELL_STAGES: tuple[StageName, ...] = ("train", "average", "translate", "score")  # after prepare
DIVERGED = "diverged"  # in results: a stage after training met numbers that are not finite
GRID_KEYS = ("seed", "run_dir")


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    variant: str
    seed: int
    run: Run

    def __str__(self) -> str:
        return f"{self.variant}, seed {self.seed}"


@dataclass(frozen=True)
class Outcome:
    """The results of a run; scores and their signatures are by the name of the metric."""

    seed: int
    status: Literal["scored", "diverged", "missing"]
    scores: Mapping[str, float] = field(default_factory=dict)
    signatures: Mapping[str, str] = field(default_factory=dict)
    parameters: int | None = None
    training_hours: float | None = None


# ---------------------------------------------------------------- which runs


def make_grid(
    directory: Path,
    names: Sequence[str],
    seeds: Sequence[int],
    *,
    settings: Sequence[str],
    runs: Path | None = None,
    recipe_name: str = "recipe",
    without: Sequence[str] = (),
    provided: Path | None = None,
) -> list[list[Cell]]:
    """The runs of each variant (no names: all), one per seed (no seeds: that of the config).

    The run with the seed of the config is the one that `run.sh VARIANT` makes; others are beside
    it. `runs` is another directory for all of them.
    """
    for setting in settings:
        if setting.partition("=")[0] in GRID_KEYS:
            raise ConfigError(f"{setting}: every run has its own; use --seeds and --runs")
    configs = configs_of(directory)
    paths = [find_variant(configs, name) for name in names] or sorted(variants(configs))
    if not paths:
        raise ConfigError(f"{configs}: expected the configs of a recipe, found none")
    if repeated := [path.stem for path in paths if paths.count(path) > 1]:
        raise ConfigError(f"--variants: {repeated[0]} is named more than once")
    if repeated_seeds := [seed for seed in seeds if seeds.count(seed) > 1]:
        raise ConfigError(f"--seeds: {repeated_seeds[0]} is named more than once")

    def make(variant: str, *more: str) -> Run:
        return make_run(
            directory,
            variant,
            settings=[*settings, *more],
            recipe_name=recipe_name,
            without=without,
            provided=provided,
        )

    grid = []
    for variant in (path.stem for path in paths):
        plain = make(variant).config
        home = plain.run_dir if runs is None else runs.absolute() / variant
        row = []
        for seed in seeds or [plain.seed]:
            own = home if seed == plain.seed else home.with_name(f"{home.name}-seed{seed}")
            settled = make(variant, f"seed={seed}", path_setting("run_dir", own))
            row.append(Cell(variant, seed, settled))
        grid.append(row)
    return grid


# ---------------------------------------------------------------- running


def in_order(grid: Sequence[Sequence[Cell]]) -> list[Cell]:
    """All runs of a grid, seed by seed: every variant has its first before any has its second."""
    return [cell for column in zip(*grid, strict=True) for cell in column]


def prepare_grid(grid: Sequence[Sequence[Cell]]) -> int | None:
    """Prepare the data of all runs; None when that is done, else the exit code of what failed."""
    prepared = []
    for cell in in_order(grid):
        data = (cell.run.config.data, resolved_prepared_dir(cell.run.config))
        if data not in prepared:
            prepared.append(data)
            try:
                run_stage("prepare", cell.run)
            except FailedError as error:
                logger.warning("stopped at the data; the same command goes on from here")
                return error.exit_code
    return None


def run_grid(grid: Sequence[Sequence[Cell]]) -> int | None:
    """Run what is not done, seed by seed; None when all is, else the exit code of what stopped it.

    The data has to be prepared. A run that diverges is recorded and the grid goes on; it is not
    tried again.
    """
    cells = in_order(grid)
    for number, cell in enumerate(cells, start=1):
        run = cell.run
        logger.info("==== run %d of %d: %s", number, len(cells), cell)
        if read_status(run) == "diverged":
            logger.info("diverged before, not tried again; to do so remove %s", run.config.run_dir)
            continue
        try:
            # Scores of single runs are for the log: standard output is for the table.
            with contextlib.redirect_stdout(sys.stderr):
                for name in CELL_STAGES:
                    run_stage(name, run)
        except FailedError as error:
            # With several processes the launcher has an exit code of its own.
            if error.exit_code != DivergedError.exit_code and training_status(run) != "diverged":
                logger.warning("stopped at %s; the same command goes on from here", cell)
                return error.exit_code
            logger.warning("%s diverged", cell)
            record_divergence(run)
    return None


def record_divergence(run: Run) -> None:
    """Remember it where nmt-train has not done so: the mean or a translation was not finite."""
    if training_status(run) != "diverged":
        run.results.mkdir(parents=True, exist_ok=True)
        with LineWriter(run.results / DIVERGED) as writer:
            writer.write("the averaged model is not finite, or computes what is not")


# ---------------------------------------------------------------- reading


def read_status(run: Run) -> Literal["scored", "diverged", "missing"]:
    """Whether a run has scores, has diverged, or is missing."""
    if training_status(run) == "diverged":
        return "diverged"
    if scores_path(run).exists():
        return "scored"
    return "diverged" if (run.results / DIVERGED).exists() else "missing"


def read_outcome(cell: Cell) -> Outcome:
    """The scores that the score stage wrote, the size of the model, the hours in the records."""
    run = cell.run
    status = read_status(run)
    entries = read_scores(scores_path(run)) if status == "scored" else []
    return Outcome(
        cell.seed,
        status,
        {entry["metric"]: float(entry["value"]) for entry in entries},
        {entry["metric"]: str(entry["signature"]) for entry in entries},
        count_parameters(run),
        training_hours(run.config.run_dir / METRICS_FILE),
    )


def scores_path(run: Run) -> Path:
    """The file of the score stage."""
    return run.results / "scores.json"


def read_scores(path: Path) -> list[dict[str, Any]]:
    """The entries of a file of the score stage."""
    try:
        entries: list[dict[str, Any]] = json.loads(path.read_bytes())["scores"]
        for entry in entries:
            float(entry["value"]), entry["metric"], entry["signature"]
    except (ValueError, KeyError, TypeError) as error:
        message = "expected scores, got something else; remove it and run the score stage again"
        raise DataError(f"{path}: {message}") from error
    return entries


def count_parameters(run: Run) -> int | None:
    """The number of parameters of a run's model, from its file header; None without a model.

    Tied tables are stored once, and nothing is stored that is not trained.
    """
    for directory in (run.model, run.config.run_dir / "best"):
        try:
            with safe_open(directory / "model.safetensors", framework="numpy") as file:
                shapes = [file.get_slice(name).get_shape() for name in file.offset_keys()]
            return sum(int(math.prod(shape)) for shape in shapes)
        except (OSError, SafetensorError):
            continue  # the table is about other things: an empty cell will do
    return None


def training_hours(path: Path) -> float | None:
    """The time of all updates in the records of a run, without validation; None without any."""
    records = (record for record in read_records(path) if record.get("event") == "train")
    seconds = sum((record["seconds"] for record in records), 0.0)
    return seconds / 3600 if seconds else None
