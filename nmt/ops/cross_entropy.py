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
from nmt.ops.kernels import missing_kernels
from nmt.ops.native import training

LOGITS_AT_ONCE = 8 * 1024 * 1024  # numbers in one slice of logits: 32 MB in float32
LOGITS_AT_ONCE_ON_GPU = 64 * 1024 * 1024  # where fewer launches count for more than a cache
HALF_PRECISION_SCALE = 1024.0  # keeps small gradients of the logits representable in float16

Losses = tuple[Tensor, Tensor]


def cross_entropy_reference(
    hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float
) -> Losses:
    """Sums over N of the smoothed loss and of the negative log-likelihood.

    hidden is [N, D], weight [V, D], target [N].
    """
    logits = functional.linear(hidden, weight)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    loss = functional.cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing)
    likelihood = functional.cross_entropy(logits.detach(), target, reduction="sum")
    return loss.double(), likelihood.double()


class SliceFunctions(NamedTuple):
    """The softmax and the matrix product that are applied to slices of logits."""

    # Overwrites logits [N, V] by probabilities; the logarithms [N] of what normalises them.
    softmax_: Callable[[Tensor], Tensor]
    # left [N, V] times right [V, D] to the third argument
    multiply: Callable[[Tensor, Tensor, Tensor], object]


def softmax_torch_(logits: Tensor) -> Tensor:
    """Overwrite logits [N, V] by probabilities; the logarithms [N] of what normalises them."""
    largest = logits.amax(dim=1)
    probabilities = torch.softmax(logits, dim=1, out=logits)
    # The largest probability is exp(largest - normaliser), at least 1 / V: its logarithm is safe.
    return largest - probabilities.amax(dim=1).log()


def multiply_torch(left: Tensor, right: Tensor, out: Tensor) -> None:
    """left [N, V] times right [V, D] to out [N, D], which may be more precise."""
    out.copy_(torch.mm(left, right))


def multiply_native(left: Tensor, right: Tensor, out: Tensor) -> None:
    """left [N, V] times right [V, D] to out [N, D], in C for float32, else by torch."""
    if left.dtype == torch.float32:
        training.multiply(left, right.contiguous(), out=out)
    else:
        multiply_torch(left, right, out)


TORCH = SliceFunctions(softmax_torch_, multiply_torch)
NATIVE = SliceFunctions(training.softmax_, multiply_native)


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
        needs_gradient: bool,
    ) -> Losses:
        compute = compute_type(hidden)
        half = compute in (torch.float16, torch.bfloat16)
        exact = torch.float32 if half else compute
        scale = HALF_PRECISION_SCALE if half else 1.0
        with torch.autocast(hidden.device.type, enabled=False):
            hidden_c, weight_c = hidden.to(compute), weight.to(compute)
            vocabulary = weight.shape[0]
            at_once = LOGITS_AT_ONCE_ON_GPU if hidden.is_cuda else LOGITS_AT_ONCE
            rows = max(16, at_once // vocabulary)
            grad_hidden = torch.empty_like(hidden, dtype=exact) if needs_gradient else None
            trained = needs_gradient and ctx.needs_input_grad[2]
            grad_weight = torch.zeros_like(weight, dtype=exact) if trained else None
            buffer = hidden.new_empty((min(rows, len(hidden)), vocabulary), dtype=compute)
            mean_weight = weight.to(exact).mean(dim=0)
            loss = hidden.new_zeros((), dtype=torch.float64)
            likelihood = hidden.new_zeros((), dtype=torch.float64)
            for start in range(0, len(hidden), rows):
                part = hidden_c[start : start + rows]
                gold = target[start : start + rows, None]
                logits = torch.mm(part, weight_c.t(), out=buffer[: len(part)]).to(exact)
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
                slope = probabilities.mul_(scale).to(compute) if half else probabilities
                spread_slope = scale * smoothing
                grad_part = grad_hidden[start : start + rows]
                slices.multiply(slope, weight_c, grad_part)
                grad_part.sub_(mean_weight, alpha=spread_slope)
                if grad_weight is None:  # frozen
                    continue
                if half:
                    grad_weight += torch.mm(slope.t(), part)
                else:
                    grad_weight.addmm_(slope.t(), part)
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
            None,
            None,
            None,
        )


def compute_type(hidden: Tensor) -> torch.dtype:
    """The type of the output layer's product."""
    if torch.is_autocast_enabled(hidden.device.type):
        return torch.get_autocast_dtype(hidden.device.type)
    return hidden.dtype


def sliced(slices: SliceFunctions) -> Callable[[Tensor, Tensor, Tensor, float], Losses]:
    """The losses by some functions of slices."""

    def cross_entropy(hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float) -> Losses:
        losses: Losses = SlicedCrossEntropy.apply(  # type: ignore[no-untyped-call]
            slices, hidden, weight, target, smoothing, cuda.wants_gradient(hidden, weight)
        )
        return losses

    return cross_entropy


def refuses_native(hidden: Tensor, weight: Tensor, *_rest: object) -> str | None:
    """Why the kernels cannot be taken, or None. In half precision they do the softmax."""
    if not hidden.is_cpu or not weight.is_cpu:
        return f"expected tensors on a CPU, got {hidden.device}"
    if compute_type(hidden) == torch.float64:
        return "expected float32 or half precision, got float64"
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
        Implementation("native", "slices in C", sliced(NATIVE), accepts=refuses_native),
        # Faster than the reference and with less memory wherever it runs.
        Implementation("torch", "slices in torch", sliced(TORCH)),
    ],
    example=example,
)
