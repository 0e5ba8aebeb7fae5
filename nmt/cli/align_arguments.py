"""The arguments of nmt-align, and which of them belong together."""

import argparse
from pathlib import Path

from nmt.analysis.symmetrization import SYMMETRIZATIONS
from nmt.cli import console
from nmt.cli.arguments import check_outputs, whole_number
from nmt.cli.pair_arguments import MODEL, add_gold, add_reading, check_needs
from nmt.errors import UserError

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
    parser = console.Parser(
        prog="nmt-align",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_input(parser)
    add_choice(parser)
    add_reverse(parser)
    add_gold(parser)
    return parser


def add_input(parser: console.Parser) -> None:
    """The text to read and the files to write."""
    group = parser.add_argument_group("input and output")
    group.add_argument("--model", type=Path, required=True, metavar="DIR", help=MODEL)
    group.add_argument("--source", type=Path, required=True, metavar="FILE", help="source text")
    target = group.add_mutually_exclusive_group(required=True)
    target.add_argument("--target", type=Path, metavar="FILE", help="translation of the source")
    target.add_argument(
        "--translate-to",
        type=Path,
        metavar="FILE",
        help="translate the source with the model, write the translation to FILE and align it",
    )
    group.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="file for the links (default: standard output; with --json: no links are written)",
    )
    group.add_argument(
        "--json", action="store_true", help="print a report in JSON to standard output"
    )
    add_reading(group, too_long="get an empty line, and a warning")


def add_choice(parser: console.Parser) -> None:
    """The attention to take links from."""
    group = parser.add_argument_group("attention (default: the best)")
    group.add_argument(
        "--layer", type=whole_number, metavar="L", help="decoder layer, counted from 0"
    )
    group.add_argument(
        "--head",
        type=whole_number,
        metavar="H",
        help="head of the layer, counted from 0 (default: the mean of all heads)",
    )
    step = group.add_mutually_exclusive_group()
    step.add_argument(
        "--shifted",
        dest="shifted",
        action="store_true",
        default=None,
        help="attention of the step that reads a word (default with --layer)",
    )
    step.add_argument(
        "--normal",
        dest="shifted",
        action="store_false",
        default=None,
        help="attention of the step that predicts a word",
    )


def add_reverse(parser: console.Parser) -> None:
    """The model of the other direction."""
    group = parser.add_argument_group("two directions")
    group.add_argument(
        "--reverse-model",
        type=Path,
        metavar="DIR",
        help="model that translates target into source; the links of both directions are combined",
    )
    group.add_argument(
        "--reverse-layer", type=whole_number, metavar="L", help="layer of --reverse-model"
    )
    group.add_argument(
        "--reverse-head", type=whole_number, metavar="H", help="head of --reverse-model"
    )
    group.add_argument(
        "--symmetrize",
        choices=tuple(SYMMETRIZATIONS),
        default="grow-diag-final",
        help="how to combine the links of both directions (default: grow-diag-final)",
    )


def check_arguments(arguments: argparse.Namespace) -> None:
    """Reject options that do not belong together, before any work is done."""
    check_needs(
        arguments,
        ("head", "layer"),
        ("reverse_head", "reverse_layer"),
        ("reverse_layer", "reverse_model"),
    )
    if arguments.gold is not None and arguments.target is None:
        raise UserError("--gold: expected the annotated translation as --target")
    check_outputs(
        [arguments.output, arguments.translate_to],
        [arguments.source, arguments.target, arguments.gold, arguments.gold_possible],
    )
