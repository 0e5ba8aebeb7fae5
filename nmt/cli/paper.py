"""nmt-paper: run or resume a grid, then all tables and figures of both papers in one report."""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.cli import console
from nmt.cli.arguments import add_number, add_path
from nmt.cli.output_directory import check_output
from nmt.cli.table import Request, add_grid, find_baseline, read_request
from nmt.cli.table import run as run_grid
from nmt.errors import ConfigError, DataError, UserError, require_package
from nmt.recipes.variants import find_recipe

if TYPE_CHECKING:
    from nmt.paper.document import Document
    from nmt.paper.scores import RunScores
    from nmt.paper.speeds import Speeds
    from nmt.recipes.grid import Cell
    from nmt.recipes.table import PaperScore

logger = logging.getLogger(__name__)

MARKER = "scores.tsv"
DESCRIPTION = """\
Run or resume the grid of a recipe as nmt-table does, analyse every run, and write one report with
the tables and figures of "Sparse Attention with Linear Units" and "Adaptively Sparse Transformers":
means over the seeds, the papers' numbers and the difference beside them. What cannot be made yet is
shown as missing, with the way to get it."""
EPILOG = """\
files in the output directory:
  report.html   everything on one page that needs no network
  report.md     the same in Markdown, with the figures beside it
  scores.tsv    every number of every run: task, variant, seed, name, value
  *.png, *.pdf  the figures

examples:
  nmt-paper recipes/multi30k_en_de --variants softmax entmax15 rela-g --seeds 1 2 3
  nmt-paper recipes/wmt14_en_de --gpus 8 --seeds 1 2 3 --alignment en.txt de.txt gold.txt
  nmt-paper recipes/wmt16_ro_en --no-run --speed train.json --speed decode.json
  nmt-paper --from runs/multi30k_en_de/paper/scores.tsv --output report

With --from nothing is run: the report is made from files of scores, without the figures of single
heads and pairs. The same command goes on with a grid that was stopped or killed. Exit codes are
those of the stage that failed."""


def build_parser() -> console.SettingsParser:
    """The command line of nmt-paper."""
    parser = console.SettingsParser(prog="nmt-paper", description=DESCRIPTION, epilog=EPILOG)
    add_grid(parser, recipe="?")
    where = parser.add_mutually_exclusive_group()
    meaning = "make runs side by side, one on each of N GPUs of this machine, or of those listed"
    where.add_argument("--gpus", metavar="N|0,1,3", help=meaning)
    meaning = "run nothing: report on the runs that are there"
    where.add_argument("--no-run", dest="only", action="store_const", const="table", help=meaning)
    meaning = "make the report from this file of scores; can be given several times"
    add_path(where, "--from", meaning, dest="scores", action="append")
    meaning = "for the report (default: the folder `paper` beside the runs)"
    add_path(parser, "--output", meaning, metavar="DIR")
    parser.add_argument(
        "--alignment",
        nargs=3,
        type=Path,
        metavar=("SOURCE", "TARGET", "GOLD"),
        help="text with gold alignments, `i-j` for a sure and `ipj` for a possible link",
    )
    parser.add_argument(
        "--gold-index",
        type=int,
        choices=(0, 1),
        default=0,
        help="the index of the first word of a sentence in GOLD (default: 0)",
    )
    meaning = (
        "choose heads on the first N pairs of --alignment and report error rates on the others "
        "(default: choose and report on all pairs, as in the paper)"
    )
    add_number(parser, "--development", None, meaning)
    meaning = "a file of nmt-bench train --json or decode --json; can be given several times"
    parser.add_argument(
        "--speed", type=Path, action="append", default=[], metavar="FILE", help=meaning
    )
    return parser


def paper(arguments: argparse.Namespace) -> int:
    """Run the grid and write the report."""
    require_package("matplotlib", extra="analysis", purpose="figures")
    from nmt.paper.speeds import read_speeds

    speeds = read_speeds(arguments.speed)
    if arguments.scores is not None:
        return report_scores(arguments, speeds)
    if arguments.recipe_name is None:
        raise ConfigError("expected a RECIPE, or --from FILE; nmt-recipe --list shows the recipes")
    for path in arguments.alignment or ():
        if not path.is_file():
            raise UserError(f"--alignment: expected a file, found none at {path}")
    request = read_request(arguments)
    grid = request.grid(arguments)
    output = arguments.output or grid[0][0].run.config.run_dir.parent / "paper"
    check_output(output.resolve(), "nmt-paper", marker=MARKER)
    failure = run_grid(arguments, request, grid)
    if failure is not None and not failure.show_table:
        return failure.exit_code
    code = report_grid(arguments, request, grid, speeds, output)
    return code or (0 if failure is None else failure.exit_code)


