"""Writes that the disk refuses: a few in a row are forgiven for each file, then the run ends."""

import logging
from collections.abc import Callable
from pathlib import Path

from nmt.errors import StorageError
from nmt.training.state import TrainingState

logger = logging.getLogger(__name__)

FAILURES_ALLOWED = 2  # in a row for one file; the third ends the run


class WriteFailures:
    """Counts failed writes per file. Failures within one update count once."""

    def __init__(self, state: TrainingState) -> None:
        self.state = state
        self.in_a_row: dict[Path, int] = {}
        self.last_update: dict[Path, int] = {}
        self.last: StorageError | None = None
        self.fatal: StorageError | None = None  # the failure that the run has to end with

    def attempt(self, path: Path, write: Callable[[], object]) -> bool:
        """Call `write`, and count if that fails; whether it succeeded."""
        try:
            write()
        except (OSError, StorageError) as error:
            self.count(path, error)
            return False
        self.in_a_row.pop(path, None)
        self.last_update.pop(path, None)
        return True

    def count(self, path: Path, error: OSError | StorageError) -> None:
        """Warn of a failure; one too many ends the run."""
        update = self.state.update
        if self.last_update.get(path) == update:
            return
        self.last_update[path] = update
        self.in_a_row[path] = self.in_a_row.get(path, 0) + 1
        message = str(error)
        if isinstance(error, OSError):
            message = f"{path}: could not be written ({error.strerror or error})"
        self.last = StorageError(f"update {update}: {message}")
        if self.in_a_row[path] > FAILURES_ALLOWED:
            self.end()
        else:
            logger.warning("%s; training goes on", self.last)

    def end(self) -> None:
        """Let the run end with the last failure: nothing follows that could make it good."""
        self.fatal = self.fatal or self.last
