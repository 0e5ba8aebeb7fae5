"""Mistakes and mishaps that a user can act on; each carries the exit code of the command."""

import importlib


class UserError(Exception):
    """Bad input or configuration: one line that names the place and says what to do."""

    exit_code = 2


class ConfigError(UserError):
    """A configuration that cannot be used; the message lists every problem found."""


class DataError(UserError):
    """Text, vocabulary or prepared data that cannot be used."""


class NoCheckpointError(UserError):
    """There is no checkpoint or model directory that verifies."""

    exit_code = 3


class StorageError(UserError):
    """The disk is full, read-only or failing."""

    exit_code = 4


class LockedError(UserError):
    """Another process is using the run directory."""

    exit_code = 5


class DivergedError(UserError):
    """The training diverged: numbers are not finite, or the loss blew up or never fell."""

    exit_code = 6


class IntegrityError(UserError):
    """A file is not what its checksum says."""

    exit_code = 7


class MemoryLimitError(UserError):
    """The requested work does not fit into the memory of this machine."""


def require_package(package: str, *, extra: str, purpose: str) -> None:
    """Reject a missing package that is not needed by all; `pip install nmt[extra]` installs it."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise UserError(
            f"{purpose}: the package {package.partition('.')[0]} is needed and could not be "
            f"imported ({error}); install it with: pip install 'nmt[{extra}]'"
        ) from error


def missing_package(error: ModuleNotFoundError) -> UserError:
    """The line for users of an environment that lacks what some commands need, such as torch.

    Raises the error itself if the module that was not found is one of nmt.
    """
    package = (error.name or "nmt").partition(".")[0]
    if package == "nmt":
        raise error
    return UserError(
        f"the package {package} is needed for this, and is not installed; an environment without "
        "it can only translate and serve packed models"
    )


# Parts of the messages with which torch and the libraries below it report refused memory.
MEMORY_MESSAGES = ("allocate memory", "bad_alloc", "could not create a primitive")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, which torch reports in several ways."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and any(x in str(error) for x in MEMORY_MESSAGES))
    )
