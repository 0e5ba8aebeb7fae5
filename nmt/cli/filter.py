"""nmt-filter: scores of the pairs of a parallel corpus by a model, and the best pairs."""

import argparse
import json
import logging
import sys
from array import array
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.cli import console
from nmt.cli.arguments import (
    add_flag,
    add_number,
    add_outside_kinds,
    add_path,
    add_ray,
    check_needs,
    check_outputs,
    check_ray_device,
    new_parser,
    share,
)
from nmt.cli.cleaning import RULES, add_cleaning, clean_pairs, tell_kept
from nmt.cli.pair_arguments import MODEL_HELP, add_reading, open_model
from nmt.data.text import LineWriter, read_lines, read_text
from nmt.errors import DataError, UserError
from nmt.tables import Table

if TYPE_CHECKING:
    from nmt.analysis.filtering import PairScores, ScoreColumn, Values
    from nmt.checkpoint.model_directory import LoadedModel
    from nmt.decoding.failures import LineFailures

logger = logging.getLogger("nmt.cli.filter")

DESCRIPTION = """\
Score every pair of a parallel corpus with a model. The output is a table of tab-separated values
with a header line and one line per pair, in order. With --clean, no model is needed: pairs are kept
by rules of length, script and duplicates."""

EPILOG = """\
columns:
  null_rate          share of the target positions whose cross-attention weights are all 0, mean
                     over layers and heads (lower is better); always 0 for kinds whose weights sum
                     to 1, such as softmax
  null_rate_layer_N  the same for one decoder layer, counted from 0
  log_probability    log probability of the target given the source, per subword (higher is better)
  length_ratio       words of the shorter side divided by words of the longer one (higher is better)
  coverage           share of the source words that a target word attends to, mean over layers and
                     heads (higher is better); always 1 for softmax
  length_deviation   how unusual the lengths are (lower is better): log ratio of target to source
                     characters, as distance from the median of all pairs, divided by the typical
                     distance
  combined           log_probability minus length_deviation (higher is better): what the model says
                     of the words plus what all pairs say of the lengths. Pairs are ranked by it
  problem            the reason why a pair was not scored: a line that is blank, unreadable or too
                     long, or numbers that are not finite (exit code 6). Its scores are nan, it
                     ranks last and is never kept

examples:
  nmt-filter --clean --source web.en --target web.de --keep-source tidy.en --keep-target tidy.de
  nmt-filter --model runs/demo --source web.en --target web.de --output scores.tsv
  nmt-filter --model runs/demo --source web.en --target web.de --output scores.tsv \\
      --keep-best 0.8 --keep-source clean.en --keep-target clean.de
  nmt-filter --model runs/demo --source web.en --target web.de --output scores.tsv \\
      --labels web.labels --json

With --labels (one word per line, such as `clean` or `shuffled`) the area under the ROC curve says
how well each score separates the clean pairs from those of each other label: 1 is perfect, 0.5 is
chance."""


def build_parser() -> console.Parser:
    """The arguments of nmt-filter."""
    parser = new_parser("nmt-filter", DESCRIPTION, EPILOG)
    group = parser.add_argument_group("input and output")
    add_path(group, "--model", f"{MODEL_HELP} (not with --clean)", metavar="DIR")
    add_outside_kinds(group)
    add_path(group, "--source", "source text", required=True)
    add_path(group, "--target", "target text", required=True)
    meaning = "file for the scores (default: standard output; with --json: no table is written)"
    add_path(group, "--output", meaning)
    add_reading(group, too_long="are not scored")
    add_ray(group, "score a very large corpus")
    group = parser.add_argument_group("keeping the best")
    meaning = "share of the pairs to keep, e.g. 0.8"
    add_number(group, "--keep-best", None, meaning, type=share, metavar="SHARE")
    add_path(group, "--keep-source", "file for the kept source lines")
    add_path(group, "--keep-target", "file for the kept target lines")
    group.add_argument(
        "--rank-by",
        default="combined",
        metavar="COLUMN",
        help="column to rank the pairs by (default: combined)",
    )
    add_cleaning(parser)
    group = parser.add_argument_group("evaluation")
    add_path(group, "--labels", "labels of the pairs, one word per line")
    group.add_argument(
        "--clean-label",
        default="clean",
        metavar="WORD",
        help="label of the good pairs (default: clean)",
    )
    add_flag(group, "--json", "print a report in JSON to standard output")
    return parser


