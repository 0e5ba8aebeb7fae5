"""nmt-table: run or resume a grid of variants and seeds of a recipe, and print its results."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt.cli import console
from nmt.cli.arguments import whole_number
from nmt.errors import ConfigError
from nmt.recipes.variants import configs_of, find_recipe, find_variant

BASELINE = "softmax"
DESCRIPTION = """\
Run all stages of a recipe but the analysis for several variants and seeds, then print a table:
mean and deviation over seeds, the paper's numbers and the difference, and whether a variant differs
from the baseline (paired bootstrap on the translations of the first seed of each).
What is done is skipped and what was cut goes on, so the same command resumes a grid. A run that
diverges is shown as a dash and the grid goes on; anything else that fails stops it."""
EPILOG = """\
examples:
  nmt-table recipes/multi30k_en_de --variants softmax rela-g --seeds 1 2 3
  nmt-table recipes/wmt14_en_de --no-run --format latex --output table.tex
  nmt-table recipes/wmt16_ro_en --runs runs/short train.max_updates=20000

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
    parser.add_argument(
        "recipe_name", type=Path, metavar="RECIPE", help="NAME, or a folder recipes/NAME"
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
        "--baseline",
        metavar="NAME",
        help=f"the variant that others are compared with (default: {BASELINE} if it is a row)",
    )
    parser.add_argument(
        "--no-run", action="store_true", help="print what there is, and run nothing"
    )
    parser.add_argument(
        "--format", choices=["markdown", "latex", "json"], default="markdown", help="of the table"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write the table there, not to standard output"
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
    return parser


def table(arguments: argparse.Namespace) -> int:
    """Run the grid, make the table, write it."""
    lists = (arguments.variants, arguments.seeds, arguments.settings)
    settings = [word for words in lists for word in words if "=" in word]
    names, seeds, unknown = ([word for word in words if "=" not in word] for words in lists)
    if unknown:
        raise ConfigError(f"expected settings section.key=value, got {unknown[0]!r}")
    try:
        numbers = [whole_number(seed) for seed in seeds]
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"--seeds: {error}") from error

    from nmt.data.text import LineWriter
    from nmt.recipes.grid import make_grid, run_grid
    from nmt.recipes.table import PAPER, make_table, read_paper
    from nmt.recipes.table_text import as_json, latex, markdown

    directory = find_recipe(arguments.recipe_name)
    grid = make_grid(
        directory,
        names,
        numbers,
        settings=settings,
        runs=arguments.runs,
        recipe_name=arguments.recipe,
        without=arguments.without,
        provided=arguments.data,
    )
    baseline = find_baseline(
        directory, arguments.baseline, rows=[cells[0].variant for cells in grid]
    )
    paper = read_paper(directory / PAPER)
    if not arguments.no_run and (code := run_grid(grid)) is not None:
        return code
    result = make_table(grid, paper=paper, baseline=baseline)
    text = {"markdown": markdown, "latex": latex, "json": as_json}[arguments.format](result)
    with LineWriter(arguments.output) as writer:
        for line in text.split("\n"):
            writer.write(line)
    return 0


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
