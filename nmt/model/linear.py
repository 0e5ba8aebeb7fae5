"""Linear layers, and two of them with a ReLU between, whose derivatives the kernels help with.

The forward product and the gradients of weights are torch's, which is as quick or quicker there.
N rows, D width, F width inside.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from nmt.model.dropout import draw_dropping, keep_scale
from nmt.native.training import kernels_suit, multiply


def as_rows(x: Tensor) -> Tensor:
    """x [..., D] as contiguous [N, D]."""
    return x.reshape(-1, x.shape[-1]).contiguous()


class LinearFunction(torch.autograd.Function):
    """x weight^T + bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        outer = as_rows(gradients[0])
        inner = multiply(outer, weight).view(x.shape) if ctx.needs_input_grad[0] else None
        return inner, outer.t() @ as_rows(x), outer.sum(0)


class Linear(nn.Linear):
    """torch's layer; in training its derivative is quicker."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not kernels_suit(x, self.weight):
            return super().forward(x)
        result: Tensor = LinearFunction.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return result


class FeedForwardFunction(torch.autograd.Function):
    """Linear, ReLU, dropout, linear: what is dropped is 0 like what ReLU cuts, and kept as that."""

    @staticmethod
    def forward(ctx: Any, rate: float, x: Tensor, *parameters: Tensor) -> Tensor:
        weight, bias, output_weight, output_bias = parameters
        rows = as_rows(x)
        dropping = draw_dropping(len(rows) * len(weight), rate)
        hidden = multiply(rows, weight, transposed=True, bias=bias, relu=True, dropping=dropping)
        ctx.save_for_backward(rows, hidden, weight, output_weight)
        ctx.scale = keep_scale(rate)
        return functional.linear(hidden.view(*x.shape[:-1], -1), output_weight, output_bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, hidden, weight, output_weight = ctx.saved_tensors
        outer = as_rows(gradients[0])
        inner = multiply(outer, output_weight, scale=ctx.scale, where=hidden)
        return (
            None,
            multiply(inner, weight).view(gradients[0].shape) if ctx.needs_input_grad[1] else None,
            inner.t() @ rows,
            inner.sum(0),
            outer.t() @ hidden,
            outer.sum(0),
        )


def feed_forward(x: Tensor, first: nn.Linear, last: nn.Linear, rate: float) -> Tensor:
    """[..., D] for x [..., D] through a layer to F, a ReLU, dropout, and a layer back."""
    result: Tensor = FeedForwardFunction.apply(  # type: ignore[no-untyped-call]
        rate, x, first.weight, first.bias, last.weight, last.bias
    )
    return result
