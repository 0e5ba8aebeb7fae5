"""result.json: how a run stands or ended, for programs that look after many runs."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nmt.errors import DivergedError, StorageError, UserError
from nmt.storage.files import replace_file, storage_errors
from nmt.training.state import TrainingState

RESULT = "result.json"


def write_result(run_dir: Path, values: dict[str, Any]) -> None:
    """Replace result.json by these values, `status` among them.

    Without room for a second file the present one is overwritten, which takes no new block. If
    that fails too, it is removed, so that an old status never stays, and a StorageError is raised.
    """
    path = run_dir / RESULT
    data = (json.dumps(values, indent=2) + "\n").encode()
    try:
        replace_file(path, data)
    except StorageError:
        try:
            with storage_errors(path):
                overwrite_file(path, data)
        except StorageError:
            with suppress(OSError):
                path.unlink(missing_ok=True)
            raise


def overwrite_file(path: Path, data: bytes) -> None:
    """Write over the bytes of an existing file."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def read_result(run_dir: Path) -> dict[str, Any]:
    """The values that `write_result` wrote last; empty if they cannot be read."""
    try:
        values = json.loads((run_dir / RESULT).read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def write_end(run_dir: Path, state: TrainingState, *, status: str) -> None:
    """The result of a run that ended as it should; left alone if it says so already."""
    values = {
        "status": status,
        "update": state.update,
        "best_update": state.best_update,
        "best_score": state.best_score,
    }
    if read_result(run_dir) != values:
        write_result(run_dir, values)


def write_failure(
    run_dir: Path, state: TrainingState, reason: str, *, status: str = "failed"
) -> None:
    """The result of a run that did not end as it should; a disk that refuses it is ignored."""
    with suppress(StorageError):  # the error under way says more
        values = {"status": status, "update": state.update, "reason": reason}
        write_result(run_dir, values)


@contextmanager
def failures_recorded(run_dir: Path, state: TrainingState) -> Iterator[None]:
    """A context whose errors become the result of the run: `running` never outlives the process."""
    status, reason = "failed", "an error in the program; its traceback is on standard error"
    try:
        yield
        status = ""
    except DivergedError as error:
        status, reason = "diverged", str(error)
        raise
    except UserError as error:
        reason = str(error)
        raise
    finally:
        if status:
            write_failure(run_dir, state, reason, status=status)
