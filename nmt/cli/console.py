"""What every command does at its edge: arguments, logging, errors to one line and an exit code."""

import argparse
import errno
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from nmt.errors import StorageError, UserError

STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}

# Threads that wait for each other spin for a moment, then sleep. By default OpenMP lets them spin
# for long: on a machine with other work they then take the very time that the others wait for
# (measured with two threads: 2.5 times slower; an idle machine shows no difference).
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

Command = Callable[[argparse.Namespace], int | None]


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


class SettingsParser(Parser):
    """Takes `section.key=value` settings before, between and after options."""

    def parse_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        return self.parse_intermixed_args(args, namespace)


class ConsoleHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes log lines above a progress bar when one is drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        bars = sys.modules.get("tqdm")
        if bars is None:
            super().emit(record)
        else:
            bars.tqdm.write(self.format(record), file=self.stream)


class ConsoleFormatter(logging.Formatter):
    """Plain lines for information, `warning: ...` for what the user should see."""

    def format(self, record: logging.LogRecord) -> str:
        message = super().format(record)
        if record.levelno >= logging.WARNING:
            return f"{record.levelname.lower()}: {message}"
        return message


def run(parser: argparse.ArgumentParser, command: Command, argv: Sequence[str] | None) -> int:
    """Parse `argv`, run `command`, return the exit code; a user's mistake becomes one line."""
    arguments = parser.parse_args(argv)
    handler = ConsoleHandler(sys.stderr)
    handler.setFormatter(ConsoleFormatter())
    logger = logging.getLogger("nmt")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        return command(arguments) or 0
    except UserError as error:
        return fail(parser.prog, str(error), error.exit_code)
    except BrokenPipeError:
        # The reader of our output has seen enough; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        code = StorageError.exit_code if error.errno in STORAGE_ERRORS else UserError.exit_code
        return fail(parser.prog, f"{error.strerror}: {error.filename}", code)
    finally:
        logger.removeHandler(handler)


def fail(program: str, message: str, exit_code: int) -> int:
    """Print the one line (or the list of problems) and return the exit code."""
    print(f"{program}: {message}", file=sys.stderr)
    return exit_code
