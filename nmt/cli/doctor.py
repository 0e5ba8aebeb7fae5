"""nmt-doctor: machine and installation, what computes each operation, whether it works."""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.cli import console
from nmt.cli.arguments import positive
from nmt.errors import ConfigError, missing_package

if TYPE_CHECKING:
    from nmt.doctor.examination import Examination
    from nmt.doctor.installation import TorchlessExamination

PROBLEM = 1  # the exit code where something does not work


def build_parser() -> console.Parser:
    """The arguments of nmt-doctor."""
    parser = console.Parser(
        prog="nmt-doctor",
        description="Examine this installation: machine, versions and devices; which build of the "
        "kernels in C is loaded; for every operation and device which implementation runs, and "
        "why the others do not; a smoke test of training with every attention kind and of "
        "translation. Takes a few seconds and leaves no files behind.",
        epilog="Exit codes: 0 all is well (a warning costs speed, or says that only packed models "
        "can be translated, because torch is not installed); 1 a problem was found, with one line "
        "per problem at the end of the report; 2 NMT_BACKEND or NMT_NATIVE has a value that means "
        "nothing.",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--plan",
        type=positive,
        metavar="N_GPUS",
        help="examine nothing, but calculate tokens per second and hours of a training on 1 to "
        "N_GPUS GPUs (at most 1024), and from where on more GPUs stop helping",
    )
    parser.add_argument(
        "--gpu", metavar="NAME", help="with --plan: a100, h100, 4090, ... (default: that of here)"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="with --plan: the config of the run (default: Transformer-base as in the paper)",
    )
    return parser


def doctor(arguments: argparse.Namespace) -> int:
    """Examine, and print the report."""
    if arguments.plan is not None:
        return plan(arguments)
    for name in ("gpu", "config"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--{name} is for --plan N_GPUS")

    from nmt.doctor.report import report

    logging.getLogger("nmt").setLevel(logging.ERROR)  # the report has all that would be logged
    found = examine()
    print(json.dumps(asdict(found), indent=2) if arguments.json else report(found))
    return PROBLEM if found.problems else 0


def examine() -> "Examination | TorchlessExamination":
    """Examine everything, or where there is no torch, what packed models need."""
    try:
        from nmt.doctor.examination import examine
    except ModuleNotFoundError as error:
        from nmt.doctor.installation import examine_without_torch

        return examine_without_torch(str(missing_package(error)))
    return examine()


def plan(arguments: argparse.Namespace) -> int:
    """Calculate, and print the plan."""
    from nmt.config.loading import load_config
    from nmt.doctor.compute import find_devices
    from nmt.doctor.plan import MAX_GPUS, choose_gpu, describe_plan, make_plan, work_of

    if arguments.plan > MAX_GPUS:
        raise ConfigError(f"--plan {arguments.plan}: expected at most {MAX_GPUS} GPUs")
    models = [device.model for device in find_devices() if device.name.startswith("cuda")]
    gpu = choose_gpu(arguments.gpu, models[0] if models else None)
    config = None if arguments.config is None else load_config(arguments.config)
    found = make_plan(arguments.plan, gpu, work_of(config))
    print(json.dumps(asdict(found), indent=2) if arguments.json else describe_plan(found))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run nmt-doctor; returns the exit code."""
    return console.run(build_parser(), doctor, argv)


if __name__ == "__main__":
    sys.exit(main())
