"""nmt-check-kind: does an attention kind do what every kind promises?"""

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nmt.cli import console
from nmt.cli.arguments import COMMAND_LINE
from nmt.errors import ConfigError, UserError

if TYPE_CHECKING:
    from nmt.config.config import AttentionConfig

FAILED = 1  # the exit code where a check fails


def build_parser() -> console.SettingsParser:
    """The arguments of nmt-check-kind."""
    parser = console.SettingsParser(
        prog="nmt-check-kind",
        description="Check an attention kind, of nmt or from outside: hidden keys and empty rows, "
        "weights, gradients,\nimplementations, scores of any size, half precision, decoding with "
        "the cache and by the engine in C, a\nresumed run, and a toy task that a small model has "
        "to learn. Takes half a minute and leaves no files behind.",
        epilog="examples:\n"
        "  nmt-check-kind my_package:my_kind\n"
        "  nmt-check-kind entmax alpha=1.3\n\n"
        "Exit codes: 0 all checks passed; 1 a check failed; 2 there is no such kind, or an option "
        "is wrong.",
    )
    meaning = "module:name of an AttentionKind, or the name of a kind"
    parser.add_argument("kind", metavar="MODULE:NAME", help=meaning)
    meaning = "an option of the kind; required ones have to be given"
    parser.add_argument("options", nargs="*", metavar="option=value", help=meaning)
    return parser


def read_attention(kind: str, settings: Sequence[str]) -> "AttentionConfig":
    """The kind with its options, checked as in a config."""
    from nmt.config.attention_kinds import ALIASES, ATTENTION_KINDS
    from nmt.config.checks import check_attention
    from nmt.config.config import AttentionConfig
    from nmt.config.document import Scalar
    from nmt.config.outside_kinds import load_kind, load_offered
    from nmt.config.scalars import MismatchError, read_scalar

    if ":" in kind:
        kind = load_kind(kind)
    elif not load_offered([kind]):
        known = ", ".join(ATTENTION_KINDS)
        raise UserError(f"{kind}: expected module:name, or one of {known}")
    kind = ALIASES.get(kind, kind)
    offered = ATTENTION_KINDS[kind].options
    given = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or name not in offered:
            expected = ", ".join(f"{each}=value" for each in offered) or "no options"
            raise ConfigError(f"{kind}: expected {expected}, got {setting!r}")
        try:
            given[name] = read_scalar(Scalar(COMMAND_LINE, text), offered[name].type)
        except MismatchError as error:
            raise ConfigError(f"{kind}: {name}: {error}") from None
    attention = AttentionConfig(kind, **given)
    for finding in check_attention(attention, kind):
        raise ConfigError(f"{finding.message}; write {kind} option=value")
    return attention


def check(arguments: argparse.Namespace) -> int:
    """Run all checks, and print a line per check as it ends."""
    attention = read_attention(arguments.kind, arguments.options)
    from nmt.doctor.kind_checks import check_kind

    logging.getLogger("nmt").setLevel(logging.ERROR)  # of the runs that are made
    print(f"attention kind {attention}", flush=True)
    failed = 0
    for found in check_kind(attention):
        failed += not found.passed
        word = "passed" if found.passed else "FAILED"
        print(f"  {word}  {found.name:22}  {found.seconds:5.1f} s  {found.note}", flush=True)
    print(f"{failed} checks failed" if failed else "all checks passed")
    return FAILED if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run nmt-check-kind; returns the exit code."""
    return console.run(build_parser(), check, argv)


if __name__ == "__main__":
    sys.exit(main())
