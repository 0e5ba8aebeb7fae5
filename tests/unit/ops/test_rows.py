"""The kernels for rows against torch: score maps, and what search asks of logits."""

import ctypes
import math

import pytest
import torch
from support.attention_cases import IN_C, make_core
from support.attention_cases import weigh as weigh_rows
from support.kernels import every_build, load
from torch import Tensor

from nmt.ops.beam import Candidates, choose_beam_torch
from nmt.ops.native import search
from nmt.ops.native.tensors import address

LENGTHS = (1, 2, 7, 8, 15, 16, 17, 33, 100)


def weigh(kernels: ctypes.CDLL, number: int, parameter: float, scores: Tensor) -> Tensor:
    """The weights of one row, whose memory goes on behind it."""
    row = torch.full((scores.numel() + 32,), 7.0)
    row[: scores.numel()] = scores
    scratch = torch.empty(kernels.scores_scratch(scores.numel()))
    kernels.weigh_scores(number, parameter, address(row), scores.numel(), address(scratch))
    assert (row[scores.numel() + 16 :] == 7.0).all(), "wrote beyond its row"
    return row[: scores.numel()]


@every_build
@pytest.mark.parametrize("name", IN_C)
def test_weights_of_a_row_are_those_of_the_module(build: str, name: str) -> None:
    kernels, core = load(build), make_core(IN_C[name])
    mapping = core.mapping
    assert mapping.row_map is not None
    learned = core.weights.values()
    parameters = learned[0] if learned else torch.full((core.heads,), mapping.row_parameter)
    for length in LENGTHS:
        scores = 3.0 * torch.randn(core.heads, length, generator=torch.Generator().manual_seed(9))
        expected = weigh_rows(core, scores.double()[None, :, None], None)[0, :, 0]
        for head in range(core.heads):
            found = weigh(kernels, mapping.row_map, float(parameters[head].detach()), scores[head])
            torch.testing.assert_close(found.double(), expected[head], atol=1e-6, rtol=1e-5)


@every_build
@pytest.mark.parametrize("name", [name for name in IN_C if name != "softmax"])
def test_zeros_of_a_row_are_exact_and_where_they_belong(build: str, name: str) -> None:
    """Scores far from every threshold: what has no weight is 0 to the last bit, all else is not."""
    kernels, core = load(build), make_core(IN_C[name])
    mapping = core.mapping
    assert mapping.row_map is not None
    learned = core.weights.values()
    parameters = learned[0] if learned else torch.full((core.heads,), mapping.row_parameter)
    for length in LENGTHS:
        scores = torch.full((core.heads, length), -60.0)
        scores[:, ::5] = 3.0 + 0.01 * torch.arange(len(range(0, length, 5)))
        expected = weigh_rows(core, scores.double()[None, :, None], None)[0, :, 0]
        for head in range(core.heads):
            found = weigh(kernels, mapping.row_map, float(parameters[head].detach()), scores[head])
            assert torch.equal(found == 0.0, expected[head] == 0.0)
            assert found.isfinite().all()


@every_build
@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "entmax 1.3", "rela-g"])
def test_nan_in_a_row_is_not_lost(build: str, name: str) -> None:
    mapping = make_core(IN_C[name]).mapping
    assert mapping.row_map is not None
    scores = torch.tensor([0.5, math.nan, 1.0])
    assert weigh(load(build), mapping.row_map, mapping.row_parameter, scores).isnan().any()


@every_build
@pytest.mark.parametrize("vocabulary", [3, 16, 17, 1000])
def test_logits_are_normalized(build: str, vocabulary: int) -> None:
    logits = 5.0 * torch.randn(3, 3, vocabulary, generator=torch.Generator().manual_seed(1))
    found = search.normalize(load(build), logits)
    torch.testing.assert_close(found.double(), logits.double().logsumexp(-1))


@every_build
def test_logits_out_of_range_are_normalized(build: str) -> None:
    """Sums beyond float32, and numbers that are not finite, which count as a probability of 0."""
    inf = math.inf
    logits = torch.tensor(
        [[90.0, 0.0], [-200.0, -90.0], [math.nan, 0.0], [75.0, inf], [-inf, 0.0], [inf, math.nan]]
    )
    found = search.normalize(load(build), logits[None])
    torch.testing.assert_close(found, torch.tensor([[90.0, -90.0, 0.0, 75.0, 0.0, inf]]))
    assert logits[2, 0] == logits[3, 1] == logits[5, 0] == logits[5, 1] == -inf


def same(found: tuple[Tensor, ...], expected: Candidates) -> None:
    """Equal where there is a candidate; where there is none, nobody cares which it is not."""
    parents, tokens, scores = found
    assert torch.equal(scores, expected.scores)
    there = scores > -math.inf
    assert torch.equal(parents[there], expected.parents[there])
    assert torch.equal(tokens[there], expected.tokens[there])


@every_build
@pytest.mark.parametrize("beam", [1, 2, 4, 7])
@pytest.mark.parametrize("vocabulary", [2, 5, 40, 1003])
def test_beam_choice_is_that_of_torch(build: str, beam: int, vocabulary: int) -> None:
    """With ties between hypotheses, some that do not exist, and tokens that may not come.

    Which of several equal logits of one hypothesis are among the best, torch leaves open.
    """
    kernels, generator = load(build), torch.Generator().manual_seed(vocabulary)
    for width in {1, beam}:
        logits = torch.rand(6, width, vocabulary, generator=generator).argsort(-1) / 4.0
        logits[torch.rand(logits.shape, generator=generator) < 0.2] = -math.inf
        normalizer = torch.full((6, width), 2.5)
        scores = torch.randint(-3, 1, (6, width), generator=generator).double()
        scores[0, -1] = -math.inf
        found = search.choose_beam(kernels, logits, normalizer, scores, beam, 1)
        expected = choose_beam_torch(logits, normalizer, scores, beam=beam, end=1)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
