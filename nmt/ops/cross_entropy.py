"""Label-smoothed cross-entropy of the output layer, without ever holding all the logits.

N target positions, D model width, V target vocabulary. The smoothed target is (1 - smoothing) on
the gold token plus smoothing / V everywhere.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from nmt.ops import cuda
from nmt.ops.backend import Call, Implementation, Operation
from nmt.ops.half_linear import half_linear_reference
from nmt.ops.half_product import HALF_PRECISION, HALF_PRECISION_SCALE, product
from nmt.ops.kernels import missing_kernels
from nmt.ops.native import bfloat16, training

LOGITS_AT_ONCE = 8 * 1024 * 1024  # numbers in one slice of logits: 32 MB in float32
LOGITS_AT_ONCE_ON_GPU = 64 * 1024 * 1024  # where fewer launches count for more than a cache

Losses = tuple[Tensor, Tensor]


def cross_entropy_reference(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    smoothing: float,
    half_weight: Tensor | None = None,
) -> Losses:
    """Sums over N of the smoothed loss and of the negative log-likelihood.

    hidden is [N, D], weight [V, D], target [N]. Where there is a copy of the weight in half
    precision, that is the precision of the products.
    """
    if half_weight is not None:
        no_bias = half_weight.new_zeros(len(weight))
        logits = half_linear_reference(hidden, weight, no_bias, half_weight, no_bias)
    else:
        logits = functional.linear(hidden, weight)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    loss = functional.cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing)
    likelihood = functional.cross_entropy(logits.detach(), target, reduction="sum")
    return loss.double(), likelihood.double()


class SliceFunctions(NamedTuple):
    """The functions that are applied to slices of positions, for one type of products.

    `exact` is float32, or float64 where that is the type of products.
    """

    # hidden [N, D] times weight [V, D] transposed, to the third argument, [N, V] in the type of
    # products; the result is exact
    logits: Callable[[Tensor, Tensor, Tensor], Tensor]
    # Overwrites logits [N, V] by probabilities; the logarithms [N] of what normalises them.
    softmax_: Callable[[Tensor], Tensor]
    # the gradients of logits, times a scale, in the type of products, which is the last argument
    slope: Callable[[Tensor, float, torch.dtype], Tensor]
    # slope [N, V] times weight [V, D] to the third argument, [N, D] and exact
    multiply: Callable[[Tensor, Tensor, Tensor], object]
    # adds slope [N, V] transposed times hidden [N, D] to the first argument, [V, D] and exact
    add_gradient: Callable[[Tensor, Tensor, Tensor], object]


def logits_torch(hidden: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """hidden [N, D] times weight [V, D] transposed."""
    return torch.mm(hidden, weight.t(), out=out)


def softmax_torch_(logits: Tensor) -> Tensor:
    """Overwrite logits [N, V] by probabilities; the logarithms [N] of what normalises them."""
    largest = logits.amax(dim=1)
    probabilities = torch.softmax(logits, dim=1, out=logits)
    # The largest probability is exp(largest - normaliser), at least 1 / V: its logarithm is safe.
    return largest - probabilities.amax(dim=1).log()


def multiply_torch(left: Tensor, right: Tensor, out: Tensor) -> None:
    """left [N, V] times right [V, D] to out [N, D]."""
    out.copy_(torch.mm(left, right))


def multiply_native(left: Tensor, right: Tensor, out: Tensor) -> None:
    """left [N, V] times right [V, D] to out [N, D], in C."""
    training.multiply(left, right.contiguous(), out=out)


def same_slope(slope: Tensor, _scale: float, _dtype: torch.dtype) -> Tensor:
    """The gradients of logits as they are."""
    return slope


def add_gradient_torch(grad_weight: Tensor, slope: Tensor, hidden: Tensor) -> None:
    """Add slope [N, V] transposed times hidden [N, D]."""
    grad_weight.addmm_(slope.t(), hidden)


TORCH_SLICES = SliceFunctions(
    logits_torch, softmax_torch_, same_slope, multiply_torch, add_gradient_torch
)
NATIVE_SLICES = SliceFunctions(
    logits_torch, training.softmax_, same_slope, multiply_native, add_gradient_torch
)
HALF_TORCH = SliceFunctions(
    lambda hidden, weight, _out: product(hidden, weight.t(), torch.float32),
    softmax_torch_,
    lambda slope, scale, dtype: slope.mul_(scale).to(dtype),
    lambda slope, weight, out: out.copy_(product(slope, weight, torch.float32)),
    lambda grad_weight, slope, hidden: grad_weight.add_(product(slope.t(), hidden, torch.float32)),
)
HALF_NATIVE = SliceFunctions(
    lambda hidden, weight, out: bfloat16.multiply(hidden, weight, transposed=True, out=out),
    training.softmax_,
    lambda slope, scale, _dtype: bfloat16.round_rows(slope.mul_(scale)),
    lambda slope, weight, out: bfloat16.multiply(slope, weight, out=out),
    lambda grad_weight, slope, hidden: bfloat16.weight_gradient(slope, hidden, out=grad_weight),
)


class SlicedCrossEntropy(torch.autograd.Function):
    """The two losses, slice by slice.

    The gradients are computed in the forward pass: the loss is a scalar, so they only need to be
    scaled in the backward pass, and no slice of logits outlives its turn.
    """

    @staticmethod
    def forward(
        ctx: Any,
        slices: SliceFunctions,
        hidden: Tensor,
        weight: Tensor,
        target: Tensor,
        smoothing: float,
        half_weight: Tensor | None,
        needs_gradient: bool,
    ) -> Losses:
        compute = hidden.dtype if half_weight is None else half_weight.dtype
        half = compute in HALF_PRECISION
        exact = torch.float32 if half else compute
        scale = HALF_PRECISION_SCALE if half else 1.0
        hidden_c = hidden.to(compute)
        weight_c = weight if half_weight is None else half_weight
        vocabulary = weight.shape[0]
        at_once = LOGITS_AT_ONCE_ON_GPU if hidden.is_cuda else LOGITS_AT_ONCE
        rows = max(16, at_once // vocabulary)
        grad_hidden = torch.empty_like(hidden, dtype=exact) if needs_gradient else None
        trained = needs_gradient and ctx.needs_input_grad[2]
        grad_weight = torch.zeros_like(weight, dtype=exact) if trained else None
        buffer = hidden.new_empty((min(rows, len(hidden)), vocabulary), dtype=exact)
        mean_weight = weight.to(exact).mean(dim=0)
        loss = hidden.new_zeros((), dtype=torch.float64)
        likelihood = hidden.new_zeros((), dtype=torch.float64)
        for start in range(0, len(hidden), rows):
            part = hidden_c[start : start + rows]
            gold = target[start : start + rows, None]
            logits = slices.logits(part, weight_c, buffer[: len(part)])
            gold_logits = logits.gather(1, gold).squeeze(1)
            normaliser, probabilities = slices.softmax_(logits), logits
            negative = (normaliser - gold_logits).sum(dtype=torch.float64)
            likelihood += negative
            loss += (1.0 - smoothing) * negative
            if smoothing:
                spread = normaliser - part.to(exact) @ mean_weight
                loss += smoothing * spread.sum(dtype=torch.float64)
            if grad_hidden is None:
                continue
            # The slope of a logit is its probability minus its smoothed target; the part of
            # the target that is the same for all tokens joins after the products.
            probabilities.scatter_add_(1, gold, logits.new_full(gold.shape, smoothing - 1.0))
            slope = slices.slope(probabilities, scale, compute)
            spread_slope = scale * smoothing
            grad_part = grad_hidden[start : start + rows]
            slices.multiply(slope, weight_c, grad_part)
            grad_part.sub_(mean_weight, alpha=spread_slope)
            if grad_weight is None:  # frozen
                continue
            slices.add_gradient(grad_weight, slope, part)
            grad_weight.sub_(part.sum(dim=0, dtype=exact), alpha=spread_slope / vocabulary)
        if grad_hidden is not None:
            ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.scale = scale
        ctx.dtypes = hidden.dtype, weight.dtype
        ctx.mark_non_differentiable(likelihood)
        return loss, likelihood

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        factor = (grad_outputs[0] / ctx.scale).to(grad_hidden.dtype)
        hidden_type, weight_type = ctx.dtypes
        return (
            None,
            (grad_hidden * factor).to(hidden_type),
            None if grad_weight is None else (grad_weight * factor).to(weight_type),
            *(None, None, None, None),
        )


def sliced(exact: SliceFunctions, half: SliceFunctions) -> Callable[..., Losses]:
    """The losses by functions of slices with products in full and in half precision."""

    def cross_entropy(
        hidden: Tensor,
        weight: Tensor,
        target: Tensor,
        smoothing: float,
        half_weight: Tensor | None = None,
    ) -> Losses:
        half_weight = weight if weight.dtype in HALF_PRECISION else half_weight
        slices = exact if half_weight is None else half
        needs_gradient = cuda.wants_gradient(hidden, weight)
        losses: Losses = SlicedCrossEntropy.apply(  # type: ignore[no-untyped-call]
            slices, hidden, weight, target, smoothing, half_weight, needs_gradient
        )
        return losses

    return cross_entropy


def refuses_native(
    hidden: Tensor,
    weight: Tensor,
    _target: Tensor,
    _smoothing: float,
    half_weight: Tensor | None = None,
) -> str | None:
    """Why the kernels cannot be taken, or None."""
    if not hidden.is_cpu or not weight.is_cpu:
        return f"expected tensors on a CPU, got {hidden.device}"
    dtype = weight.dtype if half_weight is None else half_weight.dtype
    if dtype == torch.bfloat16:
        return missing_kernels() or bfloat16.missing_products()
    if dtype != torch.float32:
        return f"expected products in float32 or bfloat16, got {dtype}"
    return missing_kernels()


def example(device: torch.device) -> Call:
    """Two positions and a vocabulary of 8 words."""
    return (
        torch.ones(2, 4, device=device),
        torch.ones(8, 4, device=device),
        torch.ones(2, dtype=torch.int64, device=device),
        0.1,
    ), {}


cross_entropy = Operation(
    "label-smoothed cross-entropy",
    cross_entropy_reference,
    [
        Implementation(
            "triton",
            "kernels in Triton",
            cuda.cross_entropy,
            accepts=lambda hidden, weight, *_rest: cuda.triton_refusal(hidden, weight),
        ),
        Implementation(
            "native", "slices in C", sliced(NATIVE_SLICES, HALF_NATIVE), accepts=refuses_native
        ),
        # Faster than the reference and with less memory wherever it runs.
        Implementation("torch", "slices in torch", sliced(TORCH_SLICES, HALF_TORCH)),
    ],
    example=example,
)
