"""Label-smoothed cross-entropy of the output layer, without ever holding all the logits.

N target positions, D model width, V target vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn

from nmt.model.transformer import Transformer
from nmt.native import training
from nmt.native.training import kernels_suit

LOGITS_AT_ONCE = 8 * 1024 * 1024  # numbers in one slice of logits: 32 MB in float32
HALF_PRECISION_SCALE = 1024.0  # keeps small gradients of the logits representable in float16


class LinearCrossEntropy(torch.autograd.Function):
    """hidden [N, D], weight [V, D], target [N] -> (smoothed loss, negative log-likelihood), sums.

    The gradients are computed in the forward pass, slice by slice: the loss is a scalar, so they
    only need to be scaled in the backward pass, and no slice of logits outlives its turn.
    The smoothed target is (1 - smoothing) on the gold token plus smoothing / V everywhere.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, target: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        compute = hidden.dtype
        if torch.is_autocast_enabled(hidden.device.type):
            compute = torch.get_autocast_dtype(hidden.device.type)
        half = compute in (torch.float16, torch.bfloat16)
        exact = torch.float32 if half else compute
        scale = HALF_PRECISION_SCALE if half else 1.0
        with torch.autocast(hidden.device.type, enabled=False):
            hidden_c, weight_c = hidden.to(compute), weight.to(compute)
            vocabulary = weight.shape[0]
            rows = max(16, LOGITS_AT_ONCE // vocabulary)
            needs_gradient = hidden.requires_grad or weight.requires_grad
            grad_hidden = torch.empty_like(hidden, dtype=exact) if needs_gradient else None
            grad_weight = torch.zeros_like(weight, dtype=exact) if needs_gradient else None
            buffer = hidden.new_empty((min(rows, len(hidden)), vocabulary), dtype=compute)
            mean_weight = weight.to(exact).mean(dim=0)
            loss = hidden.new_zeros((), dtype=torch.float64)
            likelihood = hidden.new_zeros((), dtype=torch.float64)
            for start in range(0, len(hidden), rows):
                part = hidden_c[start : start + rows]
                gold = target[start : start + rows, None]
                logits = torch.mm(part, weight_c.t(), out=buffer[: len(part)]).to(exact)
                gold_logits = logits.gather(1, gold).squeeze(1)
                normaliser, probabilities = softmax_(logits)
                negative = (normaliser - gold_logits).sum(dtype=torch.float64)
                likelihood += negative
                loss += (1.0 - smoothing) * negative
                if smoothing:
                    spread = normaliser - part.to(exact) @ mean_weight
                    loss += smoothing * spread.sum(dtype=torch.float64)
                if grad_hidden is None or grad_weight is None:
                    continue
                # The slope of a logit is its probability minus its smoothed target; the part of
                # the target that is the same for all tokens joins after the products.
                probabilities.scatter_add_(1, gold, logits.new_full(gold.shape, smoothing - 1.0))
                slope = probabilities.mul_(scale).to(compute) if half else probabilities
                spread_slope = scale * smoothing
                part_gradient = grad_hidden[start : start + rows]
                if kernels_suit(slope, weight_c):
                    training.multiply(slope, weight_c.contiguous(), out=part_gradient)
                else:
                    part_gradient.copy_(torch.mm(slope, weight_c))
                part_gradient.sub_(mean_weight, alpha=spread_slope)
                if half:
                    grad_weight += torch.mm(slope.t(), part)
                else:
                    grad_weight.addmm_(slope.t(), part)
                grad_weight.sub_(part.sum(dim=0, dtype=exact), alpha=spread_slope / vocabulary)
        if grad_hidden is not None and grad_weight is not None:
            ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.scale = scale
        ctx.dtypes = hidden.dtype, weight.dtype
        ctx.mark_non_differentiable(likelihood)
        return loss, likelihood

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        factor = (grads[0] / ctx.scale).to(grad_hidden.dtype)
        hidden_type, weight_type = ctx.dtypes
        return (
            (grad_hidden * factor).to(hidden_type),
            (grad_weight * factor).to(weight_type),
            None,
            None,
        )


def softmax_(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithms [N] of what normalises logits [N, V], and probabilities in their place."""
    if kernels_suit(logits):
        return training.softmax_(logits), logits
    largest = logits.amax(dim=1)
    probabilities = torch.softmax(logits, dim=1, out=logits)
    # The largest probability is exp(largest - normaliser), at least 1 / V: its logarithm is safe.
    return largest - probabilities.amax(dim=1).log(), probabilities


def cross_entropy(
    hidden: Tensor, weight: Tensor, target: Tensor, *, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Sums over positions of the label-smoothed loss and of the negative log-likelihood."""
    losses: tuple[Tensor, Tensor] = LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, weight, target, smoothing
    )
    return losses


class TranslationLoss(nn.Module):
    """The model with its loss on top: what is wrapped for several processes and called in training.

    Padding costs nothing: only the positions that hold a target token reach the output layer.
    """

    def __init__(self, model: Transformer, *, smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing

    def forward(
        self,
        source: Tensor,
        source_visible: Tensor,
        target_input: Tensor,
        positions: Tensor,
        gold: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """`positions` [N]: where in the flattened [B, T] the tokens `gold` [N] are to come."""
        hidden = self.model(source, source_visible, target_input)
        return cross_entropy(
            hidden.flatten(0, 1)[positions],
            self.model.output_weight,
            gold,
            smoothing=self.smoothing,
        )
