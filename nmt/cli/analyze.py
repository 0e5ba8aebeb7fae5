"""nmt-analyze: measures of the attention of models, as numbers, tables, figures and a report."""

import argparse
import itertools
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.cli import console
from nmt.cli.arguments import (
    add_number,
    add_outside_kinds,
    add_path,
    check_needs,
    new_parser,
    whole_number,
)
from nmt.cli.output_directory import check_output
from nmt.cli.pair_arguments import (
    NEED_GOLD,
    add_gold,
    add_reading,
    add_weights,
    open_model,
    read_gold,
)
from nmt.data.text import read_text
from nmt.errors import DataError, UserError, require_package

if TYPE_CHECKING:
    from nmt.analysis.analyze import ModelAnalysis, SentencePairs
    from nmt.analysis.gold import Gold
    from nmt.analysis.results import Analysis
    from nmt.checkpoint.model_directory import LoadedModel
    from nmt.data.codec import Codec
    from nmt.storage.directories import Writer

logger = logging.getLogger("nmt.cli.analyze")

LARGE_REPORT = 15_000_000  # bytes; larger pages open slowly

DESCRIPTION = """\
Measure the attention of one or several models on sentence pairs: sparsity, null rate (also with
shuffled targets, and after words of a class), head diversity, density, entropy, attention to sinks
and the measures without them, roles of heads, learned parameters of the heads and, with gold
alignments, alignment error rates."""

EPILOG = """\
files in the output directory:
  report.html    a page for the browser that needs no network: every head on a few sentences,
                 heads sorted by any measure, two models side by side, all tables and figures
  tables.md      the tables of the paper and the numbers behind its figures
  analysis.json  all numbers
  *.png, *.pdf   the figures; PDF with --pdf

An output directory of an earlier nmt-analyze is replaced as a whole when all results are there; a
directory with other files in it is never changed. If a model computes numbers that are not finite,
the command names the lines, writes nothing and ends with exit code 6.

examples:
  nmt-analyze --model runs/rela-g runs/softmax --source test.en --target test.de --output analysis
  nmt-analyze --model runs/demo --source a.en --target a.fr --gold a.gold --gold-index 1 \\
      --development 100 --output analysis"""


def build_parser() -> console.Parser:
    """The arguments of nmt-analyze."""
    parser = new_parser("nmt-analyze", DESCRIPTION, EPILOG)
    group = parser.add_argument_group("input and output")
    meaning = "model or run directories to compare"
    add_path(group, "--model", meaning, metavar="DIR", required=True, nargs="+")
    add_outside_kinds(group)
    group.add_argument(
        "--names", nargs="+", metavar="NAME", help="names of the models (default: from their paths)"
    )
    add_path(group, "--source", "source text", required=True)
    add_path(group, "--target", "translation of the source", required=True)
    add_path(group, "--output", "directory for the files", metavar="DIR", required=True)
    add_word_classes(parser)
    meaning = "number of pairs in the report: the first ones of at most 40 words"
    add_number(group, "--sentences", 50, meaning, type=whole_number)
    group.add_argument("--pdf", action="store_true", help="write each figure as PDF, too")
    meaning = "draw the heads on this line of the text, from 1 (default: one of readable length)"
    add_number(group, "--sentence", None, meaning)
    meaning = "draw heads of this decoder layer, from 0 (default: the middle one)"
    add_number(group, "--layer", None, meaning, type=whole_number, metavar="L")
    meaning = "draw these heads, from 0 (default: a few that differ)"
    group.add_argument("--heads", nargs="+", type=whole_number, metavar="H", help=meaning)
    add_number(group, "--max-pairs", None, "use only the first N pairs (default: all)")
    add_number(group, "--seed", 1, "seed for shuffling the targets", type=whole_number)
    # Its numbers are compared with each other, and an exact zero of float32 is what they count.
    too_long = "are left out, with a warning (with --gold: an error)"
    add_reading(group, too_long=too_long, precision="float32")
    add_weights(add_gold(parser))
    return parser


def add_word_classes(parser: console.Parser) -> None:
    """The classes of words after which null rates are counted."""
    group = parser.add_argument_group("null rates after words of a class")
    group.add_argument(
        "--word-list",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="a class of target tokens, one per line, in any case; can be given several times",
    )
    meaning = "tags of the target, one for each word that spaces separate; each tag is a class"
    add_path(group, "--target-tags", meaning)


def analyze(arguments: argparse.Namespace) -> None:
    """Measure every model, then write all files at once."""
    require_package("matplotlib", extra="analysis", purpose="figures")
    names = model_names(arguments)
    output = arguments.output.resolve()
    check_output(output, "nmt-analyze", marker="analysis.json")
    check_needs(arguments, {"--weights": "--gold", **NEED_GOLD})
    from nmt.analysis.results import Analysis
    from nmt.storage.directories import recover, replace_directory

    text = read_input(arguments)
    gold = read_gold(arguments, max_pairs=arguments.max_pairs)
    if gold is not None and len(gold.links) != text.count:
        raise DataError(
            f"{gold.path}: expected a line for each of {text.count} pairs, got {len(gold.links)}"
        )
    measured = list(measure_models(arguments, names, text, gold))
    analysis = Analysis(
        source=arguments.source.name,
        target=arguments.target.name,
        pairs=text.count,
        seed=arguments.seed,
        models=[one.result for one, _ in measured],
        gold=None if arguments.gold is None else arguments.gold.name,
        development=arguments.development,
        weights=arguments.weights,
    )
    files = output_files(arguments, analysis, text, measured)
    # Again, because much time has passed.
    check_output(output, "nmt-analyze", marker="analysis.json")
    recover(output.parent, name=output.name, exclusive=False)
    replace_directory(output, files)
    logger.info(
        "%s is written; open it in a browser", console.shown(arguments.output / "report.html")
    )


