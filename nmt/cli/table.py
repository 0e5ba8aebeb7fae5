"""nmt-table: run or resume a grid of variants and seeds of a recipe, and print its results."""

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nmt.cli import console
from nmt.cli.arguments import check_outputs, whole_number
from nmt.errors import ConfigError
from nmt.recipes.variants import configs_of, find_recipe, find_variant
from nmt.storage.records import METRICS_FILE

if TYPE_CHECKING:
    from nmt.recipes.grid import Cell
    from nmt.recipes.table import PaperScore

logger = logging.getLogger(__name__)

BASELINE = "softmax"
DESCRIPTION = """\
Run all stages of a recipe but the analysis for several variants and seeds, then print a table:
mean and deviation over seeds, the paper's numbers and the difference, and whether a variant differs
from the baseline (paired bootstrap on the translations of the first seed of each).
What is done is skipped and what was cut goes on, so the same command resumes a grid. A run that
diverges is shown as a dash and the grid goes on; anything else that fails stops it. With --gpus
runs are made side by side, one per GPU, and a run that fails does not stop the others."""
EPILOG = """\
examples:
  nmt-table recipes/multi30k_en_de --variants softmax rela-g --seeds 1 2 3
  nmt-table recipes/wmt14_en_de --no-run --format latex --output table.tex
  nmt-table recipes/wmt16_ro_en --runs runs/short train.max_updates=20000
  nmt-table recipes/wmt14_en_de --gpus 8
  nmt-table recipes/wmt14_en_de --seeds 1 2 3 --slurm-array grid.sh && bash grid.sh --partition=gpu

With --gpus, Ctrl-C and SIGTERM (exit 130, 143) let all runs save their work, and the same command
resumes them; a second Ctrl-C ends them at once. The output of each run is in results/table.log of
its directory. GPUs have the numbers that torch gives them. `--gpus 2 train.device=cpu` makes two
runs side by side on the CPU.

The run with the seed of the config is that of `run.sh VARIANT`, seed 2 is in VARIANT-seed2.
Settings are those of run.sh, for all runs. Exit codes are those of the stage that failed."""


def build_parser() -> console.SettingsParser:
    """The command line of nmt-table."""
    parser = console.SettingsParser(
        prog="nmt-table",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_grid(parser)
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help=f"the variant that others are compared with (default: {BASELINE} if it is a row)",
    )
    add_execution(parser)
    parser.add_argument(
        "--format", choices=["markdown", "latex", "json"], default="markdown", help="of the table"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write the table there, not to standard output"
    )
    return parser


def add_grid(parser: console.SettingsParser, *, recipe: Literal["?"] | None = None) -> None:
    """The options that describe a grid; `recipe` is "?" where the recipe can be left out."""
    parser.add_argument(
        "recipe_name",
        type=Path,
        nargs=recipe,
        metavar="RECIPE",
        help="NAME, or a folder recipes/NAME",
    )
    parser.add_argument(
        "settings", nargs="*", metavar="section.key=value", help="settings for all runs"
    )
    # Lists of options end where settings begin, which argparse cannot know: see `table`.
    parser.add_argument(
        "--variants", nargs="+", default=[], metavar="NAME", help="rows, in order (default: all)"
    )
    parser.add_argument(
        "--seeds", nargs="+", default=[], metavar="N", help="default: the one of the config"
    )
    parser.add_argument(
        "--runs", type=Path, metavar="DIR", help="where the runs are (default: as the configs say)"
    )
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="take the recipe's files from here, as run.sh does"
    )
    parser.add_argument(
        "--without", action="append", default=[], metavar="CORPUS", help="leave a corpus out"
    )
    parser.add_argument(
        "--recipe", default="recipe", metavar="NAME", help="another recipe of the same directory"
    )


