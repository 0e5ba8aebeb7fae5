"""nmt-score: scores of translations, with signatures that let others reproduce them."""

import argparse
import json
import logging
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmt import evaluation
from nmt.cli import console
from nmt.cli.arguments import add_flag, add_number, add_path, check_needs, new_parser
from nmt.data.text import read_text
from nmt.errors import DataError
from nmt.evaluation import Comparison
from nmt.languages import bleu_tokenizer
from nmt.tables import Table

logger = logging.getLogger(__name__)

DESCRIPTION = """\
Score translations against references with SacreBLEU: BLEU and chrF2 (higher is better) and TER
(lower is better), each with the signature that others need to reproduce it. Give raw, detokenised
text with one sentence per line; files may be compressed (.gz, .xz, .bz2)."""

EPILOG = """\
examples:
  nmt-score --hypothesis out.de --reference test.de
  nmt-score --hypothesis out.de --test-set wmt14/full --language-pair en-de
  nmt-score --hypothesis baseline.de new.de --reference test.de --paired
  nmt-score --hypothesis baseline.de new.de --reference test.de --paired ar --seed 7 --json
  nmt-score --hypothesis seed1.de seed2.de seed3.de --reference test.de --over-seeds
  nmt-score --hypothesis out.tok.de --reference test.tok.de --metrics --tokenized-bleu
  nmt-score --hypothesis out.tok.de --reference test.tok.de --metrics --tokenized-bleu \\
      --split-hyphens

Several files after --reference are several references per line. Test sets are read from the cache
of SacreBLEU, $SACREBLEU or ~/.sacrebleu; only --download uses the network. Scores go to standard
output and warnings to standard error. The exit code is 2 if the input cannot be scored."""


def build_parser() -> console.Parser:
    """The arguments of nmt-score."""
    parser = new_parser("nmt-score", DESCRIPTION, EPILOG)
    _add_input(parser)
    _add_metrics(parser)
    _add_comparison(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--width",
        type=int,
        choices=range(13),
        default=2,
        metavar="DIGITS",
        help="digits after the point in the table, 0 to 12 (default: 2)",
    )
    add_flag(group, "--json", "write one JSON object instead of a table")
    return parser


def _add_input(parser: console.Parser) -> None:
    group = parser.add_argument_group("input")
    meaning = "translations; several files are several systems, shown side by side"
    add_path(group, "--hypothesis", meaning, nargs="+", required=True)
    references = group.add_mutually_exclusive_group(required=True)
    meaning = "reference translations; several files are several references per line"
    add_path(references, "--reference", meaning, nargs="+")
    references.add_argument(
        "--test-set",
        metavar="NAME",
        help="SacreBLEU test set to take the references from, e.g. wmt14/full or multi30k/2016",
    )
    group.add_argument(
        "--language-pair",
        metavar="SRC-TGT",
        help="languages, e.g. en-de; needed with --test-set; decides --tokenize: zh for Chinese, "
        "char for languages without spaces",
    )
    add_flag(group, "--download", "let SacreBLEU download a test set that is not in its cache")


def _add_metrics(parser: console.Parser) -> None:
    group = parser.add_argument_group("metrics")
    group.add_argument(
        "--metrics",
        nargs="*",
        choices=evaluation.METRIC_NAMES,
        default=list(evaluation.METRIC_NAMES),
        help="SacreBLEU metrics (default: bleu chrf ter); --metrics without a name means none",
    )
    group.add_argument(
        "--tokenize",
        choices=evaluation.TOKENIZERS,
        help="SacreBLEU's tokenizer for BLEU (default: 13a, or zh when the target language is zh)",
    )
    for flag, meaning in (
        ("--tokenized-bleu", "add BLEU as multi-bleu.perl computes it, on the text as it is "
         "tokenised; not comparable with SacreBLEU's BLEU"),
        ("--split-hyphens", "before tokenised BLEU, split compounds on both sides as Stanford's "
         "release of WMT14 does: rich-text becomes rich ##AT##-##AT## text"),
        ("--lowercase", "ignore case in BLEU and chrF, as TER always does; tokenized BLEU ignores "
         "only that of A to Z, as multi-bleu.perl -lc does"),
    ):  # fmt: skip
        add_flag(group, flag, meaning)