def check_arguments(arguments: argparse.Namespace) -> None:
    """Reject options that do not belong together, before any work is done."""
    if arguments.model is None:
        raise UserError("--model DIR is needed to score pairs (with --clean no model is)")
    needs = {"--rank-by": "--keep-best", "--clean-label": "--labels"}
    check_needs(arguments, needs | dict.fromkeys(RULES, "--clean"))
    kept = (arguments.keep_best, arguments.keep_source, arguments.keep_target)
    if any(part is not None for part in kept) and any(part is None for part in kept):
        raise UserError(
            "--keep-best, --keep-source and --keep-target belong together: give all or none"
        )
    check_outputs(
        [arguments.output, arguments.keep_source, arguments.keep_target],
        [arguments.source, arguments.target, arguments.labels],
    )
    if arguments.ray is not None:
        check_ray_device(arguments.device)


def filter_pairs(arguments: argparse.Namespace) -> None:
    """Score all pairs, report on labels and keep the best pairs; or clean without a model."""
    if arguments.clean:
        clean_pairs(arguments)
        return
    check_arguments(arguments)
    from nmt.analysis.filtering import score_columns
    from nmt.decoding.failures import LineFailures

    labels = None if arguments.labels is None else read_labels(arguments)
    # With --ray, this process only reads what the model is.
    device = arguments.device if arguments.ray is None else "cpu"
    loaded = open_model(arguments.model, arguments, device=device)
    columns = score_columns(loaded.config.model.decoder_layers)
    check_ranking(arguments, loaded, columns)
    failures = LineFailures(str(arguments.source), "scored", shown="their scores are nan")
    goodness, problems = score_corpus(arguments, loaded, columns, failures)
    count = len(goodness[arguments.rank_by])
    report: dict[str, Any] = {"pairs": count, "unscored": problems}
    for problem, number in problems.items():
        logger.warning("%d of %d pairs not scored: %s", number, count, problem)
    if labels is not None:
        report |= label_report(arguments, goodness, labels)
    if arguments.keep_best is not None:
        report["kept"] = keep_best(arguments, goodness[arguments.rank_by])
    if arguments.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    failures.check()
    console.tell_written(arguments.output)
    if arguments.keep_best is not None:
        tell_kept(arguments)


def check_ranking(
    arguments: argparse.Namespace, loaded: "LoadedModel", columns: Sequence["ScoreColumn"]
) -> None:
    """Say if all null rates are 0 with this model, and reject a ranking by them."""
    from nmt.analysis.measures import nullable_sites

    names = [column.name for column in columns]
    if arguments.rank_by not in names:
        raise UserError(f"--rank-by: expected one of {', '.join(names)}, got {arguments.rank_by!r}")
    layers = {site.layer for site in nullable_sites(loaded.model) if site.type == "cross"}
    if not layers:
        logger.info("all null rates are 0: the cross-attention weights of this model sum to 1")
    useful = {"null_rate": bool(layers)} | {
        f"null_rate_layer_{layer}": layer in layers
        for layer in range(loaded.config.model.decoder_layers)
    }
    if arguments.keep_best is not None and not useful.get(arguments.rank_by, True):
        raise UserError(
            f"--rank-by {arguments.rank_by}: it is 0 for every pair with this model, so it cannot "
            "rank them; leave --rank-by out, or give a model whose cross-attention is rela-g or "
            "rela-i"
        )


def read_labels(arguments: argparse.Namespace) -> list[str]:
    """The labels, one per pair; they must include that of clean pairs and others."""
    from nmt.analysis.pairs import read_side_by_side

    labels = [line.strip() for line in read_text(arguments.labels)]
    for number, label in enumerate(labels, start=1):
        if not label or " " in label or "\t" in label:
            raise DataError(f"{arguments.labels}:{number}: expected one word, got {label[:40]!r}")
    kinds = sorted(set(labels))
    if arguments.clean_label not in kinds or len(kinds) < 2:
        raise DataError(
            f"{arguments.labels}: expected the label {arguments.clean_label!r} and others, got "
            f"{', '.join(kinds[:10])}; --clean-label names the label of good pairs"
        )
    count = sum(1 for _ in read_side_by_side(arguments.source, arguments.target, read_lines))
    if len(labels) != count:
        raise DataError(
            f"{arguments.labels}: expected a label for each of {count} pairs, got {len(labels)}"
        )
    return labels


