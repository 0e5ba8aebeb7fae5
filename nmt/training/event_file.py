"""The file of numbers that tensorboard reads, written without a thread of its own."""

import io
import os
import socket
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def event_path(directory: Path) -> Path:
    """A new name that tensorboard takes for a file of events."""
    name = f"events.out.tfevents.{time.time_ns() // 10**9:010d}.{socket.gethostname()}"
    return directory / f"{name}.{os.getpid()}.0"


def first_events() -> bytes:
    """The beginning of a file: its version, and that whatever was shown before is void."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    version = Event(wall_time=time.time(), file_version="brain.Event:2")
    start = Event(wall_time=time.time(), session_log=SessionLog(status=SessionLog.START))
    return framed(version) + framed(start)


def events(records: Iterable[dict[str, Any]]) -> bytes:
    """The numbers of records (see `metrics.RunLog`) as tensorboard stores them."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    parts = []
    for record in records:
        values = [
            Summary.Value(tag=f"{record.get('event')}/{name}", simple_value=value)
            for name, value in flatten(record)
            if isinstance(value, int | float) and name != "update"
        ]
        when = datetime.fromisoformat(record["time"]) if "time" in record else datetime.now(UTC)
        event = Event(wall_time=when.timestamp(), step=record.get("update", 0))
        event.summary.CopyFrom(Summary(value=values))
        parts.append(framed(event))
    return b"".join(parts)


def framed(event: Any) -> bytes:
    """An event with its length and checksums."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    buffer = io.BytesIO()
    RecordWriter(buffer).write(event.SerializeToString())
    return buffer.getvalue()


def flatten(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested dictionaries as (a/b/c, value) pairs."""
    rows: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            rows += flatten(value, f"{prefix}{name}/")
        else:
            rows.append((prefix + name, value))
    return rows
