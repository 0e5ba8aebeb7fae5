"""nmt-paper: run or resume a grid, then all tables and figures of both papers in one report."""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.cli import analyze, console
from nmt.cli.arguments import add_number, add_path, whole_number
from nmt.cli.output_directory import check_output
from nmt.cli.pair_arguments import read_gold
from nmt.cli.table import Request, add_grid, find_baseline, read_request, whole_numbers
from nmt.cli.table import run as run_grid
from nmt.errors import ConfigError, DataError, UserError, require_package
from nmt.recipes.variants import find_recipe, find_task

if TYPE_CHECKING:
    from nmt.paper.document import Document
    from nmt.paper.scores import RunScores
    from nmt.paper.speeds import Speeds
    from nmt.paper.stages import AnalysisRequest
    from nmt.recipes.grid import Cell
    from nmt.recipes.table import PaperScore

logger = logging.getLogger(__name__)

MARKER = "scores.tsv"
GRID_OPTIONS = ("runs", "data", "without", "recipe")
GOLD_OPTIONS = ("development", "gold_index")  # that need --alignment
DRAWN_OPTIONS = ("sentence", "layer", "heads")
ANALYSIS_OPTIONS = ("alignment", *GOLD_OPTIONS, "word_list", "target_tags", *DRAWN_OPTIONS)
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
heads and pairs and the roles of heads; --variants and --seeds choose runs from the files. The same
command goes on with a grid that was stopped or killed. Exit codes are those of the stage that
failed."""


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
        help="the index of the first word of a sentence in GOLD (default: 0)",
    )
    meaning = (
        "choose heads on the first N pairs of --alignment and report error rates on the others "
        "(default: choose and report on all pairs, as in the paper)"
    )
    add_number(parser, "--development", None, meaning)
    analyze.add_word_classes(parser)
    group = parser.add_argument_group("heads of the figures 7 to 9, as in nmt-analyze")
    meaning = "this line of the test set, from 1 (default: one of readable length)"
    add_number(group, "--sentence", None, meaning)
    meaning = "this decoder layer, from 0 (default: the middle one)"
    add_number(group, "--layer", None, meaning, type=whole_number, metavar="L")
    meaning = "these heads, from 0 (default: a few that differ)"
    group.add_argument("--heads", nargs="+", default=[], metavar="H", help=meaning)
    meaning = "a file of nmt-bench train --json or decode --json; can be given several times"
    parser.add_argument(
        "--speed", type=Path, action="append", default=[], metavar="FILE", help=meaning
    )
    return parser


def paper(arguments: argparse.Namespace) -> int:
    """Run the grid and write the report."""
    require_package("matplotlib", extra="analysis", purpose="figures")
    from nmt.paper.speeds import read_speeds

    check_options(arguments)
    speeds = read_speeds(arguments.speed)
    if arguments.scores is not None:
        return report_scores(arguments, speeds)
    if arguments.recipe_name is None:
        raise ConfigError("expected a RECIPE, or --from FILE; nmt-recipe --list shows the recipes")
    # Settings may follow the heads, as they may follow variants and seeds.
    arguments.settings += [word for word in arguments.heads if "=" in word]
    heads = whole_numbers("--heads", [word for word in arguments.heads if "=" not in word])
    asked = analysis_request(arguments, heads)
    request = read_request(arguments)
    grid = request.grid(arguments)
    check_analyses(asked, grid, [] if arguments.layer is None else [arguments.layer], heads)
    output = arguments.output or grid[0][0].run.config.run_dir.parent / "paper"
    check_output(output.resolve(), "nmt-paper", marker=MARKER)
    failure = run_grid(arguments, request, grid)
    if failure is not None and not failure.show_table:
        return failure.exit_code
    code = report_grid(arguments, request, grid, asked, speeds, output)
    return code or (0 if failure is None else failure.exit_code)


def check_options(arguments: argparse.Namespace) -> None:
    """Reject options that would have no effect."""

    def reject(names: Sequence[str], reason: str) -> None:
        for name in names:
            if getattr(arguments, name) not in (None, [], "recipe"):  # the defaults
                raise UserError(f"--{name.replace('_', '-')}: {reason}")

    if arguments.scores is not None:
        unused = (*GRID_OPTIONS, *ANALYSIS_OPTIONS)
        reject(unused, "has no effect with --from, which runs and analyses nothing; leave it out")
    if arguments.only is not None:
        reason = "has no effect with --no-run, which reports on the analyses that are there"
        reject(ANALYSIS_OPTIONS, f"{reason}; leave one of them out")
    if arguments.alignment is None:
        reject(GOLD_OPTIONS, "expected --alignment with it")


def analysis_request(arguments: argparse.Namespace, heads: Sequence[int]) -> "AnalysisRequest":
    """The options of nmt-analyze; the files that they name are there."""
    from nmt.analysis.word_classes import read_word_classes
    from nmt.paper.stages import AnalysisRequest, GoldText

    tags = arguments.target_tags
    for option, paths in (("alignment", arguments.alignment), ("target-tags", tags and [tags])):
        for path in paths or ():
            if not path.is_file():
                raise UserError(f"--{option}: expected a file, found none at {path}")
    read_word_classes(arguments.word_list, None, count=0)
    options = [word for named in arguments.word_list for word in ("--word-list", named)]
    files = [Path(named.partition("=")[2]) for named in arguments.word_list]
    if tags is not None:
        options += ["--target-tags", str(tags)]
        files.append(tags)
    for name in ("sentence", "layer"):
        if (number := getattr(arguments, name)) is not None:
            options += [f"--{name}", str(number)]
    if heads:
        options += ["--heads", *map(str, heads)]
    gold = None
    if arguments.alignment is not None:
        source, target, links = arguments.alignment
        first, development = arguments.gold_index or 0, arguments.development
        gold = GoldText(source, target, links, first, development)
    return AnalysisRequest(options, files, gold)


def check_analyses(
    asked: "AnalysisRequest", grid: "list[list[Cell]]", layers: Sequence[int], heads: Sequence[int]
) -> None:
    """Reject before any run is made what nmt-analyze would reject after it."""
    from nmt.recipes.stages import name_test_set

    for cell in (cell for cells in grid for cell in cells):
        model = cell.run.config.model
        for option, numbers, count in (
            ("--layer", layers, model.decoder_layers),
            ("--heads", heads, model.heads),
        ):
            if wrong := [number for number in numbers if number >= count]:
                raise UserError(f"{option}: expected 0 to {count - 1} for {cell}, got {wrong[0]}")
    if asked.gold is not None:
        check_text([*asked.gold.texts, *asked.gold.options])
    run = grid[0][0].run
    if all(path.is_file() for path in run.layout.pair(run.recipe.test.name)):
        check_text([*name_test_set(run), *asked.options])


def check_text(words: Sequence[str]) -> None:
    """Read the text, the word classes and the gold alignments of options as nmt-analyze does."""
    others = ["--sentences", "0", "--model", "model", "--output", "output"]
    asked = analyze.build_parser().parse_args([*words, *others])
    count, gold = analyze.read_input(asked).count, read_gold(asked)
    if gold is not None and len(gold.links) != count:
        raise DataError(f"{gold.path}: expected a line per pair, {count}, got {len(gold.links)}")


def report_grid(
    arguments: argparse.Namespace,
    request: Request,
    grid: "list[list[Cell]]",
    asked: "AnalysisRequest",
    speeds: "Speeds",
    output: Path,
) -> int:
    """Analyse the runs of a grid and write the report; returns the exit code."""
    from nmt.paper.collect import collect_run
    from nmt.paper.report import Extras, build_document
    from nmt.paper.stages import (
        analyze_cells,
        first_analysed,
        head_pictures,
        ranked_pictures,
        role_tables,
    )
    from nmt.recipes.grid import in_order
    from nmt.recipes.table import PAPER, make_table, read_paper

    if arguments.only is None and (code := analyze_cells(in_order(grid), asked)) is not None:
        return code
    baseline = find_baseline(request.directory, None, rows=[cells[0].variant for cells in grid])
    published = read_paper(request.directory / PAPER)
    table = make_table(grid, paper=published, baseline=baseline)
    p_values = {row.variant: row.p_value for row in table.rows}
    scores = [
        [
            collect_run(cell, p_values[cell.variant] if place == 0 else None)
            for place, cell in enumerate(cells)
        ]
        for cells in grid
    ]
    runs = [run for of_variant in scores for run in of_variant]
    analysed = first_analysed(grid, scores)
    heads, roles = head_pictures(analysed), role_tables(analysed)
    pairs = ranked_pictures(analysed, rank=arguments.only is None)
    write_report(output, runs, build_document(runs, Extras(published, speeds, heads, pairs, roles)))
    return 0


def report_scores(arguments: argparse.Namespace, speeds: "Speeds") -> int:
    """Write the report of files of scores; returns the exit code."""
    if arguments.output is None:
        raise UserError("--output: expected a directory for the report with --from")
    check_output(arguments.output.resolve(), "nmt-paper", marker=MARKER)
    from nmt.paper.report import Extras, build_document
    from nmt.paper.scores import read_scores, select_runs

    request = read_request(arguments)
    words = [*([] if request.recipe is None else [str(request.recipe)]), *request.settings]
    if settings := [word for word in words if "=" in word and not Path(word).exists()]:
        raise UserError(f"{settings[0]}: settings have no effect with --from, which runs nothing")
    runs = select_runs(read_scores(*arguments.scores), request.variants, request.seeds)
    tasks = list(dict.fromkeys(run.task for run in runs))
    if len(tasks) > 1:
        raise UserError(f"--from: expected the scores of one task, got {' and '.join(tasks)}")
    extras = Extras(published_scores(arguments.recipe_name, tasks[0]), speeds, from_scores=True)
    try:
        document = build_document(runs, extras)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        names = ", ".join(map(str, arguments.scores))
        raise DataError(
            f"{names}: a number is missing or of another type than its name says "
            f"({error!s:.100}); make the file again with nmt-paper"
        ) from error
    write_report(arguments.output, runs, document)
    return 0


def published_scores(recipe: Path | None, task: str) -> "dict[str, PaperScore]":
    """The papers' scores for a task; none if its recipe is not named and not here."""
    from nmt.recipes.table import PAPER, read_paper

    directory = find_task(task) if recipe is None else find_recipe(recipe)
    if directory is None:
        logger.warning("no recipe of %s here: the papers' scores are left out", task)
        return {}
    return read_paper(directory / PAPER)


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
