"""May this run go on from that checkpoint? What differs is named, and nothing is touched."""

import dataclasses
from typing import Any

from nmt.config.config import Config
from nmt.errors import ConfigError

# Keys that may change between two parts of a run: they change no update. The text files may move:
# what counts is the prepared data, and its fingerprint is compared.
CHANGEABLE = (
    "run_dir",
    "data.train",
    "data.validation",
    "data.on_bad_line",
    "data.max_line_bytes",
    "data.prepared_dir",
    "data.workers",
    "train.max_updates",
    "train.compile",
    "train.device",
    "train.threads",
    "train.prefetch",
    "train.save_every",
    "train.keep_last",
    "train.log_every",
    "train.distributed_timeout",
    "validate",
    "decode",
)


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """`key: before -> after` for each value in which two configs differ."""
    if path in CHANGEABLE or before == after:
        return []
    if not dataclasses.is_dataclass(before) or type(before) is not type(after):
        return [f"{path}: {before} -> {after}"]
    rows = []
    for item in dataclasses.fields(before):
        name = f"{path}.{item.name}" if path else item.name
        rows += differences(getattr(before, item.name), getattr(after, item.name), name)
    return rows


def check_resumable(before: Config, after: Config, *, directory: str) -> None:
    """Raise ConfigError when the run so far was another run."""
    rows = differences(before, after)
    if rows:
        listed = "\n  ".join(rows)
        raise ConfigError(
            f"{directory} holds a run with other settings; go on with its own, or choose another "
            f"run_dir:\n  {listed}"
        )
