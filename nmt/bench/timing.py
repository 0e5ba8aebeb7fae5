"""Time that calls take, and how much it varies."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

Result = TypeVar("Result")


@dataclass(frozen=True)
class Spread:
    """The median of repeated measurements, and the lowest and highest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    @classmethod
    def of_ratios(cls, numerators: Sequence[float], denominators: Sequence[float]) -> "Spread":
        """The spread of ratios of measurements made next to each other.

        Other work on the machine changes from minute to minute, but strikes neighbours alike.
        """
        return cls.of([a / b for a, b in zip(numerators, denominators, strict=True)])


def timed(call: Callable[[], Result], device: torch.device) -> tuple[Result, float]:
    """What a call returns, and how many seconds it took; work begun earlier does not count."""
    synchronize(device)
    start = time.perf_counter()
    result = call()
    synchronize(device)
    return result, time.perf_counter() - start


def seconds(call: Callable[[], object], calls: int, device: torch.device) -> float:
    """The mean time of a call."""

    def all_calls() -> None:
        for _ in range(calls):
            call()

    return timed(all_calls, device)[1] / calls


def synchronize(device: torch.device) -> None:
    """Wait for the GPU, if there is one at work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
