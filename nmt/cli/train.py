"""nmt-train: train a model from a config, or resume its training."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial

from nmt.cli import console
from nmt.cli.arguments import add_config, add_flag
from nmt.training.signals import StopRequest

logger = logging.getLogger("nmt.cli.train")


def build_parser() -> console.SettingsParser:
    """The command line of nmt-train."""
    parser = console.SettingsParser(
        prog="nmt-train",
        description="Train a translation model. The data is prepared first if that has not been "
        "done. The same\ncommand resumes a run that was stopped or killed, exactly where it was.",
        epilog="examples:\n"
        "  nmt-train --config quickstart\n"
        "  nmt-train --config my.yaml --plan\n"
        "  nmt-train --config configs/demo/rela-g-cross.yaml\n"
        "  nmt-train --config my.yaml train.max_updates=2000 model.attention.cross=rela-g\n"
        "  torchrun --nproc-per-node=8 -m nmt.cli.train --config my.yaml\n\n"
        "Ctrl-C and SIGTERM save a checkpoint of the current update and stop (exit 130, 143).\n"
        "SIGUSR1 does the same and exits 0, for schedulers that queue the job again.\n"
        "Other exit codes: 2 bad input or config, 3 no usable checkpoint, 4 storage (a file could\n"
        "not be written three times in a row, or at the end), 5 run directory in use, 6 diverged,\n"
        "7 damaged data. torchrun turns all of them into 1; the status in result.json of the run\n"
        "directory is finished, stopped, diverged or failed.",
    )
    add_config(parser, example="train.max_updates=2000")
    meaning = "print the config with all defaults and overrides to standard output, and exit"
    add_flag(parser, "--print-config", meaning)
    meaning = (
        "train nothing: print what the config leads to (data, parameters, memory, epochs, time by "
        "a measured second of training) and warn of settings that do not fit the data"
    )
    add_flag(parser, "--plan", meaning)
    return parser


def train(arguments: argparse.Namespace, *, until_exit: bool) -> int:
    """Run the command; `until_exit` says that nothing else follows in this process."""
    if arguments.print_config or arguments.plan:
        return show(arguments)
    with StopRequest(until_exit=until_exit) as stop:
        return run(arguments, stop)


def show(arguments: argparse.Namespace) -> int:
    """Print the config or the plan."""
    from nmt.config.loading import dump_config, load_config

    config = load_config(arguments.config, arguments.overrides)
    if arguments.print_config:
        sys.stdout.write(dump_config(config))
    else:
        from nmt.training.plan import make_plan

        print(make_plan(config))
    return 0


def run(arguments: argparse.Namespace, stop: StopRequest) -> int:
    """Load the config, and train. Signals count from here on, while torch is imported, too."""
    from nmt.config.loading import load_config

    config = load_config(arguments.config, arguments.overrides)
    is_main = os.environ.get("RANK", "0") == "0"
    if is_main:
        from nmt.storage.lock import check_free

        check_free(config.run_dir)  # before torch is imported, which takes seconds
        logger.info("run directory: %s", console.shown(config.run_dir))
    from nmt.analysis.inspection import inspect_attention
    from nmt.training.result import read_result
    from nmt.training.run import train

    code = train(config, stop, inspect=inspect_attention)
    if is_main and read_result(config.run_dir).get("status") == "finished":
        run_dir = console.shown(config.run_dir)
        logger.info("the model is in %s", run_dir)
        kinds = ["--kinds", *config.kinds] if config.kinds else []
        files = ["--input", "FILE", "--output", "FILE"]
        console.suggest("nmt-translate", "--model", run_dir, *kinds, *files)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run nmt-train; returns the exit code."""
    command = partial(train, until_exit=argv is None)
    return console.run(build_parser(), command, argv)


if __name__ == "__main__":
    sys.exit(main())
