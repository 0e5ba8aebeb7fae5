"""The arguments of nmt-align, and which of them go together."""

import argparse
from pathlib import Path

from nmt.analysis.symmetrization import SYMMETRIZATIONS
from nmt.cli import console
from nmt.cli.arguments import batch_tokens, check_outputs, length, positive, whole_number
from nmt.errors import UserError

DESCRIPTION = """\
Word alignments of sentence pairs, from the cross-attention of a model that reads both sides: one
line a pair, `0-0 1-2`, source word first, words (what blanks separate) counted from 0. Each target
word is linked to the source word with most weight, or to none if it attends to no word at all."""

EPILOG = """\
Which attention: --layer alone means the mean of the heads of that layer. Shifted attention is that
of the step that reads a word, normal attention that of the step that predicts it. Without --layer
every layer, head and step is tried: with --gold the one with the lowest alignment error rate is
taken, otherwise the one whose links, on the first 1000 pairs, tell most about words (a target word
predicts well which source word it is linked to, in other sentences too). Standard error says which
it is; give it as --layer and --head to have the same for other text.

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
    """Text in, links out."""
    group = parser.add_argument_group("input and output")
    group.add_argument(
        "--model", type=Path, required=True, metavar="DIR", help="a model or run directory"
    )
    group.add_argument("--source", type=Path, required=True, metavar="FILE", help="source text")
    target = group.add_mutually_exclusive_group(required=True)
    target.add_argument("--target", type=Path, metavar="FILE", help="its translation")
    target.add_argument(
        "--translate-to",
        type=Path,
        metavar="FILE",
        help="translate the source with the model, write the translation here and align it",
    )
    group.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="where the links go (default: standard output; with --json: nowhere)",
    )
    group.add_argument(
        "--json", action="store_true", help="print a report to standard output as JSON"
    )
    group.add_argument(
        "--max-length",
        type=length,
        default=512,
        metavar="N",
        help="pairs with more subwords on a side get an empty line, and a warning (default: 512)",
    )
    group.add_argument(
        "--batch-tokens",
        type=batch_tokens,
        default=2048,
        metavar="N",
        help="positions computed at a time; changes no link (default: 2048)",
    )
    group.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="(default: auto)"
    )


def add_choice(parser: console.Parser) -> None:
    """Which attention."""
    group = parser.add_argument_group("which attention (default: the best)")
    group.add_argument("--layer", type=whole_number, metavar="L", help="decoder layer, from 0")
    group.add_argument(
        "--head", type=whole_number, metavar="H", help="head of the layer, from 0 (default: mean)"
    )
    step = group.add_mutually_exclusive_group()
    step.add_argument(
        "--shifted",
        dest="shifted",
        action="store_true",
        default=None,
        help="the attention of the step that reads a word (default with --layer)",
    )
    step.add_argument(
        "--normal",
        dest="shifted",
        action="store_false",
        default=None,
        help="the attention of the step that predicts a word",
    )


def add_reverse(parser: console.Parser) -> None:
    """The other direction."""
    group = parser.add_argument_group("two directions")
    group.add_argument(
        "--reverse-model",
        type=Path,
        metavar="DIR",
        help="a model that translates target into source; both directions are combined",
    )
    group.add_argument("--reverse-layer", type=whole_number, metavar="L", help="its layer")
    group.add_argument("--reverse-head", type=whole_number, metavar="H", help="its head")
    group.add_argument(
        "--symmetrize",
        choices=tuple(SYMMETRIZATIONS),
        default="grow-diag-final",
        help="how (default: grow-diag-final)",
    )


def add_gold(parser: console.Parser) -> None:
    """What to compare with."""
    group = parser.add_argument_group("gold alignments")
    group.add_argument(
        "--gold",
        type=Path,
        metavar="FILE",
        help="links made by people, a line a pair: `i-j` sure, `ipj` possible; each head is "
        "compared with them",
    )
    group.add_argument(
        "--gold-possible", type=Path, metavar="FILE", help="further links, all of them possible"
    )
    group.add_argument(
        "--gold-order",
        choices=("source-target", "target-source"),
        default="source-target",
        help="which side a link names first (default: source-target)",
    )
    group.add_argument(
        "--gold-index",
        type=int,
        choices=(0, 1),
        default=0,
        help="the number of the first word (default: 0)",
    )
    group.add_argument(
        "--development",
        type=positive,
        metavar="N",
        help="choose the head on the first N pairs and report on the others (default: choose and "
        "report on all, which flatters the head)",
    )


def check_arguments(arguments: argparse.Namespace) -> None:
    """Complain of options that do not go together, before any work is done."""
    needs = (
        ("head", "layer"),
        ("reverse_head", "reverse_layer"),
        ("reverse_layer", "reverse_model"),
        ("gold_possible", "gold"),
        ("development", "gold"),
    )
    for name, other in needs:
        if getattr(arguments, name) is not None and getattr(arguments, other) is None:
            raise UserError(
                f"--{name.replace('_', '-')}: expected --{other.replace('_', '-')} with it"
            )
    if arguments.gold is not None and arguments.target is None:
        raise UserError("--gold: expected the annotated translation as --target")
    check_outputs(
        [arguments.output, arguments.translate_to],
        [arguments.source, arguments.target, arguments.gold, arguments.gold_possible],
    )