def report_grid(
    arguments: argparse.Namespace,
    request: Request,
    grid: "list[list[Cell]]",
    speeds: "Speeds",
    output: Path,
) -> int:
    """Analyse the runs of a grid and write the report; returns the exit code."""
    from nmt.paper.collect import collect_run
    from nmt.paper.report import Extras, build_document
    from nmt.paper.stages import (
        GoldText,
        analyze_cells,
        head_pictures,
        ranked_pictures,
        role_tables,
    )
    from nmt.recipes.grid import in_order
    from nmt.recipes.table import PAPER, make_table, read_paper

    gold = None
    if arguments.alignment is not None:
        source, target, links = arguments.alignment
        first, development = arguments.gold_index, arguments.development
        gold = GoldText(source, target, links, first, development)
    if arguments.only is None and (code := analyze_cells(in_order(grid), gold)) is not None:
        return code
    baseline = find_baseline(request.directory, None, rows=[cells[0].variant for cells in grid])
    published = read_paper(request.directory / PAPER)
    table = make_table(grid, paper=published, baseline=baseline)
    p_values = {row.variant: row.p_value for row in table.rows}
    runs = [
        collect_run(cell, p_values[cell.variant] if place == 0 else None)
        for cells in grid
        for place, cell in enumerate(cells)
    ]
    pairs = ranked_pictures(grid, rank=arguments.only is None)
    extras = Extras(published, speeds, head_pictures(grid), pairs, role_tables(grid))
    write_report(output, runs, build_document(runs, extras))
    return 0


def report_scores(arguments: argparse.Namespace, speeds: "Speeds") -> int:
    """Write the report of files of scores; returns the exit code."""
    if arguments.output is None:
        raise UserError("--output: expected a directory for the report with --from")
    check_output(arguments.output.resolve(), "nmt-paper", marker=MARKER)
    from nmt.paper.report import Extras, build_document
    from nmt.paper.scores import read_scores

    runs = read_scores(*arguments.scores)
    tasks = list(dict.fromkeys(run.task for run in runs))
    if len(tasks) > 1:
        raise UserError(f"--from: expected the scores of one task, got {' and '.join(tasks)}")
    published = published_scores(arguments.recipe_name or Path(tasks[0]))
    names = ", ".join(map(str, arguments.scores))
    try:
        document = build_document(runs, Extras(published, speeds))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(
            f"{names}: a number is missing or of another type than its name says "
            f"({error!s:.100}); make the file again with nmt-paper"
        ) from error
    write_report(arguments.output, runs, document)
    return 0


def published_scores(recipe: Path) -> "dict[str, PaperScore]":
    """The papers' scores for a task; none if there is no such recipe here."""
    from nmt.recipes.table import PAPER, read_paper

    try:
        return read_paper(find_recipe(recipe) / PAPER)
    except ConfigError:
        logger.warning("no recipe %s here: the papers' scores are left out", recipe)
        return {}


def write_report(output: Path, runs: "list[RunScores]", document: "Document") -> None:
    """Write all files of the report at once."""
    from nmt.paper.scores import score_lines
    from nmt.storage.directories import bytes_writer, recover, replace_directory

    files = {
        MARKER: "\n".join([*score_lines(runs), ""]).encode(),
        "report.md": document.markdown().encode(),
        "report.html": document.html().encode(),
    }
    for picture in document.pictures:
        files |= dict(picture.files())
    place = output.resolve()
    check_output(place, "nmt-paper", marker=MARKER)  # again, because much time has passed
    place.parent.mkdir(parents=True, exist_ok=True)
    recover(place.parent, name=place.name, exclusive=False)
    replace_directory(place, {name: bytes_writer(content) for name, content in files.items()})
    logger.info("%s is written; open it in a browser", console.shown(output / "report.html"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run nmt-paper; returns the exit code."""
    return console.run(build_parser(), paper, argv)


if __name__ == "__main__":
    sys.exit(main())
