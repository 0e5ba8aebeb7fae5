"""nmt-train: train a model from a config; run again, it resumes."""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from nmt.cli import console
from nmt.training.signals import StopRequest


def build_parser() -> console.SettingsParser:
    """The command line of nmt-train."""
    parser = console.SettingsParser(
        prog="nmt-train",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train a translation model. Prepares the data if that has not been done; the "
        "same command\nresumes a run that was stopped or killed, exactly where it stood.",
        epilog="examples:\n"
        "  nmt-train --config configs/demo/rela-g-cross.yaml\n"
        "  nmt-train --config my.yaml train.max_updates=2000 model.attention.cross=rela-g\n"
        "  torchrun --nproc-per-node=8 -m nmt.cli.train --config my.yaml\n\n"
        "Ctrl-C and SIGTERM save the current update and stop (exit 130, 143); SIGUSR1 does the\n"
        "same and exits 0, for schedulers that queue the job again. Other exit codes: 2 bad input\n"
        "or config, 3 no usable checkpoint, 4 storage (after three failed writes of a file in a\n"
        "row, or when the last one failed), 5 run directory in use, 6 diverged, 7 damaged data.\n"
        "torchrun turns all of them into 1; result.json in the run directory tells how it ended:\n"
        "finished, stopped, diverged or failed.",
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="YAML file")
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the effective config with all defaults to standard output, and end",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="section.key=value",
        help="values that replace those of the file",
    )
    return parser


def train(arguments: argparse.Namespace, *, until_exit: bool) -> int:
    """Run the command; `until_exit`: nothing else follows in this process."""
    with StopRequest(until_exit=until_exit) as stop:
        return run(arguments, stop)


def run(arguments: argparse.Namespace, stop: StopRequest) -> int:
    """Load the config, and train. Signals count from here on, while torch is imported, too."""
    from nmt.config.loading import dump_config, load_config

    config = load_config(arguments.config, arguments.overrides)
    if arguments.print_config:
        sys.stdout.write(dump_config(config))
        return 0
    if os.environ.get("RANK", "0") == "0":
        from nmt.storage.lock import check_free

        check_free(config.run_dir)  # before torch is imported, which takes seconds
    from nmt.analysis.inspection import inspect_attention
    from nmt.training.run import train

    return train(config, stop, inspect=inspect_attention)


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point; the exit code."""
    command = partial(train, until_exit=argv is None)
    return console.run(build_parser(), command, argv)


if __name__ == "__main__":
    sys.exit(main())
