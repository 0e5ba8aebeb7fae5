"""The norms that ReLA puts on the concatenated heads (paper, equations 4 and 5)."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from nmt.native.training import gated_rms_norm, gated_rms_norm_backward, kernels_suit

EPSILON = 1e-8  # under the root, as the authors' code has it


class GatedRMSNorm(torch.autograd.Function):
    """sigmoid(w z) g z / rms(z) on a CPU, in few passes over z, with its derivative by hand.

    Written r = 1 / rms(z), s = sigmoid(w z), a = dy s, b = a z, q = b (1 - s):
    dg = sum r b, dw = g sum r z q, dz = r (a g + q g w) - z r^3 mean(b g).
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, gain: Tensor, gate: Tensor | None) -> Tensor:
        ctx.natively = kernels_suit(z, gain, gate)
        if ctx.natively:
            z = z.contiguous()
        output, scale = norm_rows(z, gain, gate)
        ctx.save_for_backward(z, gain, gate, scale)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        z, gain, gate, scale = ctx.saved_tensors
        if ctx.natively:
            return gated_rms_norm_backward(z, gain, gate, scale, gradients[0].contiguous())
        return pull_back_rows(z, gain, gate, scale, gradients[0])


def pull_back_rows(
    z: Tensor, gain: Tensor, gate: Tensor | None, scale: Tensor, outer: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of z, gain and gate for `outer`, that of the output, by torch."""
    dim = z.shape[-1]
    x, dy, scale = z.reshape(-1, dim), outer.reshape(-1, dim), scale.view(-1, 1)
    r = scale[:, 0]
    opening = None if gate is None else (x * gate).sigmoid_()
    dx = dy.clone() if opening is None else dy * opening
    product = dx * x
    gain_gradient = torch.mv(product.t(), r)
    shared = torch.mv(product, gain).mul_(r).mul_(r).mul_(r).div_(-dim)
    dx.mul_(gain)
    gate_gradient = None
    if gate is not None and opening is not None:
        product.addcmul_(product, opening, value=-1.0)
        dx.addcmul_(product, gain * gate)
        gate_gradient = torch.mv(product.mul_(x).t(), r).mul_(gain)
    dx.mul_(scale).addcmul_(x, shared[:, None])
    return dx.view_as(z), gain_gradient, gate_gradient


def norm_rows(x: Tensor, gain: Tensor, gate: Tensor | None) -> tuple[Tensor, Tensor]:
    """The normed, gated rows of x [..., D], and 1 / rms of each, [...]."""
    if kernels_suit(x, gain, gate):
        return gated_rms_norm(x.contiguous(), gain, gate, EPSILON)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale: Tensor = norm.square_().div_(x.shape[-1]).add_(EPSILON).rsqrt_()
    y = x * gain if gate is None else (x * gate).sigmoid_().mul_(x).mul_(gain)
    return y.mul_(scale), scale.squeeze(-1)


class HeadNorm(nn.Module):
    """`sigmoid(w * z) * norm(z)` over the concatenated heads z [..., D]; the gate is optional.

    Neither norm has a bias, so a row that attends to nothing (z = 0) stays exactly 0.
    """

    def __init__(
        self,
        dim: int,
        *,
        norm: Literal["rms", "layer", "none"],
        gate: bool,
        gain_init: float | Literal["uniform"],
    ) -> None:
        super().__init__()
        self.dim = dim
        self.norm = norm
        self.gain_init = gain_init
        self.gain = None if norm == "none" else nn.Parameter(torch.empty(dim))
        self.gate = nn.Parameter(torch.empty(dim)) if gate else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the gate and a `uniform` gain from U(-sqrt(3/D), sqrt(3/D)); else the gain given."""
        bound = math.sqrt(3.0 / self.dim)
        if self.gate is not None:
            nn.init.uniform_(self.gate, -bound, bound)
        if self.gain is not None:
            if self.gain_init == "uniform":
                nn.init.uniform_(self.gain, -bound, bound)
            else:
                nn.init.constant_(self.gain, self.gain_init)

    def forward(self, z: Tensor) -> Tensor:
        """[..., D] in the type of z, computed in at least float32."""
        gain = self.gain
        if gain is not None and self.goes_by_hand(z):
            if not torch.is_grad_enabled():
                return norm_rows(z, gain, self.gate)[0]
            y: Tensor = GatedRMSNorm.apply(z, gain, self.gate)  # type: ignore[no-untyped-call]
            return y
        x = z.float() if z.dtype in (torch.float16, torch.bfloat16) else z
        if z.dtype == torch.float16:
            # Unnormalised weights can leave float16's range; what overflowed counts as its limit.
            limit = torch.finfo(torch.float16).max
            x = x.clamp(-limit, limit)
        y = self.normalized(x)
        if self.gate is not None:
            y = torch.sigmoid(self.gate * x) * y
        return y.to(z.dtype)

    def goes_by_hand(self, z: Tensor) -> bool:
        """Whether the form by hand can and should be taken."""
        return (
            self.norm == "rms"
            and not z.is_cuda
            and z.dtype in (torch.float32, torch.float64)
            and not torch.compiler.is_compiling()
        )

    def normalized(self, x: Tensor) -> Tensor:
        """x [..., D] after the norm, before the gate."""
        if self.norm == "none":
            return x
        if self.norm == "layer":
            return functional.layer_norm(x, (self.dim,), self.gain, None, EPSILON)
        return functional.rms_norm(x, (self.dim,), self.gain, EPSILON)

    def extra_repr(self) -> str:
        return f"{self.dim}, norm={self.norm}, gate={self.gate is not None}"
