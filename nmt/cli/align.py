"""nmt-align: word alignments from cross-attention, and their error rate against gold links."""

import argparse
import itertools
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from nmt.analysis.symmetrization import SYMMETRIZATIONS
from nmt.cli import console
from nmt.cli.arguments import (
    add_choice,
    add_flag,
    add_number,
    add_on_bad_line,
    add_outside_kinds,
    add_path,
    check_needs,
    check_outputs,
    new_parser,
    whole_number,
)
from nmt.cli.pair_arguments import (
    MODEL_HELP,
    NEED_GOLD,
    add_gold,
    add_reading,
    add_weights,
    open_model,
    read_gold,
)
from nmt.data.text import BAD_LINES, LineWriter, read_lines, read_text
from nmt.errors import UserError
from nmt.languages import TWO_LETTERS, moses_language
from nmt.tables import Table

if TYPE_CHECKING:
    from nmt.analysis.aligner import Aligner
    from nmt.analysis.gold import AlignmentCounts, Gold
    from nmt.analysis.pairs import ReadLine
    from nmt.decoding.alignment import AlignmentHead, Links
    from nmt.decoding.failures import LineFailures

logger = logging.getLogger("nmt.cli.align")

SAMPLE_PAIRS = 1000  # on which a head is chosen when there is no gold
FEW_PAIRS = 50  # the choice is unreliable on fewer pairs

DESCRIPTION = """\
Align the words of sentence pairs with the cross-attention of a model that reads both sides. The
output has one line per pair, such as `0-0 1-2`: source word first, words (separated by spaces)
counted from 0. Each target word is linked to the source word with the largest weight, or to none if
it attends to no word."""

EPILOG = """\
The attention to use: --layer without --head means the mean of the heads of that layer. Shifted
attention is that of the decoder step that reads a word, normal attention that of the step that
predicts it. Without --layer all layers, heads and steps are tried. With --gold the one with the
lowest alignment error rate is taken. Otherwise the one with the most informative links on the
first 1000 pairs is taken: those where a target word best predicts its source word in other
sentences. Standard error names the choice; repeat it with --layer and --head for other text.

examples:
  nmt-align --model runs/demo --source test.en --target test.de --output test.align
  nmt-align --model runs/demo --source test.en --translate-to test.translated.de
  nmt-align --model runs/demo --source a.en --target a.fr --gold a.gold --gold-index 1 \\
      --development 100
  nmt-align --model runs/en-de --reverse-model runs/de-en --symmetrize grow-diag-final \\
      --source test.en --target test.de --output test.align"""


def build_parser() -> console.Parser:
    """The arguments of nmt-align."""
    parser = new_parser("nmt-align", DESCRIPTION, EPILOG)
    add_input(parser)
    add_attention(parser)
    add_reverse(parser)
    add_gold(parser)
    return parser


def add_input(parser: console.Parser) -> None:
    """The text to read and the files to write."""
    group = parser.add_argument_group("input and output")
    add_path(group, "--model", MODEL_HELP, metavar="DIR", required=True)
    add_outside_kinds(group)
    add_path(group, "--source", "source text", required=True)
    target = group.add_mutually_exclusive_group(required=True)
    add_path(target, "--target", "translation of the source")
    meaning = "translate the source with the model, write the translation to FILE and align it"
    add_path(target, "--translate-to", meaning)
    meaning = "file for the links (default: standard output; with --json: no links are written)"
    add_path(group, "--output", meaning)
    add_flag(group, "--json", "print a report in JSON to standard output")
    add_reading(group, too_long="get an empty line, and a warning")
    add_on_bad_line(group)


def add_attention(parser: console.Parser) -> None:
    """The attention to take links from."""
    group = parser.add_argument_group("attention (default: the best)")
    add_layer_and_head(group, "", "decoder layer", "head of the layer")
    step = group.add_mutually_exclusive_group()
    for flag, shifted, meaning in (
        ("--shifted", True, "attention of the step that reads a word (default with --layer)"),
        ("--normal", False, "attention of the step that predicts a word"),
    ):
        step.add_argument(flag, dest="shifted", action="store_const", const=shifted, help=meaning)
    add_weights(group)


def add_layer_and_head(group: argparse._ArgumentGroup, prefix: str, layer: str, head: str) -> None:
    """The options --layer and --head of one model."""
    meaning = f"{layer}, counted from 0"
    add_number(group, f"--{prefix}layer", None, meaning, type=whole_number, metavar="L")
    meaning = f"{head}, counted from 0 (default: the mean of all heads)"
    add_number(group, f"--{prefix}head", None, meaning, type=whole_number, metavar="H")


def add_reverse(parser: console.Parser) -> None:
    """The model of the other direction."""
    group = parser.add_argument_group("two directions")
    meaning = "model that translates target into source; the links of both directions are combined"
    add_path(group, "--reverse-model", meaning, metavar="DIR")
    add_layer_and_head(group, "reverse-", "layer of --reverse-model", "head of that layer")
    meaning = "how to combine the links of both directions"
    add_choice(group, "--symmetrize", tuple(SYMMETRIZATIONS), meaning)