def _add_comparison(parser: console.Parser) -> None:
    group = parser.add_argument_group("several systems")
    group.add_argument(
        "--paired",
        nargs="?",
        const="bs",
        choices=("bs", "ar"),
        help="test each system against the first one with paired bootstrap resampling (bs, the "
        "default) or approximate randomisation (ar)",
    )
    meaning = "number of bootstrap samples or randomisation trials (default: bs 1000, ar 10000)"
    add_number(group, "--samples", None, meaning)
    add_number(group, "--seed", evaluation.DEFAULT_SEED, "seed of the paired test, at least 1")
    meaning = (
        "the hypotheses are runs of one system with different seeds: add their mean and sample "
        "standard deviation"
    )
    add_flag(group, "--over-seeds", meaning)


def score(arguments: argparse.Namespace) -> None:
    """Read and check the text, score it and print the scores."""
    _check_arguments(arguments)
    reference_paths: list[Path] = arguments.reference or evaluation.official_references(
        arguments.test_set, arguments.language_pair, download=arguments.download
    )
    references = [_read(path) for path in reference_paths]
    systems = [_read(path) for path in arguments.hypothesis]
    first = reference_paths[0]
    for path, lines in zip(
        [*arguments.hypothesis, *reference_paths], [*systems, *references], strict=True
    ):
        if len(lines) != len(references[0]):
            raise DataError(
                f"expected equal numbers of lines, "
                f"got {len(lines)} in {path} and {len(references[0])} in {first}"
            )
        _warn_of_tokenized_text(path, lines, raw_expected=bool(arguments.metrics))
    rows = _score_systems(arguments, systems, references)
    for path, row in zip(arguments.hypothesis, rows, strict=True):
        _warn_of_zero(path, row)
    if arguments.json:
        result = _as_json(arguments, reference_paths, len(references[0]), rows)
        print(json.dumps(result, indent=2))
    else:
        print(_as_table(arguments, rows))
    sys.stdout.flush()


def _check_arguments(arguments: argparse.Namespace) -> None:
    if not arguments.metrics and not arguments.tokenized_bleu:
        raise DataError("nothing to compute: name --metrics, or give --tokenized-bleu")
    if arguments.split_hyphens and not arguments.tokenized_bleu:
        raise DataError("--split-hyphens is for tokenised BLEU: add --tokenized-bleu")
    pair = arguments.language_pair
    if arguments.test_set and not pair:
        raise DataError("--test-set needs --language-pair, e.g. --language-pair en-de")
    if pair and not all(pair.partition("-")):
        raise DataError(f"--language-pair: expected two languages such as en-de, got {pair}")
    if arguments.paired and arguments.over_seeds:
        raise DataError(
            "--paired compares different systems, --over-seeds averages one; give only one of them"
        )
    for option, given in (("--paired", arguments.paired), ("--over-seeds", arguments.over_seeds)):
        if given and len(arguments.hypothesis) < 2:
            raise DataError(f"{option} needs at least two --hypothesis files, got one")
    check_needs(arguments, dict.fromkeys(("--samples", "--seed"), "--paired"))
    if arguments.paired and not arguments.metrics:
        raise DataError("--paired tests SacreBLEU metrics: name at least one after --metrics")


def _read(path: Path) -> list[str]:
    lines = list(read_text(path))
    if not lines:
        raise DataError(f"expected one sentence per line, got an empty file: {path}")
    return lines


def _warn_of_tokenized_text(path: Path, lines: Sequence[str], *, raw_expected: bool) -> None:
    if not raw_expected:
        return
    for sign in evaluation.signs_of_tokenization(lines):
        logger.warning(
            "%s looks tokenised (%s): SacreBLEU's scores need raw text to be comparable", path, sign
        )


def _warn_of_zero(path: Path, row: Sequence[Comparison]) -> None:
    """Warn of a BLEU of 0, which even a perfect file has if its lines are too short."""
    for entry in row:
        if "precisions" in entry.score.details and entry.score.value == 0:
            logger.warning("%s of %s is 0: no 4-gram matches a reference", entry.score.name, path)


def _tokenizer(arguments: argparse.Namespace) -> str:
    """The tokenizer that was asked for, or that of the target language."""
    if arguments.tokenize:
        return str(arguments.tokenize)
    target = (arguments.language_pair or "").partition("-")[2]
    tokenizer = bleu_tokenizer(target)
    if tokenizer == "char":
        logger.warning("BLEU is that of characters for %s (--tokenize char)", target)
    return tokenizer


