"""The records of a run: metrics.jsonl and tensorboard for programs, train.log for people."""

import json
import logging
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from nmt.errors import UserError
from nmt.storage.files import open_flags
from nmt.storage.records import METRICS_FILE, Record, parse_record, read_records
from nmt.training.event_file import (
    event_path,
    events,
    first_events,
    is_tensorboard_installed,
    text_event,
)
from nmt.training.failures import WriteFailures

TENSORBOARD = "tensorboard"
LOG = "train.log"

logger = logging.getLogger(__name__)


class RunLog:
    """Appends to the three records; a resumed run first forgets what came after its checkpoint.

    So metrics.jsonl of a run that was killed ten times is that of one that never was, but for the
    fields that tell the time. The tensorboard file is written anew from metrics.jsonl at each
    start, so there is one, without what was forgotten.
    """

    def __init__(self, run_dir: Path, *, update: int, failures: WriteFailures) -> None:
        self.failures = failures
        self.metrics = AppendedFile(run_dir / METRICS_FILE)
        self.handler = LogFile(AppendedFile(run_dir / LOG), failures)
        failures.attempt(self.metrics.path, lambda: forget_after(self.metrics.path, update))
        self.board: AppendedFile | None = None
        if is_tensorboard_installed():
            self.board = AppendedFile(event_path(run_dir / TENSORBOARD))
            self.begin_board(self.board)
        logging.getLogger("nmt").addHandler(self.handler)
        if self.board is None:
            logger.info(
                "tensorboard is not installed, so no file is written for it (pip install "
                "'nmt[tensorboard]'); %s has all numbers",
                METRICS_FILE,
            )

    def begin_board(self, board: "AppendedFile") -> None:
        """Write the config and all records so far to a new file, which replaces earlier ones."""
        config = self.metrics.path.with_name("config.yaml")
        text = config.read_text(encoding="utf-8") if config.exists() else ""
        start = first_events() + text_event("config", f"```yaml\n{text}```")

        def append() -> None:
            board.append(start + events(read_records(self.metrics.path)))

        if self.failures.attempt(board.path, append):
            for path in board.path.parent.glob("events.out.tfevents.*"):
                if path != board.path:
                    with suppress(OSError):
                        path.unlink()

    def write(self, event: str, update: int, values: Record) -> None:
        """One record; numbers also go to tensorboard as `event/name`."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        record = {"event": event, "update": update, "time": now, **values}
        line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
        self.failures.attempt(self.metrics.path, lambda: self.metrics.append(line))
        if (board := self.board) is not None:
            self.failures.attempt(board.path, lambda: board.append(events([record])))

    def sync(self) -> None:
        """Before a checkpoint: the records that it builds on must be on disk."""
        self.failures.attempt(self.metrics.path, self.metrics.sync)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if isinstance(error, UserError):  # the console prints it by itself
            last = logging.LogRecord(__name__, logging.ERROR, __file__, 0, str(error), None, None)
            self.handler.handle(last)
        logging.getLogger("nmt").removeHandler(self.handler)
        for file in (self.handler.file, self.metrics, self.board):
            if file is not None:
                file.close()


class AppendedFile:
    """A file that grows at its end. No record is there in part, whatever the disk refuses.

    What could not be written is kept, and written together with the next record.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = -1
        self.waiting = b""

    def append(self, data: bytes) -> None:
        """Write all that waits, and `data`; after an OSError the file is as it was before."""
        self.waiting += data
        if self.descriptor < 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            flags = open_flags("O_WRONLY", "O_CREAT", "O_APPEND", "O_BINARY")
            self.descriptor = os.open(self.path, flags, 0o666)
        end = os.fstat(self.descriptor).st_size
        rest = self.waiting
        try:
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self.descriptor, end)
            raise
        self.waiting = b""

    def sync(self) -> None:
        """Write what waits, and bring all of it to the disk."""
        self.append(b"")
        os.fsync(self.descriptor)

    def close(self) -> None:
        """Close the file."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class LogFile(logging.Handler):
    """Writes log lines to train.log."""

    def __init__(self, file: AppendedFile, failures: WriteFailures) -> None:
        super().__init__()
        self.file = file
        self.failures = failures
        self.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")
        )

    def emit(self, record: logging.LogRecord) -> None:
        line = (self.format(record) + "\n").encode(errors="backslashreplace")
        self.failures.attempt(self.file.path, lambda: self.file.append(line))


def forget_after(path: Path, update: int) -> None:
    """Cut the records of later updates off, and a last line that a kill left in part."""
    if not path.exists():
        return
    end = position = 0
    for line in path.read_bytes().splitlines(keepends=True):
        position += len(line)
        record = parse_record(line)
        if line.endswith(b"\n") and record is not None and record.get("update", 0) <= update:
            end = position
    if end < position:
        os.truncate(path, end)
