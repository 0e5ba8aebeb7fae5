"""The random bits of dropout: the right rate, and no pattern that a simple statistic would see."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from nmt.ops.triton.numerics import random_bits

SIZE = 1 << 16


@triton.jit
def bits_kernel(OUT, seed, stream, first, N: tl.constexpr):
    counter = first + tl.arange(0, N)
    tl.store(OUT + tl.arange(0, N), random_bits(seed, stream, counter).to(tl.int64))


def draw(seed: int, stream: int, first: int = 0) -> np.ndarray:
    """32-bit integers [SIZE] of a stream."""
    out = torch.empty(SIZE, dtype=torch.int64)
    bits_kernel[(1,)](out, seed, stream, first, N=SIZE)
    return out.numpy().astype(np.uint32)


@pytest.fixture(scope="module")
def streams() -> np.ndarray:
    """[64, SIZE]: 8 seeds, small and large, 8 streams each."""
    seeds = [0, 1, 2, 3, 1 << 40, (1 << 40) + 1, -1, 123456789012345]
    return np.stack([draw(seed, stream) for seed in seeds for stream in range(8)])


def deviations(share: np.ndarray | float, probability: float, count: int) -> np.ndarray:
    """How many standard deviations a share of `count` trials is from its probability."""
    return np.abs(share - probability) / np.sqrt(probability * (1 - probability) / count)


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.3, 0.5, 0.9])
def test_rate_is_right_in_every_stream_and_over_all(streams: np.ndarray, rate: float) -> None:
    dropped = streams < round(rate * 2**32)
    assert deviations(dropped.mean(axis=1), rate, SIZE).max() < 4.5
    assert deviations(dropped.mean(), rate, dropped.size) < 4.0


def test_every_bit_is_fair(streams: np.ndarray) -> None:
    for bit in range(32):
        assert deviations(((streams >> bit) & 1).mean(), 0.5, streams.size) < 4.5


@pytest.mark.parametrize("distance", [1, 2, 7, 16, 27, 64, 100, 512, 1024])
def test_neighbours_in_a_row_or_column_are_independent(streams: np.ndarray, distance: int) -> None:
    """A distance of K is the same key for the next query."""
    dropped = streams < round(0.1 * 2**32)
    both = dropped[:, distance:] & dropped[:, :-distance]
    assert deviations(both.mean(), 0.01, both.size) < 4.5


def test_streams_and_seeds_are_independent(streams: np.ndarray) -> None:
    dropped = streams < round(0.3 * 2**32)
    worst = max(
        deviations((dropped[a] & dropped[b]).mean(), 0.09, SIZE)
        for a in range(len(dropped))
        for b in range(a)
    )
    assert worst < 5.0  # of 2,016 pairs


def test_values_are_uniform(streams: np.ndarray) -> None:
    """Chi-square of 4,096 cells, by the high and by the low bits."""
    for cells in (streams >> 20, streams & 0xFFF):
        counts = np.bincount(cells.ravel(), minlength=4096)
        expected = streams.size / 4096
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi_square - 4095) < 5 * np.sqrt(2 * 4095)


def test_runs_have_the_lengths_of_chance(streams: np.ndarray) -> None:
    """The number of runs of dropped and kept elements, as Wald and Wolfowitz expect it."""
    dropped = (streams < 2**31).astype(np.int8)
    changes = (dropped[:, 1:] != dropped[:, :-1]).mean(axis=1)
    assert deviations(changes, 0.5, SIZE - 1).max() < 4.5


def test_one_changed_bit_of_the_counter_changes_half_of_the_output() -> None:
    base = draw(7, 3)
    for bit in range(16):
        flipped = base[np.arange(SIZE) ^ (1 << bit)]
        changed = np.unpackbits((base ^ flipped).view(np.uint8)).mean()
        assert abs(changed - 0.5) < 0.002


def test_bits_are_a_pure_function() -> None:
    assert np.array_equal(draw(5, 2), draw(5, 2))
    assert np.array_equal(draw(5, 2)[1000:], draw(5, 2, first=1000)[:-1000])
    assert not np.array_equal(draw(5, 2), draw(6, 2))
