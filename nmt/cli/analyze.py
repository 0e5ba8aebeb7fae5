"""nmt-analyze: what the attention of models does, as numbers, tables, figures and a page."""

import argparse
import itertools
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.cli import console
from nmt.cli.align_arguments import add_gold
from nmt.cli.arguments import positive, whole_number
from nmt.data.text import read_text
from nmt.errors import DataError, IntegrityError, UserError

if TYPE_CHECKING:
    from nmt.analysis.analyze import Gold, Input, ModelAnalysis
    from nmt.analysis.results import Analysis
    from nmt.data.codec import Codec
    from nmt.storage.directories import Writer

logger = logging.getLogger("nmt.cli.analyze")

LARGE_REPORT = 15_000_000  # bytes; beyond that it opens slowly

DESCRIPTION = """\
Measure what the attention of one or several models does on sentence pairs: sparsity, null rate
(also with shuffled targets), head diversity, density, entropy, learned alphas and, with gold
alignments, alignment error rates."""

EPILOG = """\
files in the output directory:
  report.html    everything to look at in a browser, without a network: every head on a few
                 sentences, heads sorted by any measure, two models side by side, tables, figures
  tables.md      the paper's tables and the numbers behind its figures
  analysis.json  all numbers
  *.png          figures in the form of the papers'

An output directory that nmt-analyze wrote before is replaced as a whole once everything is
computed; one with other files in it is never touched.

examples:
  nmt-analyze --model runs/rela-g runs/softmax --source test.en --target test.de --output analysis
  nmt-analyze --model runs/demo --source a.en --target a.fr --gold a.gold --gold-index 1 \\
      --development 100 --output analysis"""


def build_parser() -> console.Parser:
    """The arguments of nmt-analyze."""
    parser = console.Parser(
        prog="nmt-analyze",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = parser.add_argument_group("input and output")
    group.add_argument(
        "--model",
        type=Path,
        required=True,
        nargs="+",
        metavar="DIR",
        help="model or run directories, to be compared with each other",
    )
    group.add_argument(
        "--names", nargs="+", metavar="NAME", help="what to call them (default: as the directories)"
    )
    group.add_argument("--source", type=Path, required=True, metavar="FILE", help="source text")
    group.add_argument("--target", type=Path, required=True, metavar="FILE", help="its translation")
    group.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="where the files go"
    )
    group.add_argument(
        "--sentences",
        type=whole_number,
        default=50,
        metavar="N",
        help="pairs to look at in the report: the first ones of at most 40 words (default: 50)",
    )
    group.add_argument(
        "--max-pairs", type=positive, metavar="N", help="use only the first N pairs (default: all)"
    )
    group.add_argument(
        "--seed", type=whole_number, default=1, metavar="N", help="of the shuffling (default: 1)"
    )
    group.add_argument(
        "--max-length",
        type=positive,
        default=512,
        metavar="N",
        help="leave out pairs with more subwords on a side, with a warning (default: 512)",
    )
    group.add_argument(
        "--batch-tokens",
        type=positive,
        default=2048,
        metavar="N",
        help="positions computed at a time; changes no number (default: 2048)",
    )
    group.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="(default: auto)"
    )
    add_gold(parser)
    return parser


def analyze(arguments: argparse.Namespace) -> None:
    """Measure every model, then write everything at once."""
    names = model_names(arguments)
    output = arguments.output.resolve()
    check_output(output)
    for option in ("gold_possible", "development"):
        if getattr(arguments, option) is not None and arguments.gold is None:
            raise UserError(f"--{option.replace('_', '-')}: expected --gold with it")
    from nmt.analysis.results import Analysis
    from nmt.storage.directories import recover, replace_directory

    text = read_input(arguments)
    gold = read_gold(arguments, text.count)
    measured = list(measure_models(arguments, names, text, gold))
    analysis = Analysis(
        source=arguments.source.name,
        target=arguments.target.name,
        pairs=text.count,
        seed=arguments.seed,
        models=[one.result for one, _ in measured],
        gold=None if arguments.gold is None else arguments.gold.name,
        development=arguments.development,
    )
    files = output_files(analysis, text, measured)
    check_output(output)  # again: much time has passed
    recover(output.parent, name=output.name, exclusive=False)
    replace_directory(output, files)
    logger.info("wrote %s", arguments.output / "report.html")


def model_names(arguments: argparse.Namespace) -> list[str]:
    """What the models are called: as given, or as much of their paths as tells them apart."""
    paths: list[Path] = arguments.model
    if arguments.names is not None:
        names: list[str] = arguments.names
        if len(names) != len(paths):
            raise UserError(f"--names: expected {len(paths)}, one a model, got {len(names)}")
    else:
        parts = [path.resolve().parts for path in paths]
        for length in range(1, max(map(len, parts)) + 1):
            names = ["/".join(own[-length:]) for own in parts]
            if len(set(names)) == len(names):
                break
    if len(set(names)) < len(names):
        raise UserError("--names: expected a different name for each model")
    return names


