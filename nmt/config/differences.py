"""Comparing two configs."""

import dataclasses
from collections.abc import Collection
from typing import Any


def differences(
    before: Any, after: Any, key: str = "", *, ignored: Collection[str] = ()
) -> list[str]:
    """`key: before -> after` for each value that differs and is not below an `ignored` key."""
    if key in ignored or before == after:
        return []
    if not dataclasses.is_dataclass(before) or type(before) is not type(after):
        return [f"{key}: {before} -> {after}"]
    rows = []
    for item in dataclasses.fields(before):
        name = f"{key}.{item.name}" if key else item.name
        rows += differences(
            getattr(before, item.name), getattr(after, item.name), name, ignored=ignored
        )
    return rows
