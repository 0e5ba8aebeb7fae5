"""The measuring loop of all benchmarks, and how much its results vary."""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

Times = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """The median of repeated measurements, and the lowest and highest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float] | Times) -> "Spread":
        """The spread of at least one value."""
        numbers = [float(value) for value in values]
        return cls(statistics.median(numbers), min(numbers), max(numbers))


def measure_rounds(
    cases: Sequence[Callable[[], object]],
    *,
    repeats: int,
    device: torch.device,
    calls: Sequence[int] | None = None,
    advance: Callable[[int], object] = lambda _turns: None,
) -> Times:
    """[cases, repeats] seconds per call.

    Each round runs every case in turn, once or as often as `calls` says. Other work on the machine
    affects neighbours alike, so ratios should be taken within a round.
    """
    times = np.zeros((len(cases), repeats))
    for number in range(repeats):
        gc.collect()  # between rounds, so that it rarely happens within one
        for row, case in enumerate(cases):
            times[row, number] = seconds(case, device, calls=calls[row] if calls else 1)
            advance(1)
    return times


def seconds(call: Callable[[], object], device: torch.device, *, calls: int = 1) -> float:
    """The mean time of a call; work that a GPU began earlier does not count."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(device)
    return (time.perf_counter() - start) / calls


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
