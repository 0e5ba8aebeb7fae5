"""The random bits of dropout: their rate, their independence, their repetition under a seed."""

import math

import pytest
import torch
from torch import Tensor

from nmt.model.dropout import Dropout
from nmt.ops.dropout import DROPOUT_LEVELS, dropout_factors, keep_scale, kept_elements

COUNT = 1 << 21
RATES = (0.1, 0.3, 0.5, 0.9)


def masks(rate: float, *, seed: int = 1, count: int = COUNT) -> Tensor:
    torch.manual_seed(seed)
    return kept_elements(torch.empty(count), rate)


def correlation(a: Tensor, b: Tensor) -> float:
    """In standard deviations of what independent draws would give."""
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1]) * math.sqrt(len(a))


@pytest.mark.parametrize("rate", RATES)
def test_elements_are_dropped_at_the_rate_wherever_they_stand(rate: float) -> None:
    kept = masks(rate).double()
    for part in (kept, *kept.view(-1, 8).unbind(1), *kept.chunk(8)):
        deviation = math.sqrt(rate * (1.0 - rate) / len(part))
        assert abs(float(part.mean()) - (1.0 - rate)) < 5.0 * deviation


def test_a_biased_rate_would_be_seen() -> None:
    deviation = math.sqrt(0.1 * 0.9 / COUNT)
    assert abs(float(masks(0.102).double().mean()) - 0.9) > 5.0 * deviation


@pytest.mark.parametrize("rate", RATES)
def test_neighbours_are_independent(rate: float) -> None:
    kept = masks(rate).double()
    for lag in (*range(1, 10), 16, 255, 256, 512, 624, 1248, 4096):
        assert abs(correlation(kept[:-lag], kept[lag:])) < 5.0


def test_pairs_of_neighbours_are_as_frequent_as_chance_has_it() -> None:
    kept = masks(0.5).long().view(-1, 8)
    words = (kept << torch.arange(8)).sum(1)
    counts = torch.bincount(words, minlength=256).double()
    expected = len(words) / 256
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi_square - 255) < 5.0 * math.sqrt(2 * 255)


def test_successive_draws_and_seeds_are_independent() -> None:
    torch.manual_seed(1)
    x = torch.empty(COUNT)
    draws = [kept_elements(x, 0.3).double() for _ in range(3)]
    draws += [masks(0.3, seed=seed).double() for seed in (2, 3)]
    for index, one in enumerate(draws):
        for other in draws[index + 1 :]:
            assert abs(correlation(one, other)) < 5.0


@pytest.mark.parametrize("shape", [(), (0, 4), (1,), (3, 5), (7, 11, 13)])
def test_a_seed_gives_the_same_elements_again(shape: tuple[int, ...]) -> None:
    x = torch.empty(shape)
    torch.manual_seed(7)
    first, second = kept_elements(x, 0.5), kept_elements(x, 0.5)
    torch.manual_seed(7)
    assert torch.equal(kept_elements(x, 0.5), first)
    assert torch.equal(kept_elements(x, 0.5), second)
    assert first.shape == x.shape


def test_the_number_of_threads_changes_nothing() -> None:
    alone = masks(0.3)
    threads = torch.get_num_threads()
    torch.set_num_threads(2 if threads == 1 else 1)
    try:
        assert torch.equal(masks(0.3), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("rate", [1e-6, 0.1, 1 / 3, 0.5, 0.999, 1.0 - 1e-9])
def test_the_expectation_of_a_factor_is_one(rate: float) -> None:
    probability = round(rate * DROPOUT_LEVELS) / DROPOUT_LEVELS
    if probability < 1.0:
        assert keep_scale(rate) * (1.0 - probability) == pytest.approx(1.0, rel=1e-12)
    assert abs(probability - rate) <= 0.5 / DROPOUT_LEVELS
    assert math.isfinite(keep_scale(rate))


def test_factors_are_zero_or_the_scale() -> None:
    factors = dropout_factors(torch.empty(10_000, dtype=torch.float64), 0.25)
    assert set(factors.tolist()) == {0.0, keep_scale(0.25)}


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_adding_to_a_residual_is_dropout_then_the_sum(kind: torch.dtype) -> None:
    dropout = Dropout(0.3)
    residual = torch.randn(5, 7, dtype=torch.float64).to(kind).requires_grad_()
    x = torch.randn(5, 7, dtype=torch.float64).to(kind).requires_grad_()
    torch.manual_seed(3)
    together = dropout.add(residual, x)
    gradients = torch.autograd.grad(together.sum(), [residual, x])
    torch.manual_seed(3)
    plain = residual + dropout(x)
    expected = torch.autograd.grad(plain.sum(), [residual, x])
    for got, want in zip((together, *gradients), (plain, *expected), strict=True):
        tolerance = 0.03 if kind == torch.bfloat16 else 1e-6
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def test_a_residual_in_another_precision_keeps_it() -> None:
    residual = torch.randn(4, 8)
    x = torch.randn(4, 8, dtype=torch.bfloat16)
    result = Dropout(0.3).add(residual, x)
    assert result.dtype == torch.float32
    assert torch.equal(Dropout(0.3).eval().add(residual, x), residual + x)


def test_outside_training_nothing_is_dropped_and_no_bits_are_drawn() -> None:
    dropout = Dropout(0.9).eval()
    x = torch.randn(100)
    state = torch.get_rng_state()
    assert dropout(x) is x
    assert torch.equal(dropout.add(x, x), x + x)
    assert torch.equal(torch.get_rng_state(), state)
