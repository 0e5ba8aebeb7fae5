"""The end of a sublayer: bias, dropout, residual connection and LayerNorm. D width."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from nmt.ops import cuda
from nmt.ops.backend import Call, Implementation, Operation
from nmt.ops.dropout import DropoutMask, draw_mask, dropout, keep_scale, least_kept
from nmt.ops.kernels import native_refusal
from nmt.ops.native.training import NormedSum, add_norm_backward
from nmt.ops.native.training import add_norm as add_norm_rows


class ResidualStream(NamedTuple):
    """Hidden states [..., D] that a sublayer reads and adds to.

    Sublayers read the rounded copy, in the type of their products; where that is the exact type,
    both are one tensor.
    """

    exact: Tensor
    rounded: Tensor

    @staticmethod
    def of(x: Tensor) -> "ResidualStream":
        """The stream of hidden states in one type."""
        return ResidualStream(x, x)


def add_norm_reference(
    residual: Tensor,
    x: Tensor,
    gain: Tensor,
    bias: Tensor,
    x_bias: Tensor | None = None,
    *,
    rate: float,
    epsilon: float,
    training: bool,  # noqa: ARG001
) -> ResidualStream:
    """LayerNorm(residual + dropout(x + x_bias)) for x [..., D], rounded to the type of x."""
    biased = x if x_bias is None else x + x_bias
    total = residual + biased if rate == 0.0 else dropout(biased, rate, residual)
    exact = functional.layer_norm(total, gain.shape, gain, bias, epsilon)
    return ResidualStream(exact, exact.to(x.dtype))


class NativeAddNorm(torch.autograd.Function):
    """LayerNorm(residual + dropout(x)) in one pass over the rows, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, rate: float, epsilon: float, residual: Tensor, x: Tensor, *affine: Tensor
    ) -> Tensor:
        gain, bias = affine
        ctx.rate = rate
        mask = draw_mask(x.numel(), rate)
        output, left = add_norm_rows(
            residual.contiguous(), x.contiguous(), gain, bias, mask=mask, epsilon=epsilon
        )
        bits = None if mask is None else mask.bits
        ctx.save_for_backward(gain, bits, left.sums, left.means, left.scales)
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        gain, bits, *left = ctx.saved_tensors
        mask = None
        if bits is not None:
            mask = DropoutMask(bits, least_kept(ctx.rate), keep_scale(ctx.rate))
        grad_output = grad_outputs[0].contiguous()
        return None, None, *add_norm_backward(NormedSum(*left), gain, grad_output, mask=mask)


def add_norm_native(
    residual: Tensor,
    x: Tensor,
    gain: Tensor,
    bias: Tensor,
    x_bias: Tensor | None = None,
    *,
    rate: float,
    epsilon: float,
    **_options: object,
) -> ResidualStream:
    """LayerNorm(residual + dropout(x + x_bias)) for x [..., D], by the kernels in C."""
    x = x if x_bias is None else x + x_bias
    result: Tensor = NativeAddNorm.apply(rate, epsilon, residual, x, gain, bias)  # type: ignore[no-untyped-call]
    return ResidualStream.of(result)


def add_norm_triton(
    residual: Tensor, x: Tensor, *affine: Tensor, rate: float, epsilon: float, **_options: object
) -> ResidualStream:
    """LayerNorm(residual + dropout(x + x_bias)) for x [..., D], by the kernels in Triton."""
    return ResidualStream(*cuda.add_norm(residual, x, *affine, rate=rate, epsilon=epsilon))


def example(device: torch.device) -> Call:
    """A row of width 8 in training."""
    row = torch.ones(8, device=device)
    return (row[None], row[None], row, row), {"rate": 0.1, "epsilon": 1e-6, "training": True}


add_norm = Operation(
    "residual, dropout, LayerNorm",
    add_norm_reference,
    [
        Implementation(
            "triton",
            "kernels in Triton",
            add_norm_triton,
            accepts=lambda *tensors, **_options: cuda.triton_refusal(*tensors),
        ),
        Implementation(
            "native",
            "C kernels",
            add_norm_native,
            accepts=lambda *tensors, **_options: native_refusal(*tensors),
            prefers=lambda *_tensors, training, **_options: (
                None if training else "outside training torch's LayerNorm is as fast"
            ),
        ),
    ],
    example=example,
)