def add_execution(parser: console.SettingsParser) -> None:
    """The options that say what is run, and where."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--gpus",
        metavar="N|0,1,3",
        help="make runs side by side, one on each of N GPUs of this machine, or of those listed",
    )
    where.add_argument(
        "--slurm-array",
        type=Path,
        metavar="FILE",
        help="run nothing, but write a script that submits the grid to SLURM: a job that prepares "
        "the data, an array with one task per run, and a job that prints the table",
    )
    where.add_argument(
        "--only",
        choices=["prepare", "runs", "table"],
        help="only prepare the data; or only make the runs, whose data is prepared, and print no "
        "table; or only print the table of what there is",
    )
    where.add_argument(
        "--no-run", dest="only", action="store_const", const="table", help="short for --only table"
    )


@dataclass(frozen=True)
class Request:
    """The grid that a command line asks for; its words are sorted into lists."""

    recipe: Path | None
    variants: list[str]
    seeds: list[int]
    settings: list[str]

    @property
    def directory(self) -> Path:
        """The directory of the recipe."""
        assert self.recipe is not None
        return find_recipe(self.recipe)

    def grid(self, arguments: argparse.Namespace) -> "list[list[Cell]]":
        """The runs of each variant, one per seed."""
        from nmt.recipes.grid import make_grid

        return make_grid(
            self.directory,
            self.variants,
            self.seeds,
            settings=self.settings,
            runs=arguments.runs,
            recipe_name=arguments.recipe,
            without=arguments.without,
            provided=arguments.data,
        )


def read_request(arguments: argparse.Namespace) -> Request:
    """Tell variants and seeds from the settings that may follow them."""
    lists = (arguments.variants, arguments.seeds, arguments.settings)
    settings = [word for words in lists for word in words if "=" in word]
    names, seeds, unknown = ([word for word in words if "=" not in word] for words in lists)
    if unknown:
        raise ConfigError(f"expected settings section.key=value, got {unknown[0]!r}")
    return Request(arguments.recipe_name, names, whole_numbers("--seeds", seeds), settings)


def whole_numbers(option: str, words: Sequence[str]) -> list[int]:
    """The numbers that an option names."""
    try:
        return [whole_number(word) for word in words]
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{option}: {error}") from error


def table(arguments: argparse.Namespace) -> int:
    """Run the grid, make the table, write it."""
    check_outputs([arguments.output, arguments.slurm_array], [])
    request = read_request(arguments)

    from nmt.recipes.table import PAPER, read_paper

    grid = request.grid(arguments)
    rows = [cells[0].variant for cells in grid]
    baseline = find_baseline(request.directory, arguments.baseline, rows=rows)
    paper = read_paper(request.directory / PAPER)
    if arguments.slurm_array is not None:
        return write_script(arguments, request, grid)
    failure = run(arguments, request, grid)
    if arguments.only in (None, "table") and (failure is None or failure.show_table):
        write_table(arguments, grid, paper, baseline)
    return 0 if failure is None else failure.exit_code


@dataclass(frozen=True)
class GridFailure:
    """The exit code of a grid that is not complete, and whether its table is of use."""

    exit_code: int
    show_table: bool = False


def run(
    arguments: argparse.Namespace, request: Request, grid: "list[list[Cell]]"
) -> GridFailure | None:
    """Make the runs of a grid; None when all is done."""
    from nmt.recipes.grid import prepare_grid, run_grid

    devices = None if arguments.gpus is None else find_devices(arguments.gpus, grid)
    if arguments.only in (None, "prepare") and (code := prepare_grid(grid)) is not None:
        return GridFailure(code)
    if devices is not None:
        return run_on_gpus(arguments, request, grid, devices)
    if arguments.only in (None, "runs") and (code := run_grid(grid)) is not None:
        return GridFailure(code)
    return None


def find_devices(asked: str, grid: "list[list[Cell]]") -> list[str]:
    """The GPUs that --gpus asks for, or slots without a GPU for runs on the CPU."""
    from nmt.recipes.side_by_side import visible_devices
    from nmt.recipes.stages import visible_gpus

    on_cpu = all(cell.run.config.train.device == "cpu" for cells in grid for cell in cells)
    return visible_devices(asked, None if on_cpu else visible_gpus())


def run_on_gpus(
    arguments: argparse.Namespace,
    request: Request,
    grid: "list[list[Cell]]",
    devices: Sequence[str],
) -> GridFailure | None:
    """Make the runs of a grid side by side."""
    from nmt.recipes.grid import in_order
    from nmt.recipes.side_by_side import Job, run_jobs

    jobs = [
        Job(
            name=str(cell),
            line=(
                *command_line(arguments, request),
                *("--variants", cell.variant, "--seeds", str(cell.seed), "--only", "runs"),
            ),
            log=cell.run.results / "table.log",
            metrics=cell.run.config.run_dir / METRICS_FILE,
            updates=cell.run.config.train.max_updates,
        )
        for cell in in_order(grid)
    ]
    ending = run_jobs(jobs, devices)
    if ending.stopped is not None:
        logger.warning("stopped; the same command goes on from here")
        return GridFailure(ending.stopped)
    if ending.failed:
        logger.warning(
            "%d of %d runs failed; the same command tries them again", len(ending.failed), len(jobs)
        )
        return GridFailure(next(iter(ending.failed.values())), show_table=True)
    return None


def command_line(arguments: argparse.Namespace, request: Request) -> list[str]:
    """The command line of nmt-table but for --variants and --seeds, wherever it is started."""
    options = {
        "--runs": arguments.runs and arguments.runs.absolute(),
        "--data": arguments.data and arguments.data.absolute(),
        "--recipe": None if arguments.recipe == "recipe" else arguments.recipe,
    }
    words = [word for name, value in options.items() if value for word in (name, str(value))]
    words += [word for corpus in arguments.without for word in ("--without", corpus)]
    head = [sys.executable, "-m", "nmt.cli.table", str(request.directory)]
    return [*head, *request.settings, *words]


def write_script(arguments: argparse.Namespace, request: Request, grid: "list[list[Cell]]") -> int:
    """Write the script that submits the grid to SLURM."""
    from nmt.recipes.grid import in_order
    from nmt.recipes.slurm import ArrayJob, array_script
    from nmt.storage.files import replace_file

    path: Path = arguments.slurm_array.absolute()
    output = (arguments.output or path.with_suffix(".table")).absolute()
    table = ["--format", arguments.format, "--output", str(output)]
    if arguments.baseline is not None:
        table += ["--baseline", arguments.baseline]
    cells, variants = in_order(grid), [row[0].variant for row in grid]
    seeds = ["--seeds", *map(str, request.seeds)] if request.seeds else []
    job = ArrayJob(
        task=grid[0][0].run.layout.directory.name,
        directory=Path.cwd(),
        command=command_line(arguments, request),
        grid=["--variants", *variants, *seeds],
        runs=[(cell.variant, cell.seed) for cell in cells],
        table=table,
    )
    replace_file(path, array_script(job, path).encode())
    path.chmod(0o755)
    logger.info("written: %s; submit it with: bash %s", path, arguments.slurm_array)
    return 0


def write_table(
    arguments: argparse.Namespace,
    grid: "list[list[Cell]]",
    paper: "dict[str, PaperScore]",
    baseline: str,
) -> None:
    """Print the table, or write it to a file."""
    from nmt.data.text import LineWriter
    from nmt.recipes.table import make_table
    from nmt.recipes.table_text import as_json, latex, markdown

    result = make_table(grid, paper=paper, baseline=baseline)
    text = {"markdown": markdown, "latex": latex, "json": as_json}[arguments.format](result)
    with LineWriter(arguments.output) as writer:
        for line in text.split("\n"):
            writer.write(line)


def find_baseline(directory: Path, asked: str | None, *, rows: Sequence[str]) -> str:
    """The row that others are compared with; empty for none."""
    if asked is not None:
        found = find_variant(configs_of(directory), asked).stem
        if found not in rows:
            raise ConfigError(f"--baseline {asked}: expected one of the rows {', '.join(rows)}")
        return found
    return next((row for row in rows if row.lstrip("0123456789-") == BASELINE), "")


def main(argv: Sequence[str] | None = None) -> int:
    """Run nmt-table; returns the exit code."""
    return console.run(build_parser(), table, argv)


if __name__ == "__main__":
    sys.exit(main())