def check_arguments(arguments: argparse.Namespace) -> None:
    """Reject options that do not belong together, before any work is done."""
    needs = {
        "--head": "--layer",
        "--reverse-head": "--reverse-layer",
        "--reverse-layer": "--reverse-model",
        "--symmetrize": "--reverse-model",
    }
    check_needs(arguments, needs | NEED_GOLD)
    if arguments.gold is not None and arguments.target is None:
        raise UserError("--gold: expected the annotated translation as --target")
    check_outputs(
        [arguments.output, arguments.translate_to],
        [arguments.source, arguments.target, arguments.gold, arguments.gold_possible],
    )


def align(arguments: argparse.Namespace) -> None:
    """Choose the attention, write the links and compare them with the gold ones."""
    check_arguments(arguments)
    from nmt.decoding.failures import LineFailures

    gold = read_gold(arguments)
    aligners = open_aligners(arguments)
    check_directions(aligners)
    wanted = [wanted_head(arguments, aligner) for aligner in aligners]
    if arguments.target is None:
        arguments.target = arguments.translate_to
        write_translations(arguments).check()
    report: dict[str, Any] = {"weights": arguments.weights, "directions": []}
    heads = []
    for aligner, head in zip(aligners, wanted, strict=True):
        chosen, details = choose_head(arguments, aligner, head, gold)
        heads.append(chosen)
        report["directions"].append(details)
    if len(aligners) == 2:
        report["symmetrization"] = arguments.symmetrize
    failures = LineFailures(str(arguments.source), "aligned")
    counts = write_links(arguments, aligners, heads, gold, failures)
    if gold is not None:
        report |= final_report(arguments, counts, num_pairs=len(gold.links))
    if arguments.json:
        print(json.dumps(report, indent=2))
    failures.check()
    console.tell_written(arguments.output)


def open_aligners(arguments: argparse.Namespace) -> "list[Aligner]":
    """The aligner of the model, and that of the reverse model if there is one."""
    from nmt.analysis.aligner import Aligner

    paths = {False: arguments.model, True: arguments.reverse_model}
    return [
        Aligner(
            open_model(path, arguments),
            reverse=reverse,
            batch_tokens=arguments.batch_tokens,
            max_length=arguments.max_length,
            weighting=arguments.weights,
        )
        for reverse, path in paths.items()
        if path is not None
    ]


def check_directions(aligners: "Sequence[Aligner]") -> None:
    """Reject a reverse model whose languages, as far as codes tell, are not those of the other."""
    for aligner, other in itertools.permutations(aligners, 2):
        data = aligner.loaded.config.data
        code, expected = data.source_language, other.loaded.config.data.target_language
        known = {moses_language(code), moses_language(expected)} & TWO_LETTERS
        if len(known) == 2:
            raise UserError(
                f"{aligner.loaded.path} translates from {code}, but {other.loaded.path} into "
                f"{expected}: --reverse-model needs a model of the other direction"
            )


def wanted_head(arguments: argparse.Namespace, aligner: "Aligner") -> "AlignmentHead | None":
    """The head that the options name, if any."""
    from nmt.decoding.alignment import AlignmentHead

    prefix = "reverse-" if aligner.reverse else ""
    layer = arguments.reverse_layer if aligner.reverse else arguments.layer
    head = arguments.reverse_head if aligner.reverse else arguments.head
    if layer is None:
        return None
    grid = aligner.grid
    for name, number, count in (("layer", layer, grid.layers), ("head", head, grid.heads)):
        if number is not None and number >= count:
            raise UserError(
                f"--{prefix}{name}: expected 0 to {count - 1} for this model, got {number}"
            )
    return AlignmentHead(layer, head, arguments.shifted is not False)


def write_translations(arguments: argparse.Namespace) -> "LineFailures":
    """Translate the source with the search settings of the model; returns lines that failed."""
    from nmt.decoding.lines import Outputs, translate_stream
    from nmt.decoding.streaming import open_lines
    from nmt.decoding.translator import Translator

    translator = Translator.load(
        arguments.model, device=arguments.device, precision=arguments.precision
    )
    with Outputs(arguments.translate_to) as outputs:
        return translate_stream(
            translator,
            translator.options,
            outputs,
            open_lines(arguments.source),
            on_bad_line=arguments.on_bad_line,
        )


def read_input(arguments: argparse.Namespace) -> "Iterator[tuple[ReadLine, ReadLine]]":
    """All pairs; a bad line is an error, or comes as such."""
    from nmt.analysis.pairs import read_side_by_side

    if arguments.on_bad_line == "error":
        return read_side_by_side(arguments.source, arguments.target, read_text)
    return read_side_by_side(arguments.source, arguments.target, read_lines)


