"""The file of numbers and texts that tensorboard reads, written without a thread of its own."""

import io
import os
import socket
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

OVERVIEW = {
    "train/loss",
    "train/learning_rate",
    "train/tokens_per_second",
    "validation/loss",
    "validation/bleu",
    "validation/chrf",
}
ATTENTION_RECORDS = ("attention", "alignment_head")


def is_tensorboard_installed() -> bool:
    """Whether the package that describes the format can be imported."""
    try:
        import tensorboard.compat.proto.event_pb2  # noqa: F401
    except ImportError:
        return False
    return True


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
    """The numbers and sample translations of records (see `metrics.RunLog`)."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    parts = []
    for record in records:
        values = [
            Summary.Value(tag=tag, simple_value=value)
            for name, value in flatten(record)
            if isinstance(value, int | float) and name != "update"
            for tag in tags(str(record.get("event")), name)
        ]
        if record.get("samples"):
            values.append(text_value("samples", samples_table(record["samples"])))
        when = datetime.fromisoformat(record["time"]) if "time" in record else datetime.now(UTC)
        event = Event(wall_time=when.timestamp(), step=record.get("update", 0))
        event.summary.CopyFrom(Summary(value=values))
        parts.append(framed(event))
    return b"".join(parts)


def tags(event: str, name: str) -> list[str]:
    """The charts of a number; tensorboard sorts their groups by name.

    The few that are looked at most are also in the first group, and attention is in one of its own.
    """
    group, _, rest = name.partition("/")
    if rest and group in ATTENTION_RECORDS:
        return [f"{event}_attention/{name if group != 'attention' else rest}"]
    found = [f"{event}/{name}"]
    return [f"overview/{event}_{name}", *found] if f"{event}/{name}" in OVERVIEW else found


def text_event(tag: str, text: str) -> bytes:
    """A text of the whole run, in Markdown."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    event = Event(wall_time=time.time(), step=0)
    event.summary.CopyFrom(Summary(value=[text_value(tag, text)]))
    return framed(event)


def text_value(tag: str, text: str) -> Any:
    """A text as tensorboard's page of texts shows it."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    plugin = SummaryMetadata.PluginData(plugin_name="text")
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=shape)
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)


def samples_table(samples: Iterable[dict[str, str]]) -> str:
    """Translations beside source and reference, as a Markdown table."""
    names = ("source", "translation", "reference")
    rows = [[sample.get(name, "").replace("|", "\\|") for name in names] for sample in samples]
    lines = [" | ".join(row) for row in (names, ("---",) * 3, *rows)]
    return "\n".join(f"| {line} |" for line in lines)


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
