"""The norm that ReLA puts on the concatenated heads (paper, equations 4 and 5).

It is sigmoid(w z) norm(z) over z [..., D]; the gate w and the gain of the norm are optional.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from nmt.ops import cuda
from nmt.ops.backend import Call, Implementation, Operation
from nmt.ops.kernels import native_refusal
from nmt.ops.native.training import gated_rms_norm, gated_rms_norm_backward

EPSILON = 1e-8  # under the root, as the authors' code has it
NormName = Literal["rms", "layer", "none"]


class HeadNormArguments(NamedTuple):
    """The arguments of `head_norm` besides the heads: gain [D], gate [D] and the norm."""

    gain: Tensor | None
    gate: Tensor | None
    norm: NormName


def head_norm_reference(
    z: Tensor, gain: Tensor | None, gate: Tensor | None, norm: NormName
) -> Tensor:
    """[..., D] in the type of z, computed in at least float32."""
    x = z.float() if z.dtype in (torch.float16, torch.bfloat16) else z
    if z.dtype == torch.float16:
        # Unnormalised weights can leave float16's range; what overflowed counts as its limit.
        limit = torch.finfo(torch.float16).max
        x = x.clamp(-limit, limit)
    shape = z.shape[-1:]
    y = x
    if norm == "layer":
        y = functional.layer_norm(x, shape, gain, None, EPSILON)
    elif norm == "rms":
        y = functional.rms_norm(x, shape, gain, EPSILON)
    if gate is not None:
        y = torch.sigmoid(gate * x) * y
    return y.to(z.dtype)


class RowFunctions(NamedTuple):
    """Gated RMSNorm of rows, and its backward pass."""

    # (z, gain, gate) -> (output, 1 / rms(z) of each row)
    forward: Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
    # (z, gain, gate, 1 / rms(z), grad_output) -> gradients of z, gain and gate
    backward: Callable[
        [Tensor, Tensor, Tensor | None, Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]
    ]


def forward_torch(z: Tensor, gain: Tensor, gate: Tensor | None) -> tuple[Tensor, Tensor]:
    """The normed, gated rows of z [..., D], and 1 / rms of each, [...]."""
    norm = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    scale: Tensor = norm.square_().div_(z.shape[-1]).add_(EPSILON).rsqrt_()
    y = z * gain if gate is None else (z * gate).sigmoid_().mul_(z).mul_(gain)
    return y.mul_(scale), scale.squeeze(-1)


def backward_torch(
    z: Tensor, gain: Tensor, gate: Tensor | None, scale: Tensor, grad_output: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of z, gain and gate in few passes over z.

    Written r = 1 / rms(z), s = sigmoid(w z), a = dy s, b = a z, q = b (1 - s):
    dg = sum r b, dw = g sum r z q, dz = r (a g + q g w) - z r^3 mean(b g).
    """
    dim = z.shape[-1]
    x, dy, scale = z.reshape(-1, dim), grad_output.reshape(-1, dim), scale.view(-1, 1)
    r = scale[:, 0]
    opening = None if gate is None else (x * gate).sigmoid_()
    dx = dy.clone() if opening is None else dy * opening
    product = dx * x
    grad_gain = torch.mv(product.t(), r)
    shared = torch.mv(product, gain).mul_(r).mul_(r).mul_(r).div_(-dim)
    dx.mul_(gain)
    grad_gate = None
    if gate is not None and opening is not None:
        product.addcmul_(product, opening, value=-1.0)
        dx.addcmul_(product, gain * gate)
        grad_gate = torch.mv(product.mul_(x).t(), r).mul_(gain)
    dx.mul_(scale).addcmul_(x, shared[:, None])
    return dx.view_as(z), grad_gain, grad_gate


TORCH = RowFunctions(forward_torch, backward_torch)
NATIVE = RowFunctions(
    lambda z, gain, gate: gated_rms_norm(z.contiguous(), gain, gate, EPSILON),
    lambda z, gain, gate, scale, grad_output: gated_rms_norm_backward(
        z.contiguous(), gain, gate, scale, grad_output.contiguous()
    ),
)


class GatedRMSNorm(torch.autograd.Function):
    """sigmoid(w z) g z / rms(z) with a handwritten backward pass."""

    @staticmethod
    def forward(
        ctx: Any, rows: RowFunctions, z: Tensor, gain: Tensor, gate: Tensor | None
    ) -> Tensor:
        output, scale = rows.forward(z, gain, gate)
        ctx.rows = rows
        ctx.save_for_backward(z, gain, gate, scale)
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        rows: RowFunctions = ctx.rows
        z, gain, gate, scale = ctx.saved_tensors
        return None, *rows.backward(z, gain, gate, scale, grad_outputs[0])


def handwritten(
    rows: RowFunctions,
) -> Callable[[Tensor, Tensor | None, Tensor | None, NormName], Tensor]:
    """The norm by some functions of rows."""

    def head_norm(z: Tensor, gain: Tensor | None, gate: Tensor | None, _norm: NormName) -> Tensor:
        assert gain is not None
        if not torch.is_grad_enabled():
            return rows.forward(z, gain, gate)[0]
        result: Tensor = GatedRMSNorm.apply(rows, z, gain, gate)  # type: ignore[no-untyped-call]
        return result

    return head_norm


def torch_refusal(
    z: Tensor, _gain: Tensor | None, _gate: Tensor | None, norm: NormName
) -> str | None:
    """Why the handwritten passes in torch cannot be taken, or None."""
    if norm != "rms":
        return f"expected RMSNorm, got {norm}"
    if not z.is_cpu or z.dtype not in (torch.float32, torch.float64):
        return f"expected float32 or float64 on a CPU, got {z.dtype} on {z.device}"
    return "torch.compile makes its own" if torch.compiler.is_compiling() else None


def native_norm_refusal(
    z: Tensor, gain: Tensor | None, gate: Tensor | None, norm: NormName
) -> str | None:
    """Why the kernels cannot be taken, or None."""
    return f"expected RMSNorm, got {norm}" if norm != "rms" else native_refusal(z, gain, gate)


def example(device: torch.device) -> Call:
    """A row of width 8."""
    row = torch.ones(8, device=device)
    return (row[None], row, row, "rms"), {}


head_norm = Operation(
    "norm of joined heads",
    head_norm_reference,
    [
        Implementation(
            "triton", "kernels in Triton", cuda.head_norm, accepts=cuda.refuses_head_norm
        ),
        Implementation("native", "C kernels", handwritten(NATIVE), accepts=native_norm_refusal),
        Implementation("torch", "handwritten backward", handwritten(TORCH), accepts=torch_refusal),
    ],
    example=example,
)
