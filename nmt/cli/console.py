"""The edge of every command: arguments, logging, standard streams, errors to a line and a code.

One rule holds for streams that are closed or fail. Standard input that is closed cannot be read
(exit 2). Standard output that is closed or full is a storage error (exit 4), and one whose reader
went away (`| head -1`) ends the command with 0. Messages are best effort: when standard error is
closed, full or broken, the command does its work and exits as it would have.
"""

import argparse
import contextlib
import errno
import io
import logging
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

import nmt
from nmt.errors import (
    MemoryLimitError,
    StorageError,
    UserError,
    is_out_of_memory,
    missing_package,
)
from nmt.ops.environment import requested_backend

STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG, errno.EBADF}

# Threads that wait for each other spin for a moment, then sleep. By default OpenMP lets them spin
# for long: on a machine with other work they then take the very time that the others wait for
# (measured with two threads: 2.5 times slower; an idle machine shows no difference).
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

Command = Callable[[argparse.Namespace], int | None]


class Version(argparse.Action):
    """The option --version; looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(parser.prog, nmt.__version__)
        parser.exit()


class Store(argparse.Action):
    """An option with a value; its name is added to the set `given` of the arguments."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        namespace.given = namespace.given | {option_string}


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and which knows --version."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.register("action", None, Store)
        self.set_defaults(given=frozenset())
        meaning = "print the version and exit"
        self.add_argument(
            "--version", action=Version, nargs=0, default=argparse.SUPPRESS, help=meaning
        )

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help; argparse would keep it to itself when standard output cannot be written."""
        if file is sys.stdout:
            sys.stdout.write(message)
        else:
            super()._print_message(message, file)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


class SettingsParser(Parser):
    """Takes `section.key=value` settings before, between and after options.

    Its description and epilog are printed as they are.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **settings})

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        return self.parse_intermixed_args(args, namespace)


class ConsoleHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes log lines above a progress bar when one is drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        bars = sys.modules.get("tqdm")
        try:
            line = self.format(record)
            if bars is None:
                self.stream.write(line + self.terminator)
                self.stream.flush()
            else:
                bars.tqdm.write(line, file=self.stream)
        except OSError:
            silence(self.stream)


class ConsoleFormatter(logging.Formatter):
    """Plain lines for information, `warning: ...` for what the user should see."""

    def format(self, record: logging.LogRecord) -> str:
        message = super().format(record)
        if record.levelno >= logging.WARNING:
            return f"{record.levelname.lower()}: {message}"
        return message


def is_for_console(record: logging.LogRecord) -> bool:
    """All but which implementations were chosen: that is for train.log and programs."""
    return record.name != "nmt.ops.backend" or record.levelno >= logging.WARNING


def run(parser: argparse.ArgumentParser, command: Command, argv: Sequence[str] | None) -> int:
    """Parse `argv`, run `command`, return the exit code; a user's mistake becomes one line."""
    replace_closed_streams()
    handler = ConsoleHandler(sys.stderr)
    handler.setFormatter(ConsoleFormatter())
    handler.addFilter(is_for_console)
    logger = logging.getLogger("nmt")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        code = guarded(parser, command, argv)
    finally:
        logger.removeHandler(handler)
        # What could not be written is reported by now; the interpreter must not try again at exit.
        for stream in (sys.stdout, sys.stderr):
            if not can_flush(stream):
                silence(stream)
    return code


def guarded(parser: argparse.ArgumentParser, command: Command, argv: Sequence[str] | None) -> int:
    """The exit code of the command, its errors reported."""
    try:
        try:
            arguments = parser.parse_args(argv)
        except SystemExit:
            sys.stdout.flush()  # --help and --version
            raise
        requested_backend()  # a mistake in the environment is found before anything is done
        code = command(arguments) or 0
        sys.stdout.flush()
        return code
    except UserError as error:
        return fail(parser.prog, str(error), error.exit_code)
    except ModuleNotFoundError as error:
        return fail(parser.prog, str(missing_package(error)), UserError.exit_code)
    except BrokenPipeError:
        return 0  # the reader of our output has seen enough
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        code = StorageError.exit_code if error.errno in STORAGE_ERRORS else UserError.exit_code
        return fail(parser.prog, describe_failure(error), code)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return fail(parser.prog, "not enough memory", MemoryLimitError.exit_code)


def shown(path: Path) -> str:
    """A path as a user would write it: relative where it lies in the working directory."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def tell_written(*paths: Path | None) -> None:
    """Name the files or directories that a command has written, one per line."""
    for path in paths:
        if path is not None:
            logging.getLogger("nmt.cli").info("%s is written", shown(path))


def suggest(*words: str) -> None:
    """Name the command that usually follows, as the last line of this one."""
    logging.getLogger("nmt.cli").info("next: %s", shlex.join(words))


def fail(program: str, message: str, exit_code: int) -> int:
    """Print the one line (or the list of problems) and return the exit code."""
    try:
        print(f"{program}: {message}", file=sys.stderr)
    except OSError:
        silence(sys.stderr)
    return exit_code


def describe_failure(error: OSError) -> str:
    """The file that could not be read or written, and why; without a name it is standard output."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        return f"{error.filename}: {reason}"
    if error.errno in STORAGE_ERRORS:
        return f"standard output: cannot be written ({reason})"
    return reason


def can_flush(stream: TextIO) -> bool:
    """Whether all that was written to a stream has arrived."""
    try:
        stream.flush()
    except (OSError, ValueError):
        return False
    return True


def silence(stream: TextIO) -> None:
    """Let a stream that fails end in the null device, with what it still holds."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, stream.fileno())
        os.close(descriptor)


def replace_closed_streams() -> None:
    """Give each closed standard stream a descriptor, or the next file opened would take its place.

    Input and output stay unusable: any attempt is an OSError. Messages go nowhere.
    """
    for descriptor, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, mode)
            assert opened == descriptor, "the lowest free descriptor is the one taken"
            os.set_inheritable(opened, True)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)))
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)))
    if sys.stderr is None:
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(2, "w", closefd=False)), line_buffering=True
        )
