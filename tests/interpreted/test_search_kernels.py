"""A step of beam search by the kernels in Triton against its definition."""

import pytest
import torch
from torch import Tensor

from nmt.ops import cuda_search
from nmt.ops.beam import (
    Candidates,
    choose_beam_reference,
    choose_beam_triton,
    normalize_reference,
)
from nmt.ops.triton import search

END = 3
# Sentences, hypotheses, vocabulary, beam: the first step, later ones, a vocabulary of a few words,
# one that fills no slot, several tokens in each slot.
SHAPES = [(3, 1, 50, 4), (3, 4, 50, 4), (2, 5, 7, 5), (2, 2, 3, 2), (1, 3, 2100, 3), (2, 1, 30, 1)]


def make_step(shape: tuple[int, int, int, int], *, ties: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, normalizers and scores of the live hypotheses, of which one does not exist."""
    sentences, width, vocabulary, _ = shape
    logits = torch.randn(sentences, width, vocabulary) * 3
    scores = torch.randn(sentences, width, dtype=torch.float64)
    if ties:
        logits, scores = logits.round(), scores.round()
    logits[0, 0, 1] = -torch.inf
    if width > 1:
        scores[0, -1] = -torch.inf
    return logits, normalize_reference(logits), scores


def assert_same(found: Candidates, expected: Candidates) -> None:
    """Equal scores, and equal candidates where there are any."""
    assert torch.equal(found.scores, expected.scores)
    exists = expected.scores > -torch.inf
    assert torch.equal(found.parents[exists], expected.parents[exists])
    assert torch.equal(found.tokens[exists], expected.tokens[exists])


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_choice_of_a_beam(shape: tuple[int, int, int, int], ties: bool) -> None:
    _, width, vocabulary, beam = shape
    for _ in range(3):
        logits, normalizer, scores = make_step(shape, ties=ties)
        logits[-1, :, min(END, vocabulary - 1)] += 4.0  # some end
        end = min(END, vocabulary - 1)
        finished, live = choose_beam_triton(logits, normalizer, scores, beam=beam, end=end)
        expected = choose_beam_reference(logits, normalizer, scores, beam=beam, end=end)
        assert_same(finished, expected[0])
        assert_same(live, expected[1])
        assert bool((live.tokens >= 0).all() & (live.tokens < vocabulary).all())
        assert bool((live.parents >= 0).all() & (live.parents < width).all())


@pytest.mark.parametrize("vocabulary", [1, 7, 4096, 5000])
def test_normalizer(vocabulary: int) -> None:
    logits = torch.randn(2, 3, vocabulary) * 5
    logits[0, 1] += 1e4
    if vocabulary > 4:
        logits[0, 0, 1], logits[0, 2, 2], logits[1, 0, 3] = torch.nan, torch.inf, -torch.inf
    logits[1, 1] = torch.nan
    expected_logits = logits.clone()
    expected = normalize_reference(expected_logits)
    found = cuda_search.normalize(logits)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    assert torch.equal(logits, expected_logits)
    assert found[1, 1] == torch.inf


def test_operators_pass_the_checks_of_torch() -> None:
    logits, normalizer, scores = make_step(SHAPES[1], ties=False)
    calls = {
        search.normalize_: (logits.flatten(0, 1),),
        search.choose_beam: (logits, normalizer, scores, 4, END),
    }
    for function, arguments in calls.items():
        assert set(torch.library.opcheck(function, arguments).values()) == {"SUCCESS"}
