"""The sliced loss is the plain loss: values, gradients, padding."""

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from nmt.ops import cross_entropy as module
from nmt.ops.backend import force_backend
from nmt.ops.cross_entropy import cross_entropy

ROWS, WIDTH, VOCABULARY = 50, 8, 23


@pytest.fixture(params=["auto", "torch", "reference"], autouse=True)
def every_backend(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test runs with every implementation."""
    with force_backend(request.param):
        yield


def example(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    hidden = torch.randn(ROWS, WIDTH, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCABULARY, WIDTH, dtype=dtype, requires_grad=True)
    return hidden, weight, torch.randint(VOCABULARY, (ROWS,))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("slice_rows", [16, 1000])
def test_equals_torch(smoothing: float, slice_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", slice_rows * VOCABULARY)
    hidden, weight, target = example()
    loss, likelihood = cross_entropy(hidden, weight, target, smoothing)
    expected = functional.cross_entropy(
        hidden @ weight.t(), target, label_smoothing=smoothing, reduction="sum"
    )
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        likelihood, functional.cross_entropy(hidden @ weight.t(), target, reduction="sum")
    )
    ours = torch.autograd.grad(loss * 0.25, (hidden, weight))
    theirs = torch.autograd.grad(expected * 0.25, (hidden, weight))
    torch.testing.assert_close(ours, theirs)


def test_gradcheck() -> None:
    hidden, weight, target = example()
    assert torch.autograd.gradcheck(
        lambda h, w: cross_entropy(h, w, target, 0.1)[0], (hidden, weight)
    )


def test_half_precision_is_close_to_float32() -> None:
    hidden, weight, target = example(torch.float32)
    exact, _ = cross_entropy(hidden, weight, target, 0.1)
    exact_gradients = torch.autograd.grad(exact, (hidden, weight))
    half_weight = weight.detach().bfloat16()
    rough, _ = cross_entropy(hidden, weight, target, 0.1, half_weight)
    rough_gradients = torch.autograd.grad(rough, (hidden, weight))
    torch.testing.assert_close(rough, exact, rtol=2e-2, atol=0)
    for ours, theirs in zip(rough_gradients, exact_gradients, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=5e-2)


def test_huge_logits_stay_finite() -> None:
    hidden, weight, target = example(torch.float32)
    loss, _ = cross_entropy(hidden * 1e4, weight * 1e4, target, 0.1)
    gradients = torch.autograd.grad(loss, (hidden, weight))
    assert torch.isfinite(loss)
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_no_positions_cost_nothing() -> None:
    hidden, weight, target = example()
    loss, likelihood = cross_entropy(hidden[:0], weight, target[:0], 0.1)
    assert (loss.item(), likelihood.item()) == (0.0, 0.0)
    loss.backward()
    assert weight.grad is not None
    assert not weight.grad.any()
