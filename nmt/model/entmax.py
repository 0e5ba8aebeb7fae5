"""alpha-entmax along the last dimension: one solver for every alpha in (1, 2], with its gradients.

With beta = alpha - 1 and t the threshold, the weights are p = (1 + beta (x - t))_+ ^ (1 / beta),
t such that they sum to 1: a power law that cuts off, softmax in the limit of beta = 0, sparsemax
at beta = 1. Writing it as exp(log1p(beta (x - t)) / beta) keeps it smooth down to the limit.
"""

from typing import Any

import torch
from torch import Tensor

MAX_STEPS = 40


def threshold_weights(y: Tensor, beta: Tensor | float) -> tuple[Tensor, Tensor]:
    """p and dp/dy for y = x - t."""
    if isinstance(beta, float) and beta == 1.0:
        p = (y + 1.0).clamp_(min=0.0)
        return p, (p > 0).to(p.dtype)
    base = (y * beta).add_(1.0).clamp_(min=0.0)
    if isinstance(beta, float) and beta == 0.5:
        return base.square(), base
    p = (base.log() / beta).exp()
    return p, torch.where(base > 0, p / base, 0.0)


def solve(x: Tensor, beta: Tensor | float) -> Tensor:
    """Weights [..., K] of x [..., K]; rows whose every entry is -inf come out as NaN."""
    y = x - x.amax(-1, keepdim=True)
    shift = torch.zeros_like(y[..., :1])
    for _ in range(MAX_STEPS):
        p, slope = threshold_weights(y - shift, beta)
        total = p.sum(-1, keepdim=True)
        step = -torch.expm1(-beta * total.log()) / beta * total / slope.sum(-1, keepdim=True)
        # Newton's method on the norm of a convex function never overshoots; what looks like a
        # step back is rounding.
        step = step.clamp_(min=0.0)
        moved = shift + step
        if not torch.compiler.is_compiling() and bool(((moved == shift) | moved.isnan()).all()):
            break
        shift = moved
    return p


class Entmax(torch.autograd.Function):
    """Weights of scores; backward needs nothing but the weights."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, visible: Tensor | None, beta: Tensor | float) -> Tensor:
        if visible is not None:
            scores = scores.masked_fill(~visible, -torch.inf)
        p = solve(scores, beta)
        if visible is not None:
            p.masked_fill_(~visible.any(-1, keepdim=True), 0.0)
        ctx.beta = None if isinstance(beta, Tensor) else beta
        ctx.save_for_backward(p, beta if isinstance(beta, Tensor) else None)
        return p

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        (gradient,) = gradients
        p, beta_tensor = ctx.saved_tensors
        beta = ctx.beta if beta_tensor is None else beta_tensor
        slope = torch.where(p > 0, p ** (1.0 - beta), 0.0)
        total = slope.sum(-1, keepdim=True)
        total.masked_fill_(total == 0.0, 1.0)
        mean = (gradient * slope).sum(-1, keepdim=True) / total
        centred = gradient - mean
        beta_gradient = None
        if beta_tensor is not None and ctx.needs_input_grad[2]:
            direct = (p - slope) / beta**2 - torch.special.xlogy(p, p) / beta
            beta_gradient = (direct * centred).sum_to_size(beta_tensor.shape)
        return centred.mul_(slope), None, beta_gradient


def entmax(scores: Tensor, visible: Tensor | None, beta: Tensor | float) -> Tensor:
    """Weights [B, H, Q, K] for scores [B, H, Q, K]; beta = alpha - 1 as number or [H, 1, 1]."""
    return Entmax.apply(scores, visible, beta)  # type: ignore[no-any-return,no-untyped-call]
