"""Packed inputs of the loss are those of the batch, for any shape."""

from pathlib import Path

import numpy as np
import pytest
import torch
from encoded_corpora import write_corpus

from nmt.data.batching import make_batch


@pytest.mark.parametrize("rows", [[0], [3], [0, 1, 2, 3], [2, 0]])
def test_packed_inputs_are_those_of_the_batch(tmp_path: Path, rows: list[int]) -> None:
    source = [[5, 2], [6, 7, 8, 2], [9, 4, 2], [5, 6, 7, 8, 9, 2]]
    target = [[4, 4, 4, 2], [7, 2], [8, 9, 2], [5, 2]]
    batch = make_batch(write_corpus(tmp_path, source, target), np.array(rows))
    packed = batch.pack(pinned=False).packed
    assert packed is not None
    inputs = packed.on(torch.device("cpu"))
    assert torch.equal(inputs.source, batch.source)
    assert torch.equal(inputs.source_visible, batch.source_visible)
    assert torch.equal(inputs.target_input, batch.target_input)
    assert inputs.gold.tolist() == [token for row in rows for token in target[row]]
    assert torch.equal(batch.target_output.flatten()[inputs.positions], inputs.gold)
