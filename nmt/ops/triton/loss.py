"""Label-smoothed cross-entropy of the output layer on a GPU. N positions, D width, V vocabulary."""

from typing import Any

import torch
from torch import Tensor

from nmt.ops.half_product import HALF_PRECISION_SCALE, add_product_, product
from nmt.ops.triton import operators

FUSED_LOGITS_AT_ONCE = 64 * 1024 * 1024  # numbers in one slice of logits: 128 MB in bfloat16


class FusedCrossEntropy(torch.autograd.Function):
    """Sums over N of the smoothed loss and of the negative log-likelihood.

    hidden is [N, D], weight [V, D], target [N]. The gradients are computed in the forward pass,
    slice by slice, and scaled in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        target: Tensor,
        smoothing: float,
        half_weight: Tensor | None,
        needs_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        weight_c = weight if half_weight is None else half_weight
        hidden_c = hidden.to(weight_c.dtype)
        ctx.scale = HALF_PRECISION_SCALE if weight_c.dtype != torch.float32 else 1.0
        ctx.dtypes = hidden.dtype, weight.dtype
        rows = max(16, FUSED_LOGITS_AT_ONCE // weight.shape[0])
        grad_weight: Tensor | None = None
        if needs_gradient:
            grad_hidden = torch.empty_like(hidden_c)
        losses = hidden.new_empty(2, len(hidden), dtype=torch.float32)
        for start in range(0, len(hidden), rows):
            part = hidden_c[start : start + rows]
            logits = torch.mm(part, weight_c.t())
            operators.cross_entropy_(
                *(logits, target[start : start + rows], losses[:, start : start + rows]),
                *(smoothing, ctx.scale, needs_gradient),
            )
            if needs_gradient:
                torch.mm(logits, weight_c, out=grad_hidden[start : start + rows])
            if needs_gradient and ctx.needs_input_grad[1]:  # else it is frozen
                if grad_weight is None:
                    grad_weight = product(logits.t(), part, torch.float32)
                else:
                    add_product_(grad_weight, logits.t(), part)
        if needs_gradient:
            ctx.save_for_backward(grad_hidden, grad_weight)
        loss, likelihood = losses.sum(1, dtype=torch.float64)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(likelihood)
        return loss, likelihood

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        factor = grad_outputs[0] / ctx.scale  # a number, whose type the gradients do not take
        hidden_type, weight_type = ctx.dtypes
        return (
            (grad_hidden * factor).to(hidden_type),
            None if grad_weight is None else (grad_weight * factor).to(weight_type),
            *(None, None, None, None),
        )
