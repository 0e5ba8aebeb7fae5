"""nmt-doctor: machine and installation, what computes each operation, whether it works."""

import argparse
import json
import logging
import sys
from collections.abc import Sequence

from nmt.cli import console

PROBLEM = 1  # the exit code where something does not work


def build_parser() -> console.Parser:
    """The arguments of nmt-doctor."""
    parser = console.Parser(
        prog="nmt-doctor",
        description="Examine this installation: machine, versions and devices; which build of the "
        "kernels in C is loaded; for every operation and device which implementation runs, and "
        "why the others do not; a smoke test of training with every attention kind and of "
        "translation. Takes a few seconds and leaves no files behind.",
        epilog="Exit codes: 0 all is well (a warning costs speed, not more); 1 a problem was "
        "found, with one line per problem at the end of the report; 2 NMT_BACKEND or NMT_NATIVE "
        "has a value that means nothing.",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


def doctor(arguments: argparse.Namespace) -> int:
    """Examine, and print the report."""
    from dataclasses import asdict

    from nmt.doctor.examination import examine
    from nmt.doctor.report import report

    logging.getLogger("nmt").setLevel(logging.ERROR)  # the report has all that would be logged
    found = examine()
    print(json.dumps(asdict(found), indent=2) if arguments.json else report(found))
    return PROBLEM if found.problems else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run nmt-doctor; returns the exit code."""
    return console.run(build_parser(), doctor, argv)


if __name__ == "__main__":
    sys.exit(main())
