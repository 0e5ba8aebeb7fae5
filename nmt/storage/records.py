"""The records of a run, metrics.jsonl, which a kill can leave with half a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

METRICS_FILE = "metrics.jsonl"  # in the run directory

Record = dict[str, Any]


def parse_record(line: bytes | str) -> Record | None:
    """The record of a line, None for a line that is not whole.

    Records with a `time` count epochs from 1. Those of versions that wrote no time counted them
    from 0, and are given back in the present form.
    """
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    if "time" not in record and "epoch" in record:
        record["epoch"] += 1
    return record


def read_records(path: Path) -> Iterator[Record]:
    """All whole records of a metrics.jsonl; none if there is no such file."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return
    yield from (record for line in lines if (record := parse_record(line)) is not None)
