"""The part of nmt-filter that needs no model: rules of length, ratio, script and duplicates."""

import argparse
import logging

from nmt.cli import console
from nmt.cli.arguments import (
    add_choice,
    add_flag,
    add_number,
    check_outputs,
    check_without,
    reader,
)
from nmt.config.limits import NonNegativeFloat
from nmt.errors import UserError

logger = logging.getLogger("nmt.cli.filter")

WRITING_SYSTEMS = ("any", "latin", "han")
RULES = (
    *("--min-words", "--max-words", "--max-ratio", "--source-script", "--target-script"),
    "--keep-duplicates",
)
WITH_MODEL = (
    *("--model", "--kinds", "--max-length", "--batch-tokens", "--device", "--precision", "--ray"),
    *("--output", "--keep-best", "--rank-by", "--labels", "--clean-label", "--json"),
)


def add_cleaning(parser: argparse.ArgumentParser) -> None:
    """The options of cleaning."""
    group = parser.add_argument_group("cleaning, without a model")
    meaning = "write the pairs that the rules below allow to --keep-source and --keep-target"
    add_flag(group, "--clean", meaning)
    add_number(group, "--min-words", 1, "words that the shorter side has at least")
    add_number(group, "--max-words", 250, "words that the longer side has at most")
    meaning = "words of the longer side divided by words of the shorter, at most; 0: any"
    add_number(group, "--max-ratio", 9.0, meaning, type=reader(NonNegativeFloat), metavar="R")
    add_choice(group, "--source-script", WRITING_SYSTEMS, "script of the source")
    add_choice(group, "--target-script", WRITING_SYSTEMS, "script of the target")
    add_flag(group, "--keep-duplicates", "keep pairs that have occurred before")


def clean_pairs(arguments: argparse.Namespace) -> None:
    """Write the pairs that are left, and log why the others are not."""
    check_without(arguments, "--clean uses no model and has no scores", WITH_MODEL)
    kept = arguments.keep_source, arguments.keep_target
    if None in kept:
        raise UserError("--clean needs --keep-source FILE and --keep-target FILE")
    check_outputs(kept, [arguments.source, arguments.target])
    from nmt.data.encoding import available_cores
    from nmt.recipes.cleaning import CleaningRules, Part, clean

    rules = CleaningRules(
        min_words=arguments.min_words,
        max_words=arguments.max_words,
        max_ratio=arguments.max_ratio,
        duplicates="keep" if arguments.keep_duplicates else "drop",
        source_script=arguments.source_script,
        target_script=arguments.target_script,
    )
    part = Part("text", arguments.source, arguments.target)
    # The languages matter only to rules of normalisation that are not offered here.
    report = clean([part], kept, rules, languages=("", ""), workers=available_cores())
    for reason, count in report.dropped.most_common():
        logger.info("%d pairs left out: %s", count, reason)
    logger.info("kept %d of %d pairs", report.kept, report.read)
    tell_kept(arguments)


def tell_kept(arguments: argparse.Namespace) -> None:
    """Name the files of the pairs that were kept, and the next command for them."""
    kept = arguments.keep_source, arguments.keep_target
    console.tell_written(*kept)
    source, target = map(console.shown, kept)
    settings = (f"data.train.source={source}", f"data.train.target={target}")
    console.suggest("nmt-train", "--config", "FILE", *settings)
