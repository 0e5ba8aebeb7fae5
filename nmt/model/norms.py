"""The norms that ReLA puts on the concatenated heads (paper, equations 4 and 5)."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

EPSILON = 1e-8  # under the root, as the authors' code has it
BLOCK_ELEMENTS = 131_072  # a thread, of a block of rows that stays in the cache


class GatedRMSNorm(torch.autograd.Function):
    """sigmoid(w z) g z / rms(z) on a CPU, block by block, with its derivative by hand.

    Written r = 1 / rms(z), s = sigmoid(w z), a = dy s, b = a z, q = b (1 - s):
    dg = sum r b, dw = g sum r z q, dz = r (a g + q g w) - z r^3 mean(b g).
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, gain: Tensor, gate: Tensor | None) -> Tensor:
        output = torch.empty_like(z, memory_format=torch.contiguous_format)
        scales = [
            norm_rows(x, gain, gate, out=y)
            for x, y in zip(row_blocks(z), row_blocks(output), strict=True)
        ]
        ctx.save_for_backward(z, gain, gate, *scales)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        z, gain, gate, *scales = ctx.saved_tensors
        result = torch.empty_like(z, memory_format=torch.contiguous_format)
        gain_gradient = torch.zeros_like(gain)
        gate_gradient = None if gate is None else torch.zeros_like(gate)
        blocks = zip(
            row_blocks(z), row_blocks(gradients[0]), row_blocks(result), scales, strict=True
        )
        for x, dy, dz, scale in blocks:
            rows = scale[:, 0]
            opening = None if gate is None else (x * gate).sigmoid_()
            gated = dy if opening is None else torch.mul(dy, opening, out=dz)
            product = gated * x
            gain_gradient.addmv_(product.t(), rows)
            shared = torch.mv(product, gain).mul_(rows).mul_(rows).mul_(rows).div_(-x.shape[-1])
            torch.mul(gated, gain, out=dz)
            if gate is not None and gate_gradient is not None and opening is not None:
                product.addcmul_(product, opening, value=-1.0)
                dz.addcmul_(product, gain * gate)
                gate_gradient.addmv_(product.mul_(x).t(), rows)
            dz.mul_(scale).addcmul_(x, shared[:, None])
        return result, gain_gradient, None if gate_gradient is None else gate_gradient.mul_(gain)


def norm_rows(x: Tensor, gain: Tensor, gate: Tensor | None, *, out: Tensor) -> Tensor:
    """Write the normed, gated rows of x [..., D] to `out`; returns 1 / rms of each, [..., 1]."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale: Tensor = norm.square_().div_(x.shape[-1]).add_(EPSILON).rsqrt_()
    if gate is None:
        torch.mul(x, gain, out=out).mul_(scale)
    else:
        torch.mul(x, gate, out=out).sigmoid_().mul_(x).mul_(gain).mul_(scale)
    return scale


def row_blocks(x: Tensor) -> tuple[Tensor, ...]:
    """x [..., D] as blocks of rows [R, D]."""
    rows = x.reshape(-1, x.shape[-1])
    return torch.split(rows, max(1, BLOCK_ELEMENTS * torch.get_num_threads() // x.shape[-1]))


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
        if gain is not None and self.goes_blockwise(z):
            y: Tensor
            if torch.is_grad_enabled() or z.numel() > BLOCK_ELEMENTS:
                y = GatedRMSNorm.apply(z, gain, self.gate)  # type: ignore[no-untyped-call]
            else:  # a step of decoding: the same at once
                y = torch.empty_like(z, memory_format=torch.contiguous_format)
                norm_rows(z, gain, self.gate, out=y)
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

    def goes_blockwise(self, z: Tensor) -> bool:
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
