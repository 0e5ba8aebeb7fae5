"""nmt-average-checkpoints: the mean of the last checkpoints of a run, as a model of its own."""

import argparse
import itertools
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from nmt.checkpoint.store import CheckpointStore
from nmt.cli import console
from nmt.cli.arguments import add_number, add_outside_kinds, add_path, check_unsealed
from nmt.errors import IntegrityError, NoCheckpointError, UserError
from nmt.storage.manifest import SealedDirectory

logger = logging.getLogger("nmt.cli.average_checkpoints")

LAST = 5  # checkpoints that are averaged by default
SELECTION_ATTEMPTS = 10  # to find checkpoints of a run in progress that stay long enough


def build_parser() -> console.Parser:
    """The arguments of the command."""
    parser = console.Parser(
        prog="nmt-average-checkpoints",
        description="Average the weights of several checkpoints; the result is a model directory "
        "that nmt-translate takes, and that records what went into it. With --run it is measured "
        "on the validation set of the run, and nmt-translate --model RUN takes the better one of "
        "best and average. nmt-train does the same at the end of a run.",
        epilog="Exit codes: 0 done, 2 bad input or different models, 3 no checkpoint, 4 storage, "
        "6 a weight is not finite, 7 a damaged file.",
    )
    inputs = parser.add_mutually_exclusive_group(required=True)
    add_path(inputs, "--run", "average the last checkpoints of this run", metavar="DIR")
    add_path(inputs, "--checkpoints", "average these model directories", metavar="DIR", nargs="+")
    add_outside_kinds(parser)
    meaning = (
        "with --run: how many checkpoints, counted from the newest (default: up to "
        f"{LAST} that lie close together)"
    )
    add_number(parser, "--last", None, meaning)
    meaning = (
        "where the model is written (default with --run: average in the run directory, where "
        "nmt-translate --model RUN finds it); an earlier average is replaced"
    )
    add_path(parser, "--output", meaning, metavar="DIR")
    return parser


def average(arguments: argparse.Namespace) -> None:
    """Choose and check the checkpoints, average them and write the result."""
    paths, output = choose(arguments)
    for _ in range(SELECTION_ATTEMPTS):
        check_output(output, paths)
        try:
            write_average(paths, output, run=arguments.run)
            break
        except (IntegrityError, NoCheckpointError):
            # A run in progress deletes its oldest checkpoint whenever it saves a new one.
            if arguments.run is None or all(path.is_dir() for path in paths):
                raise
        logger.info("%s: a checkpoint was deleted by the run; choosing again", arguments.run)
        paths, output = choose(arguments)
    else:
        raise UserError(f"{arguments.run}: saves too fast to be averaged; use fewer with --last")
    names = ", ".join(path.name for path in paths)
    logger.info("%s: the average of %d (%s)", output, len(paths), names)
    if arguments.run is not None:
        report_score(output, arguments.run)
    at_home = arguments.run is not None and output == (arguments.run / "average").absolute()
    model = console.shown(arguments.run if at_home else output)
    console.suggest("nmt-translate", "--model", model, "--input", "FILE", "--output", "FILE")


def report_score(output: Path, run: Path) -> None:
    """Say whether the average is better than `best`, as far as both have been measured."""
    from nmt.checkpoint.selection import validation_score
    from nmt.training.averaging import compare

    score, best = validation_score(output), validation_score(run / "best")
    if score is not None:
        same = best is not None and best.comparable(score)
        other = best.value if best is not None and same else None
        logger.info("%s", compare(score.value, other, metric=score.metric))


def write_average(paths: Sequence[Path], output: Path, *, run: Path | None) -> None:
    """Average and write; nothing is changed in the place of the output before all is there.

    The average of a run is measured on its validation set.
    """
    from nmt.checkpoint.average import average_checkpoints
    from nmt.storage.directories import recover, replace_directory
    from nmt.training.averaging import measure_of_run

    measure = None if run is None else measure_of_run(run, paths)
    files = average_checkpoints(paths, measure=measure)
    recover(output.parent, name=output.name, exclusive=False)
    replace_directory(output, files)


def choose(arguments: argparse.Namespace) -> tuple[list[Path], Path]:
    """The directories to average, and where to."""
    last, output = arguments.last, arguments.output
    if arguments.checkpoints is not None:
        if last is not None:
            raise UserError("--last goes with --run; with --checkpoints all of them are averaged")
        if output is None:
            raise UserError("--checkpoints needs --output DIR")
        paths = arguments.checkpoints
        for path in paths:
            check_model(path)
        if len({path.resolve() for path in paths}) < len(paths):
            logger.warning("a checkpoint is named more than once and counts that often")
    else:
        paths = last_of_run(arguments.run, last)
        output = output or arguments.run / "average"
    return paths, Path(os.path.abspath(output))


def check_model(path: Path) -> None:
    """Reject a run directory and a packed model, which are not to be averaged."""
    from nmt.checkpoint.selection import find_model

    if find_model(path) != path:
        raise UserError(f"--checkpoints {path}: is a run directory; average it with --run {path}")


def last_of_run(run: Path, count: int | None) -> list[Path]:
    """The newest `count` good checkpoints of a run that were saved on schedule or at its end.

    Without a count these are at most five that lie close together. Those saved because of a signal
    are left out, so that interruptions do not change the average; where there are no others, the
    newest one is taken.
    """
    from nmt.checkpoint.cadence import close_steps, regular_steps

    store = CheckpointStore(run)
    if count is None:
        steps = close_steps(store, LAST)
    else:
        steps = list(itertools.islice(regular_steps(store), count))
    steps = steps or list(itertools.islice(store.good_steps(), 1))
    if not steps:
        raise NoCheckpointError(f"{store.directory}: expected checkpoints, found no good one")
    if count is not None and len(steps) < count:
        logger.warning("%s: %d checkpoints asked for, %d found", run, count, len(steps))
    for step in store.good_steps():
        if step > min(steps) and step not in steps:
            name = store.path(step).name
            logger.info("%s is not averaged: the run was stopped when it was saved", name)
    return [store.path(step) for step in steps]


def check_output(output: Path, inputs: Sequence[Path]) -> None:
    """Never write over an input, into a model, or over anything but an earlier average."""
    for path in inputs:
        if output.resolve() == path.resolve():
            raise UserError(f"--output {output}: is one of the inputs; choose another directory")
    check_unsealed(output)
    if not os.path.lexists(output):
        return
    if not output.is_dir() or output.is_symlink():
        raise UserError(f"--output {output}: exists and is not a directory")
    if any(output.iterdir()) and not is_average(output):
        raise UserError(
            f"--output {output}: exists and is no average; remove it or choose another directory"
        )


def is_average(path: Path) -> bool:
    """Whether a directory was written by this command."""
    try:
        return "average_of" in SealedDirectory(path).read_json("state.json")
    except (IntegrityError, NoCheckpointError):
        return False


def main(argv: Sequence[str] | None = None) -> int:
    """Run nmt-average-checkpoints; returns the exit code."""
    return console.run(build_parser(), average, argv)


if __name__ == "__main__":
    sys.exit(main())
