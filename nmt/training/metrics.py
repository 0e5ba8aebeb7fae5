"""The records of a run: metrics.jsonl and tensorboard for programs, train.log for people."""

import json
import logging
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nmt.errors import UserError

logger = logging.getLogger(__name__)


class RunLog:
    """Appends to the three records; a resumed run first forgets what came after its checkpoint.

    So metrics.jsonl of a run that was killed ten times is that of one that never was, but for the
    fields that tell the time.
    """

    def __init__(self, run_dir: Path, *, update: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        run_dir.mkdir(parents=True, exist_ok=True)
        self.path = run_dir / "metrics.jsonl"
        forget_after(self.path, update)
        self.metrics = self.path.open("a", encoding="utf-8")
        self.board = SummaryWriter(str(run_dir / "tensorboard"), purge_step=update + 1)
        self.handler = logging.FileHandler(run_dir / "train.log", encoding="utf-8")
        self.handler.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")
        )
        logging.getLogger("nmt").addHandler(self.handler)

    def write(self, event: str, update: int, values: dict[str, Any]) -> None:
        """One record; numbers also go to tensorboard as `event/name`."""
        record = {"event": event, "update": update, **values}
        self.metrics.write(json.dumps(record, ensure_ascii=False) + "\n")
        self.metrics.flush()
        for name, value in flatten(values):
            if isinstance(value, int | float):
                self.board.add_scalar(f"{event}/{name}", value, update)

    def sync(self) -> None:
        """Before a checkpoint: what it builds on must be on disk."""
        os.fsync(self.metrics.fileno())
        self.board.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, UserError):  # the console prints it by itself
            last = logging.LogRecord(__name__, logging.ERROR, __file__, 0, str(error), None, None)
            self.handler.handle(last)
        logging.getLogger("nmt").removeHandler(self.handler)
        self.handler.close()
        self.metrics.close()
        self.board.close()


def flatten(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested dictionaries as (a/b/c, value) pairs."""
    rows: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            rows += flatten(value, f"{prefix}{name}/")
        else:
            rows.append((prefix + name, value))
    return rows


def forget_after(path: Path, update: int) -> None:
    """Drop the records of later updates, and a last line that a kill cut short."""
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().split(b"\n"):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("update", 0) <= update:
            kept.append(line + b"\n")
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(b"".join(kept))
    os.replace(temporary, path)
