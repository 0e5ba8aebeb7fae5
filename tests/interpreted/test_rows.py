"""Norms, entmax and the loss by the row kernels against their definitions in float64."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from nmt.ops.entmax import entmax as entmax_by_definition
from nmt.ops.shared_vectors import shared, vectors_of_one_pass
from nmt.ops.triton import operators
from nmt.ops.triton import rows as kernels
from nmt.ops.triton.loss import FusedCrossEntropy

WIDTHS = [20, 64, 512]
COUNT = 37
CLOSE = 1e-6


def close(found: Tensor | None, expected: Tensor | None) -> bool:
    assert found is not None
    assert expected is not None
    return bool((found - expected).abs().max() <= CLOSE * expected.abs().max())


def variables(*tensors: Tensor) -> list[Tensor]:
    return [tensor.double().requires_grad_() for tensor in tensors]


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("width", WIDTHS)
def test_gated_norm(width: int, gated: bool) -> None:
    z, grad, gain, gate = (
        torch.randn(COUNT, width),
        torch.randn(COUNT, width),
        torch.randn(width),
        torch.randn(width),
    )
    exact = variables(z, gain, gate)
    expected = functional.rms_norm(exact[0], (width,), exact[1], 1e-8)
    if gated:
        expected = expected * torch.sigmoid(exact[2] * exact[0])
    expected.backward(grad.double())
    output, scale = kernels.gated_norm(z, gain, gate if gated else None, 1e-8)
    grad_z, parts = kernels.gated_norm_backward(z, gain, gate if gated else None, scale, grad)
    learned = parts.sum(1)
    assert close(output, expected)
    assert close(grad_z, exact[0].grad)
    assert close(learned[0], exact[1].grad)
    assert len(learned) == (2 if gated else 1)
    assert close(learned[-1], exact[-1].grad) if gated else exact[-1].grad is None


def test_a_row_that_attends_to_nothing_stays_zero() -> None:
    z = torch.randn(3, 64)
    z[1] = 0.0
    output, scale = kernels.gated_norm(z, torch.ones(64), torch.randn(64), 1e-8)
    grads = kernels.gated_norm_backward(
        z, torch.ones(64), torch.randn(64), scale, torch.randn(3, 64)
    )
    assert (output[1] == 0.0).all()
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("width", WIDTHS)
def test_add_norm(width: int, rate: float, biased: bool) -> None:
    residual, x, grad = (torch.randn(COUNT, width) for _ in range(3))
    gain, bias, x_bias = (torch.randn(width) for _ in range(3))
    dropout = kernels.RowDropout(rate, torch.tensor([12345])) if rate else None
    normed = kernels.add_norm(residual, x, gain, bias, x_bias if biased else None, dropout, 1e-5)
    assert normed.rounded.numel() == 0
    kept = torch.ones(COUNT, width, dtype=torch.float64)
    if dropout is not None:
        kept = ((normed.sums - residual) != 0.0) / (1.0 - rate)
        assert abs(float((kept > 0).double().mean()) - 0.7) < 0.06
    exact = variables(residual, x, gain, bias, x_bias)[: 5 if biased else 4]
    sums = exact[0] + sum(exact[1::3]) * kept
    expected = functional.layer_norm(sums, (width,), exact[2], exact[3], 1e-5)
    expected.backward(grad.double())
    assert close(normed.output, expected)
    *found, parts = kernels.add_norm_backward(
        normed, gain, dropout, (grad, None), torch.float32, biased=biased
    )
    found += parts.sum(1).unbind(0)
    assert all(close(one, other.grad) for one, other in zip(found, exact, strict=True))


def test_add_norm_rounds_its_output_and_adds_the_gradients_of_both_types() -> None:
    residual, x = torch.randn(COUNT, 64), torch.randn(COUNT, 64).half()
    gain, bias = torch.randn(64), torch.randn(64)
    normed = kernels.add_norm(residual, x, gain, bias, None, None, 1e-5)
    assert torch.equal(normed.rounded, normed.output.half())
    grad, rounded = torch.randn(COUNT, 64), torch.randn(COUNT, 64).half()
    both, first, second, together = (
        kernels.add_norm_backward(normed, gain, None, grads, torch.float16, biased=False)
        for grads in (
            (grad, rounded), (grad, None), (None, rounded), (grad + rounded.float(), None)
        )
    )  # fmt: skip
    assert both[1].dtype == torch.float16
    assert all(torch.equal(one, other) for one, other in zip(both, together, strict=True))
    assert close(both[0], first[0] + second[0])


@pytest.mark.parametrize("width", [20, 512, 1500])
def test_relu_backward(width: int) -> None:
    output, grad = torch.randn(COUNT, width).relu(), torch.randn(COUNT, width)
    found, sums = kernels.relu_backward(grad, output)
    assert torch.equal(found, grad * (output > 0.0))
    assert close(sums.sum(0), (grad * (output > 0.0)).double().sum(0))


def test_sums_of_parts() -> None:
    parts = [torch.randn(kernels.PARTS, 50) for _ in range(kernels.SUMMED_AT_ONCE + 1)]
    for found, part in zip(kernels.sum_parts(parts), parts, strict=True):
        assert (found - part.double().sum(0)).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "entmax"])
def test_entmax_rows(name: str) -> None:
    batch, heads, queries, keys = 2, 3, 4, 37
    scores = torch.randn(batch, heads, queries, keys) * 2
    visible = torch.rand(batch, 1, queries, keys) > 0.3
    visible[0, 0, 0] = False
    fixed = {"sparsemax": 1.0, "entmax15": 0.5}.get(name)
    beta = torch.tensor([0.01, 0.3, 0.9]) if fixed is None else torch.full((heads,), fixed)
    exact_scores, exact_beta = variables(scores, beta)
    if name == "softmax":
        hidden = exact_scores.masked_fill(~visible, -1e30)
        expected = torch.softmax(hidden, -1) * visible.any(-1, keepdim=True)
    else:
        by = exact_beta[:, None, None] if fixed is None else fixed
        expected = entmax_by_definition(exact_scores, visible, by)
    number = ["softmax", "sparsemax", "entmax15", "entmax"].index(name)
    weights = kernels.entmax(scores.masked_fill(~visible, -torch.inf), beta, number)
    assert float((weights - expected).abs().max()) < 2e-6
    assert torch.equal(weights == 0.0, expected == 0.0)
    if name == "softmax":
        return
    grad = torch.randn(scores.shape)
    expected.backward(grad.double())
    found, grad_beta = kernels.entmax_backward(weights, beta, grad, learned=fixed is None)
    assert close(found, exact_scores.grad)
    assert grad_beta is None if fixed is not None else close(grad_beta, exact_beta.grad)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("vocabulary", [7, 4096, 5003])
def test_cross_entropy(vocabulary: int, smoothing: float) -> None:
    logits, gold = torch.randn(11, vocabulary) * 3, torch.randint(0, vocabulary, (11,))
    (exact,) = variables(logits)
    expected = functional.cross_entropy(exact, gold, label_smoothing=smoothing, reduction="none")
    expected.sum().backward()
    untouched = logits.clone()
    losses = torch.empty(2, 13)
    loss, likelihood = losses[:, 1:12]  # of slices that are no tensors of their own
    for needs_gradient in (False, True):
        kernels.cross_entropy_(
            *(logits, gold, losses[:, 1:12]),
            smoothing=smoothing,
            factor=2.0,
            needs_gradient=needs_gradient,
        )
        assert close(loss, expected)
        assert close(likelihood, functional.cross_entropy(exact, gold, reduction="none"))
        if not needs_gradient:
            assert torch.equal(logits, untouched)
    assert exact.grad is not None
    assert close(logits, 2.0 * exact.grad)


def test_loss_of_a_row_with_nan_is_nan() -> None:
    logits = torch.randn(3, 100)
    logits[1, 50] = torch.nan
    losses = torch.empty(2, 3)
    kernels.cross_entropy_(
        *(logits, torch.tensor([1, 2, 3]), losses), smoothing=0.1, factor=1.0, needs_gradient=False
    )
    assert losses[0].isnan().tolist() == [False, True, False]


def test_a_frozen_output_layer_has_no_gradient() -> None:
    hidden, weight = torch.randn(5, 8, requires_grad=True), torch.randn(11, 8)
    gold = torch.randint(0, 11, (5,))
    (exact,) = variables(hidden.detach())
    expected = functional.cross_entropy(exact @ weight.double().t(), gold, reduction="sum")
    expected.backward()
    loss, _ = FusedCrossEntropy.apply(hidden, weight, gold, 0.0, None, True)
    loss.backward()
    assert close(loss, expected)
    assert close(hidden.grad, exact.grad)


def test_gradients_of_shared_vectors_are_summed_at_the_end() -> None:
    z, gain, gate = torch.randn(COUNT, 64), torch.randn(64), torch.randn(64)
    found = []
    for together in (False, True):
        vectors = [gain.clone().requires_grad_(), gate.clone().requires_grad_()]
        unused = torch.randn(3, requires_grad=True)
        for _ in range(2):  # gradients of passes add up
            with vectors_of_one_pass([*vectors, unused] if together else []):
                once = operators.gated_norm(z, *shared(*vectors), 1e-8)[0]
                twice = operators.gated_norm(once, *shared(*vectors), 1e-8)[0]
            twice.square().sum().backward()
        found.append([vector.grad for vector in vectors])
        assert unused.grad is None
    assert all(close(one, other) for one, other in zip(*found, strict=True))
