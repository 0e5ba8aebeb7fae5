"""The end of a sublayer: residual connection, dropout and LayerNorm. D width."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from nmt.ops import cuda
from nmt.ops.backend import Call, Implementation, Operation
from nmt.ops.dropout import DropoutMask, draw_mask, dropout, keep_scale, least_kept
from nmt.ops.kernels import native_refusal
from nmt.ops.native.training import NormedSum, add_norm_backward
from nmt.ops.native.training import add_norm as add_norm_rows


def add_norm_reference(
    residual: Tensor,
    x: Tensor,
    gain: Tensor,
    bias: Tensor,
    *,
    rate: float,
    epsilon: float,
    training: bool,  # noqa: ARG001
) -> Tensor:
    """LayerNorm(residual + dropout(x)) for x [..., D]."""
    total = residual + x if rate == 0.0 else dropout(x, rate, residual)
    return functional.layer_norm(total, gain.shape, gain, bias, epsilon)


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


def add_norm_native(*tensors: Tensor, rate: float, epsilon: float, **_options: object) -> Tensor:
    """LayerNorm(residual + dropout(x)) for x [..., D], by the kernels in C."""
    result: Tensor = NativeAddNorm.apply(rate, epsilon, *tensors)  # type: ignore[no-untyped-call]
    return result


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
            cuda.add_norm,
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