def model_names(arguments: argparse.Namespace) -> list[str]:
    """The names of the models: as given, or the shortest ends of their paths that differ."""
    paths: list[Path] = arguments.model
    if arguments.names is not None:
        names: list[str] = arguments.names
        if len(names) != len(paths):
            raise UserError(f"--names: expected {len(paths)}, one per model, got {len(names)}")
    else:
        parts = [path.resolve().parts for path in paths]
        for length in range(1, max(map(len, parts)) + 1):
            names = ["/".join(own[-length:]) for own in parts]
            if len(set(names)) == len(names):
                break
    if len(set(names)) < len(names):
        raise UserError("--names: expected a different name for each model")
    return names


def read_input(arguments: argparse.Namespace) -> "SentencePairs":
    """The pairs, read once to check them and to choose those for the report."""
    from nmt.analysis.analyze import SentencePairs, look_ahead
    from nmt.analysis.pairs import read_side_by_side
    from nmt.analysis.word_classes import read_word_classes

    def read() -> Iterator[tuple[str, str]]:
        pairs = read_side_by_side(arguments.source, arguments.target, read_text)
        return itertools.islice(pairs, arguments.max_pairs)

    count, shown = look_ahead(read(), shown=arguments.sentences)
    if count == 0:
        raise DataError(f"{arguments.source}: expected sentences, got an empty file")
    if arguments.sentence is not None:
        if arguments.sentence > count:
            raise UserError(f"--sentence: expected 1 to {count}, got {arguments.sentence}")
        shown |= {arguments.sentence - 1}
    if len(shown) < min(arguments.sentences, count):
        logger.info("the report shows %d sentences; the others are blank or too long", len(shown))
    return SentencePairs(
        read,
        count,
        shown,
        read_word_classes(
            arguments.word_list,
            arguments.target_tags,
            count=count,
            max_pairs=arguments.max_pairs,
        ),
        seed=arguments.seed,
        batch_tokens=arguments.batch_tokens,
        max_length=arguments.max_length,
    )


def measure_models(
    arguments: argparse.Namespace, names: Sequence[str], text: "SentencePairs", gold: "Gold | None"
) -> "Iterator[tuple[ModelAnalysis, Codec]]":
    """The analysis and the codec of each model; one model is in memory at a time."""
    from nmt.analysis.analyze import analyze_model
    from nmt.progress import progress_bar

    for path, name in zip(arguments.model, names, strict=True):
        loaded = open_model(path, arguments)
        check_drawn(arguments, loaded)
        # Every pair is read with its own target and with that of another pair.
        with progress_bar(total=2 * text.count, unit="pairs", description=name) as bar:
            one = analyze_model(
                loaded,
                text,
                name=name,
                gold=gold,
                weighting=arguments.weights,
                advance=bar.update,
            )
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


def check_drawn(arguments: argparse.Namespace, loaded: "LoadedModel") -> None:
    """Reject a layer or head to draw that a model does not have, before it is measured."""
    config = loaded.config.model
    layers = [] if arguments.layer is None else [arguments.layer]
    for option, numbers, count in (
        ("--layer", layers, config.decoder_layers),
        ("--heads", arguments.heads or [], config.heads),
    ):
        if wrong := [number for number in numbers if number >= count]:
            raise UserError(
                f"{option}: expected 0 to {count - 1} for {loaded.path}, got {wrong[0]}"
            )


def output_files(
    arguments: argparse.Namespace,
    analysis: "Analysis",
    text: "SentencePairs",
    measured: "Sequence[tuple[ModelAnalysis, Codec]]",
) -> "dict[str, Writer]":
    """The content of all files, by name."""
    from nmt.analysis.figures import all_pictures
    from nmt.analysis.report import build_report, pictured_heads
    from nmt.analysis.tables import all_tables, markdown
    from nmt.analysis.trajectories import learned_pictures, metrics_of, read_trajectories
    from nmt.storage.directories import bytes_writer, json_writer

    tables = all_tables(analysis)
    heads = pictured_heads(
        measured, sentence=arguments.sentence, layer=arguments.layer, heads=arguments.heads
    )
    trajectories = {
        model.name: read_trajectories(metrics_of(path))
        for model, path in zip(analysis.models, arguments.model, strict=True)
    }
    pictures = [
        *all_pictures(analysis, heads, pdf=arguments.pdf),
        *learned_pictures(analysis, trajectories, pdf=arguments.pdf),
    ]
    texts = {place: pair[0] for place, pair in enumerate(text.read()) if place in text.shown}
    report = build_report(
        analysis, texts=texts, measured=measured, tables=tables, pictures=pictures
    )
    if len(report) > LARGE_REPORT:
        logger.warning(
            "report.html has %.0f MB and may open slowly; give a lower --sentences",
            len(report) / 1e6,
        )
    return {
        "analysis.json": json_writer(analysis.document()),
        "tables.md": bytes_writer(markdown(analysis, tables).encode()),
        "report.html": bytes_writer(report),
        **{name: bytes_writer(content) for one in pictures for name, content in one.files()},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run nmt-analyze; returns the exit code."""
    return console.run(build_parser(), analyze, argv)


if __name__ == "__main__":
    sys.exit(main())
