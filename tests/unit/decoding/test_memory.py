"""Batches that fit into the memory of a GPU."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.decoding.memory import LARGEST_TENSOR, SHARE, Budget, Need

NEEDS = st.builds(Need, bytes=st.integers(1, 1000), numbers=st.integers(1, LARGEST_TENSOR))


class FixedBudget(Budget):
    def free(self) -> int:
        return 2000


@given(needs=st.lists(NEEDS, max_size=30), halvings=st.integers(0, 9))
def test_batches_hold_every_sentence_once_and_fit(needs: list[Need], halvings: int) -> None:
    budget = FixedBudget(torch.device("cpu"))
    for _ in range(halvings):
        budget.halve(2)
    batches = list(budget.batches(needs))
    assert sorted(position for batch in batches for position in batch) == list(range(len(needs)))
    for batch in batches:
        if len(batch) > 1:
            most = max(needs[position].bytes for position in batch)
            assert len(batch) * most <= SHARE / 2 ** min(halvings, 4) * budget.free()
            largest = max(needs[position].numbers for position in batch)
            assert len(batch) * largest <= LARGEST_TENSOR


def test_batches_are_as_large_as_fits() -> None:
    needs = [Need(100, 1)] * 40
    assert [len(batch) for batch in FixedBudget(torch.device("cpu")).batches(needs)] == [16, 16, 8]