def choose_head(
    arguments: argparse.Namespace,
    aligner: "Aligner",
    wanted: "AlignmentHead | None",
    gold: "Gold | None",
) -> "tuple[AlignmentHead, dict[str, Any]]":
    """The head to use, and for the report how it was chosen."""
    from nmt.analysis.alignment import describe_head
    from nmt.analysis.head_choice import best_choice

    details: dict[str, Any] = {"model": str(aligner.loaded.path), "reverse": aligner.reverse}
    chosen = wanted
    how = "as given"
    if gold is not None:
        comparison = aligner.evaluate(read_input(arguments), gold)
        details["aer"] = comparison.table()
        log_table(details["aer"])
        if chosen is None:
            rates = comparison.choosing.error_rates()
            chosen = best_choice(aligner.grid, rates, shifted=arguments.shifted)
            how = f"lowest error rate on {comparison.choosing.pairs} gold pairs"
    elif chosen is None:
        sample = itertools.islice(read_input(arguments), SAMPLE_PAIRS)
        information = aligner.link_information(sample)
        chosen = best_choice(aligner.grid, information.costs(), shifted=arguments.shifted)
        how = f"most informative links on {len(information.targets)} pairs, without gold"
        if len(information.targets) < FEW_PAIRS:
            logger.warning("too few pairs to choose a head reliably; give --layer and --head")
    assert chosen is not None
    logger.info("%s: %s (%s)", aligner.loaded.path, describe_head(chosen), how)
    step = "shifted" if chosen.shifted else "normal"
    details |= {"layer": chosen.layer, "head": chosen.head, "step": step, "chosen": how}
    return chosen, details


def log_table(table: dict[str, Any]) -> None:
    """Log the AER by layer as a table."""
    rows = []
    for step, rates in table.items():
        for row in rates["layers"]:
            best = (f"{100 * row['best_head_aer']:.2f}", str(row["best_head"]))
            name = f"{step} layer {row['layer']}"
            rows.append([name, f"{100 * row['layer_attention']:.2f}", *best])
        means = (f"{100 * rates[mean]:.2f}" for mean in ("AoL", "AoH"))
        rows.append([f"{step} mean", *means, ""])
    columns = ["alignment error rate", "layer attention", "best head", "head"]
    logger.info("%s", Table(columns, rows).text())


def write_links(
    arguments: argparse.Namespace,
    aligners: "Sequence[Aligner]",
    heads: "Sequence[AlignmentHead]",
    gold: "Gold | None",
    failures: "LineFailures",
) -> "AlignmentCounts":
    """Write the links of all pairs; returns the counts of those outside the development part."""
    from nmt.analysis.aligner import Unusable
    from nmt.analysis.alignment import format_links
    from nmt.analysis.gold import AlignmentCounts, count_links
    from nmt.decoding.translation import Failure
    from nmt.progress import progress_bar

    streams = [
        aligner.links(read_input(arguments), head)
        for aligner, head in zip(aligners, heads, strict=True)
    ]
    counts = AlignmentCounts()
    skipped = 0
    wanted = arguments.output is not None or not arguments.json
    with (
        LineWriter(arguments.output) if wanted else nullcontext() as writer,
        progress_bar(total=None, unit="pairs", description="aligning") as bar,
    ):
        for index, sides in enumerate(zip(*streams, strict=True)):
            problems = [side.reason for side in sides if isinstance(side, Unusable)]
            if Failure.NON_FINITE in problems:
                failures.add(index + 1, Failure.NON_FINITE)
            elif problems and problems[0] in BAD_LINES:
                place = f"{arguments.source} and {arguments.target}, line {index + 1}"
                failures.add(index + 1, Failure.UNREADABLE, f"{place}: {problems[0]}")
            elif problems:
                skipped += 1
            found = [side for side in sides if not isinstance(side, Unusable)]
            links = () if problems else combine(found, arguments.symmetrize)
            if writer:
                writer.write(format_links(links))
            if gold is not None and index >= gold.development:
                counts += count_links(links, gold.links[index])
            bar.update(1)
    if skipped:
        logger.warning(
            "%d pairs have more than %d subwords on a side and got an empty line; see --max-length",
            skipped,
            arguments.max_length,
        )
    return counts


def combine(directions: "Sequence[Links]", method: str) -> "Links":
    """The links of one direction, or those of both combined."""
    return directions[0] if len(directions) == 1 else SYMMETRIZATIONS[method](*directions)


def final_report(
    arguments: argparse.Namespace, counts: "AlignmentCounts", *, num_pairs: int
) -> dict[str, Any]:
    """Precision, recall and AER of the links that were written."""
    num_pairs -= arguments.development or 0
    logger.info(
        "precision %.2f  recall %.2f  AER %.2f  (%d pairs, %d links)",
        100 * counts.precision,
        100 * counts.recall,
        100 * counts.error_rate,
        num_pairs,
        counts.links,
    )
    if arguments.layer is None and arguments.development is None:
        logger.info("the head was chosen on the pairs that it is scored on; see --development")
    return {
        "pairs": num_pairs,
        "links": counts.links,
        "precision": counts.precision,
        "recall": counts.recall,
        "aer": counts.error_rate,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run nmt-align; returns the exit code."""
    return console.run(build_parser(), align, argv)


if __name__ == "__main__":
    sys.exit(main())
