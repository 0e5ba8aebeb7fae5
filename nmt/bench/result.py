"""The result of a benchmark: the machine, what holds for all rows, and one row per measurement."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar

from nmt.bench.machine import Machine
from nmt.bench.timing import Spread, Times

Row = TypeVar("Row")


@dataclass(frozen=True)
class Result(Generic[Row]):
    """One run of a benchmark; `facts` holds what is the same for all rows."""

    machine: Machine
    rows: Sequence[Row]
    facts: dict[str, Any] = field(default_factory=dict)

    def as_json(self, benchmark: str, rows_key: str, settings: dict[str, Any]) -> str:
        """Everything that was measured, with the machine and the settings."""
        document = asdict(self)
        rows, facts = document.pop("rows"), document.pop("facts")
        document = {"benchmark": benchmark, **settings, **document, **facts, rows_key: rows}
        return json.dumps(document, indent=2)


@dataclass(frozen=True)
class Speed:
    """The speed of one model; ratios are taken within a round, whatever else the machine does."""

    parameters: int
    tokens_per_second: Spread  # of the target, with the end token of each sentence
    relative_speed: Spread  # to the reference
    share_of_matrix_rate: Spread  # of the rate of a large matrix product
    peak_memory_bytes: int | None


def speed_fields(
    seconds: Times, reference: Times, matrix_rate: Times, *, tokens: int, operations: int
) -> dict[str, Spread]:
    """The speeds of a model that takes `seconds` [R] per round for these tokens and operations.

    `reference` holds the seconds [R] of the model to compare with, `matrix_rate` the operations
    per second [R] of a large matrix product, both measured in the same rounds.
    """
    return {
        "tokens_per_second": Spread.of(tokens / seconds),
        "relative_speed": Spread.of(reference / seconds),
        "share_of_matrix_rate": Spread.of(operations / seconds / matrix_rate),
    }
