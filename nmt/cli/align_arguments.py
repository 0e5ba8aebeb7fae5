"""The arguments of nmt-align, and which of them belong together."""

import argparse

from nmt.analysis.symmetrization import SYMMETRIZATIONS
from nmt.cli import console
from nmt.cli.arguments import (
    add_choice,
    add_flag,
    add_number,
    add_on_bad_line,
    add_path,
    check_outputs,
    new_parser,
    whole_number,
)
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
    parser = new_parser("nmt-align", DESCRIPTION, EPILOG)
    add_input(parser)
    add_attention(parser)
    add_reverse(parser)
    add_gold(parser)
    return parser


def add_input(parser: console.Parser) -> None:
    """The text to read and the files to write."""
    group = parser.add_argument_group("input and output")
    add_path(group, "--model", MODEL, metavar="DIR", required=True)
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