def check_output(path: Path) -> None:
    """Refuse to replace anything that this command did not write, or a place out of reach."""
    if not path.exists():
        parent = next(parent for parent in path.parents if parent.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise UserError(f"--output: {parent} is no directory that can be written to")
        return
    if not path.is_dir():
        raise UserError(f"--output: {path} is a file; give a directory")
    foreign = foreign_files(path)
    if foreign:
        raise UserError(
            f"--output: {path} has files that nmt-analyze did not write, such as {foreign[0]}; "
            "give a new directory"
        )


def foreign_files(path: Path) -> list[str]:
    """The names in a directory that are not those of an analysis, as its manifest tells."""
    from nmt.storage.manifest import MANIFEST, parse_manifest

    names = {entry.name for entry in path.iterdir()}
    try:
        ours = {MANIFEST, *parse_manifest((path / MANIFEST).read_bytes(), str(path)).files}
    except (OSError, IntegrityError):
        ours = set()
    return sorted(names - ours if "analysis.json" in ours else names)


def read_input(arguments: argparse.Namespace) -> "Input":
    """The pairs, read once to see that they are in order, and to choose those to show."""
    from nmt.analysis.analyze import Input, look_ahead
    from nmt.analysis.pairs import read_side_by_side

    def read() -> Iterator[tuple[str, str]]:
        pairs = read_side_by_side(arguments.source, arguments.target, read_text)
        return itertools.islice(pairs, arguments.max_pairs)

    count, shown = look_ahead(read(), shown=arguments.sentences)
    if count == 0:
        raise DataError(f"{arguments.source}: expected sentences, got an empty file")
    if len(shown) < min(arguments.sentences, count):
        logger.info("the report shows %d sentences; others are blank or long", len(shown))
    return Input(
        read,
        count,
        shown,
        seed=arguments.seed,
        batch_tokens=arguments.batch_tokens,
        max_length=arguments.max_length,
    )


def read_gold(arguments: argparse.Namespace, count: int) -> "Gold | None":
    """The gold links of the pairs that are used."""
    if arguments.gold is None:
        return None
    from nmt.analysis import gold as alignments
    from nmt.analysis.analyze import Gold

    links = list(
        alignments.read_gold(
            arguments.gold,
            arguments.gold_possible,
            order=arguments.gold_order,
            first=arguments.gold_index,
        )
    )
    if arguments.max_pairs is not None:
        links = links[: arguments.max_pairs]
    if len(links) != count:
        raise DataError(
            f"{arguments.gold}: expected a line for each of {count} pairs, got {len(links)}"
        )
    development = arguments.development or 0
    if development >= count:
        raise UserError(
            f"--development: expected fewer than the {count} pairs, got {development}: something "
            "must be left to report on"
        )
    return Gold(links, arguments.gold, arguments.gold_index, development)


def measure_models(
    arguments: argparse.Namespace, names: Sequence[str], text: "Input", gold: "Gold | None"
) -> "Iterator[tuple[ModelAnalysis, Codec]]":
    """What each model shows, and the codec to read it with; one model is in memory at a time."""
    from nmt.analysis.analyze import analyze_model
    from nmt.analysis.models import open_model
    from nmt.progress import progress_bar

    for path, name in zip(arguments.model, names, strict=True):
        loaded = open_model(path, device=arguments.device)
        # Every pair is read with its own target and with that of another one.
        with progress_bar(total=2 * text.count, unit="pairs", description=name) as bar:
            one = analyze_model(loaded, text, name=name, gold=gold, advance=bar.update)
        if one.skipped:
            logger.warning(
                "%s: %d of %d pairs have more than %d subwords on a side and were left out; see "
                "--max-length",
                name,
                one.skipped,
                text.count,
                arguments.max_length,
            )
        yield one, loaded.codec


def output_files(
    analysis: "Analysis", text: "Input", measured: "Sequence[tuple[ModelAnalysis, Codec]]"
) -> "dict[str, Writer]":
    """The content of all files."""
    from nmt.analysis.figures import all_pictures
    from nmt.analysis.report import build_report, pictured_heads
    from nmt.analysis.tables import all_tables, markdown
    from nmt.storage.directories import bytes_writer, json_writer

    tables = all_tables(analysis)
    shown = [(codec, one.shown) for one, codec in measured]
    pictures = all_pictures(analysis, pictured_heads(analysis.models, shown))
    texts = {place: pair[0] for place, pair in enumerate(text.read()) if place in text.shown}
    report = build_report(
        analysis,
        texts=texts,
        shown=shown,
        tables=tables,
        pictures=pictures,
    )
    if len(report) > LARGE_REPORT:
        logger.warning(
            "report.html has %.0f MB and may open slowly; give fewer --sentences", len(report) / 1e6
        )
    return {
        "analysis.json": json_writer(analysis.document()),
        "tables.md": bytes_writer(markdown(analysis, tables).encode()),
        "report.html": bytes_writer(report),
        **{f"{one.name}.png": bytes_writer(one.png) for one in pictures},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the result is its exit code."""
    return console.run(build_parser(), analyze, argv)


if __name__ == "__main__":
    sys.exit(main())
