"""The share of each process in an update: all rows once, equal tokens, nobody without work."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.shares import SHARE_TOLERANCE, Share, divide

lengths = st.lists(st.lists(st.integers(2, 60), min_size=1, max_size=12), min_size=1, max_size=6)


def arrays(batches: list[list[int]]) -> list[np.ndarray]:
    return [np.array(batch, dtype=np.int64) for batch in batches]


@given(batches=lengths, world_size=st.integers(1, 9))
def test_every_row_has_one_owner_and_shares_are_equal(
    batches: list[list[int]], world_size: int
) -> None:
    shares = [divide(arrays(batches), rank=r, world_size=world_size) for r in range(world_size)]
    rows = [(batch, row) for own in shares for batch, *ends in own for row in range(*ends)]
    assert rows == [(number, row) for number, b in enumerate(batches) for row in range(len(b))]
    assert all(share.start < share.end for own in shares for share in own)
    if len(rows) < world_size:
        return
    tokens = [sum(sum(batches[b][start:end]) for b, start, end in own) for own in shares]
    longest, equal = max(map(max, batches)), sum(map(sum, batches)) / world_size
    assert all(own for own in shares)
    # Cuts are between rows; a process that would get no row takes one from its neighbours.
    if max(map(max, batches)) <= equal / 2:
        assert max(tokens) <= (1 + 2 * SHARE_TOLERANCE) * equal + longest
        assert min(tokens) >= (1 - 2 * SHARE_TOLERANCE) * equal - longest


def test_one_process_computes_whole_batches() -> None:
    batches = arrays([[3] * 7, [50], [4, 5]])
    assert divide(batches, rank=0, world_size=1) == [Share(0, 0, 7), Share(1, 0, 1), Share(2, 0, 2)]


@pytest.mark.parametrize("world_size", [2, 4])
def test_batches_of_nearly_equal_size_stay_whole(world_size: int) -> None:
    batches = arrays([[10] * 100, [11] * 90, [9] * 111, [20] * 51])
    shares = [divide(batches, rank=r, world_size=world_size) for r in range(world_size)]
    assert [share for own in shares for share in own] == [
        Share(number, 0, len(batch)) for number, batch in enumerate(batches)
    ]
    assert {len(own) for own in shares} == {4 // world_size}


def test_eight_processes_take_half_a_batch_each_of_four() -> None:
    batches = arrays([[10] * 100, [20] * 50, [25] * 40, [5] * 200])
    shares = [divide(batches, rank=rank, world_size=8) for rank in range(8)]
    assert [(own[0].batch, own[0].end - own[0].start) for own in shares] == [
        *[(0, 50), (0, 50), (1, 25), (1, 25)],
        *[(2, 20), (2, 20), (3, 100), (3, 100)],
    ]
    assert all(len(own) == 1 for own in shares)


def test_with_fewer_rows_than_processes_some_have_none() -> None:
    shares = [divide(arrays([[5, 5], [5]]), rank=rank, world_size=5) for rank in range(5)]
    assert sorted(map(len, shares)) == [0, 0, 1, 1, 1]