def score_corpus(
    arguments: argparse.Namespace,
    loaded: "LoadedModel",
    columns: Sequence["ScoreColumn"],
    failures: "LineFailures",
) -> tuple[dict[str, "Values"], Counter[str]]:
    """Write the table; returns the goodness of all pairs by column, and the counts of problems."""
    import numpy as np

    from nmt.analysis.filtering import length_deviations, with_deviations
    from nmt.analysis.pairs import read_side_by_side
    from nmt.decoding.translation import Failure
    from nmt.progress import progress_bar

    # A first pass over the text, which takes little time beside that of the model.
    deviations = length_deviations(
        read_side_by_side(arguments.source, arguments.target, read_lines)
    )
    goodness = {column.name: array("d") for column in columns}
    problems: Counter[str] = Counter()
    wanted = arguments.output is not None or not arguments.json
    with (
        LineWriter(arguments.output) if wanted else nullcontext() as writer,
        progress_bar(total=len(deviations), unit="pairs", description="scoring") as bar,
        closing(pair_scores(arguments, loaded)) as results,
    ):
        if writer:
            writer.write("\t".join([*goodness, "problem"]))
        complete = with_deviations(results, deviations, arguments.source)
        for number, scores in enumerate(complete, start=1):
            for column in columns:
                goodness[column.name].append(column.goodness(scores))
            if scores.problem:
                problems[str(scores.problem)] += 1
            if scores.problem == Failure.NON_FINITE:
                failures.add(number, Failure.NON_FINITE)
            if writer:
                values = (f"{column.value(scores):.6f}" for column in columns)
                writer.write("\t".join([*values, scores.problem]))
            bar.update(1)
    return {name: np.array(values) for name, values in goodness.items()}, problems


def pair_scores(
    arguments: argparse.Namespace, loaded: "LoadedModel"
) -> "Generator[PairScores, None, None]":
    """The scores of all pairs, in order, computed here or on a Ray cluster."""
    from nmt.analysis.filtering import scored_pairs
    from nmt.analysis.pairs import read_side_by_side

    if arguments.ray is None:
        yield from scored_pairs(
            loaded,
            read_side_by_side(arguments.source, arguments.target, read_lines),
            batch_tokens=arguments.batch_tokens,
            max_length=arguments.max_length,
        )
        return
    from nmt.analysis.ray_filtering import FilterJob
    from nmt.decoding.ray_cluster import find_workers, map_lines

    job = FilterJob(
        Path.cwd(),
        (arguments.source, arguments.target),
        loaded.path.absolute(),
        arguments.precision,
        arguments.batch_tokens,
        arguments.max_length,
    )
    yield from map_lines(job, arguments.ray, lambda: find_workers(arguments.device))


def label_report(
    arguments: argparse.Namespace, goodness: dict[str, "Values"], labels: Sequence[str]
) -> dict[str, Any]:
    """The areas under the ROC curve, which are also logged as a table."""
    from nmt.analysis.filtering import areas_by_label

    areas = areas_by_label(goodness, labels, clean_label=arguments.clean_label)
    counts = Counter(labels)
    kinds = list(next(iter(areas.values())))
    logger.info("area under the ROC curve, %d clean pairs against:", counts[arguments.clean_label])
    rows = [[name, *(f"{row[kind]:.4f}" for kind in kinds)] for name, row in areas.items()]
    logger.info("%s", Table(["score", *kinds], rows).text())
    return {"labels": dict(counts), "area_under_roc": areas}


def keep_best(arguments: argparse.Namespace, goodness: "Values") -> dict[str, Any]:
    """Write the pairs with the highest goodness, in order."""
    from nmt.analysis.filtering import best_pairs
    from nmt.analysis.pairs import read_side_by_side

    kept = best_pairs(goodness, arguments.keep_best)
    following = iter(kept.tolist())
    wanted = next(following, None)
    with LineWriter(arguments.keep_source) as source, LineWriter(arguments.keep_target) as target:
        pairs = read_side_by_side(arguments.source, arguments.target, read_lines)
        for index, sides in enumerate(pairs):
            if index == wanted:
                for writer, line in zip((source, target), sides, strict=True):
                    assert isinstance(line, str)
                    writer.write(line)
                wanted = next(following, None)
        if wanted is not None:
            raise DataError(f"{arguments.source}: became shorter while it was read")
    logger.info("kept %d of %d pairs by %s", len(kept), len(goodness), arguments.rank_by)
    return {"pairs": len(kept), "rank_by": arguments.rank_by}


def main(argv: Sequence[str] | None = None) -> int:
    """Run nmt-filter; returns the exit code."""
    return console.run(build_parser(), filter_pairs, argv)


if __name__ == "__main__":
    sys.exit(main())