def _score_systems(
    arguments: argparse.Namespace,
    systems: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
) -> list[list[Comparison]]:
    """One row of scores per system; without --paired they have no p-values."""
    metrics = evaluation.Metrics(
        references,
        names=list(dict.fromkeys(arguments.metrics)),
        tokenize=_tokenizer(arguments),
        lowercase=arguments.lowercase,
    )
    if arguments.paired:
        logger.info("testing each system against %s ...", arguments.hypothesis[0])
        rows = metrics.compare(
            systems, test=arguments.paired, samples=arguments.samples, seed=arguments.seed
        )
    else:
        rows = [[Comparison(entry) for entry in metrics.score(system)] for system in systems]
    if arguments.tokenized_bleu:
        for row, system in zip(rows, systems, strict=True):
            value = evaluation.tokenized_bleu(
                system,
                references,
                lowercase=arguments.lowercase,
                hyphens="split" if arguments.split_hyphens else "as given",
            )
            row.append(Comparison(value))
    return rows


def _deviations(rows: Sequence[Sequence[Comparison]]) -> list[tuple[str, float, float]]:
    """(metric, mean, sample standard deviation) over the systems, per metric."""
    columns = zip(*rows, strict=True)
    return [
        (
            column[0].score.name,
            statistics.fmean(entry.score.value for entry in column),
            statistics.stdev(entry.score.value for entry in column),
        )
        for column in columns
    ]


def _as_json(
    arguments: argparse.Namespace,
    references: Sequence[Path],
    num_lines: int,
    rows: Sequence[Sequence[Comparison]],
) -> dict[str, Any]:
    result: dict[str, Any] = {
        "lines": num_lines,
        "references": [str(path) for path in references],
        "test_set": arguments.test_set,
        "language_pair": arguments.language_pair,
        "systems": [
            {
                "name": str(path),
                "scores": [_entry_as_json(entry, paired=arguments.paired) for entry in row],
            }
            for path, row in zip(arguments.hypothesis, rows, strict=True)
        ],
    }
    if arguments.paired:
        result["paired"] = {
            "test": arguments.paired,
            "baseline": str(arguments.hypothesis[0]),
            "samples": arguments.samples or evaluation.DEFAULT_SAMPLES[arguments.paired],
            "seed": arguments.seed,
        }
    if arguments.over_seeds:
        result["over_seeds"] = [
            {"metric": name, "runs": len(rows), "mean": mean, "deviation": deviation}
            for name, mean, deviation in _deviations(rows)
        ]
    return result


def _entry_as_json(entry: Comparison, *, paired: str | None) -> dict[str, Any]:
    result: dict[str, Any] = {
        "metric": entry.score.name,
        "value": entry.score.value,
        "signature": entry.score.signature,
        "details": dict(entry.score.details),
    }
    if paired and entry.score.name != evaluation.TOKENIZED_BLEU:
        result["p_value"] = entry.p_value
        if paired == "bs":
            result |= {"bootstrap_mean": entry.mean, "bootstrap_interval": entry.interval}
    return result


def _as_table(arguments: argparse.Namespace, rows: Sequence[Sequence[Comparison]]) -> str:
    """One line per metric for one system; one line per system, then signatures, for several."""
    width = arguments.width
    signatures = [[entry.score.name, entry.score.signature] for entry in rows[0]]
    if len(rows) == 1:
        lines = [
            [entry.score.name, f"{entry.score.value:.{width}f}", entry.score.signature]
            for entry in rows[0]
        ]
        return Table(["metric", "value", "signature"], lines, labels=3).text()
    table = [
        [str(path), *(_cell(entry, width) for entry in row)]
        for path, row in zip(arguments.hypothesis, rows, strict=True)
    ]
    if arguments.over_seeds:
        deviations = _deviations(rows)
        table.append(["mean", *(f"{mean:.{width}f}" for _, mean, _ in deviations)])
        table.append(["standard deviation", *(f"{spread:.{width}f}" for *_, spread in deviations)])
    columns = ["system", *(name for name, _ in signatures)]
    text = Table(columns, table, labels=len(columns)).text()
    text += "\n\n" + Table(["metric", "signature"], signatures, labels=2).text()
    if arguments.paired:
        text += "\n\np: against the first system; * p < 0.05"
    return text


def _cell(entry: Comparison, width: int) -> str:
    text = f"{entry.score.value:.{width}f}"
    if entry.p_value is None:
        return text
    return f"{text} (p={entry.p_value:.4f}{'*' if entry.p_value < 0.05 else ''})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run nmt-score; returns the exit code."""
    return console.run(build_parser(), score, argv)


if __name__ == "__main__":
    sys.exit(main())
