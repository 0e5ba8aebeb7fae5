"""nmt-align: word alignments from cross-attention, and their error rate against gold links."""

import argparse
import itertools
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from nmt.analysis.symmetrization import SYMMETRIZATIONS, Links
from nmt.cli import console
from nmt.cli.align_arguments import build_parser, check_arguments
from nmt.cli.pair_arguments import open_model, read_gold
from nmt.data.text import BAD_LINES, LineWriter, read_lines, read_text
from nmt.errors import UserError
from nmt.tables import Table

if TYPE_CHECKING:
    from nmt.analysis.aligner import Aligner
    from nmt.analysis.gold import AlignmentCounts, Gold
    from nmt.analysis.pairs import Line
    from nmt.decoding.alignment import AlignmentHead
    from nmt.decoding.failures import LineFailures

logger = logging.getLogger("nmt.cli.align")

SAMPLE_PAIRS = 1000  # on which a head is chosen when there is no gold
FEW_PAIRS = 50  # the choice is unreliable on fewer pairs


def align(arguments: argparse.Namespace) -> None:
    """Choose the attention, write the links and compare them with the gold ones."""
    check_arguments(arguments)
    from nmt.decoding.failures import LineFailures

    gold = read_gold(arguments)
    aligners = open_aligners(arguments)
    wanted = [wanted_head(arguments, aligner) for aligner in aligners]
    if arguments.target is None:
        arguments.target = arguments.translate_to
        write_translations(arguments).check()
    report: dict[str, Any] = {"directions": []}
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
        )
        for reverse, path in paths.items()
        if path is not None
    ]


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


def read_input(arguments: argparse.Namespace) -> "Iterator[tuple[Line, Line]]":
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
        chosen = best_choice(aligner.grid, -information.scores(), shifted=arguments.shifted)
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
