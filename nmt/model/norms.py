"""The norms that ReLA puts on the concatenated heads (paper, equations 4 and 5)."""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

EPSILON = 1e-8  # under the root, as the authors' code has it


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
        x = z.float() if z.dtype in (torch.float16, torch.bfloat16) else z
        if z.dtype == torch.float16:
            # Unnormalised weights can leave float16's range; what overflowed counts as its limit.
            limit = torch.finfo(torch.float16).max
            x = x.clamp(-limit, limit)
        y = self.normalized(x)
        if self.gate is not None:
            y = torch.sigmoid(self.gate * x) * y
        return y.to(z.dtype)

    def normalized(self, x: Tensor) -> Tensor:
        """x [..., D] after the norm, before the gate."""
        if self.norm == "none":
            return x
        if self.norm == "layer":
            return functional.layer_norm(x, (self.dim,), self.gain, None, EPSILON)
        return functional.rms_norm(x, (self.dim,), self.gain, EPSILON)

    def extra_repr(self) -> str:
        return f"{self.dim}, norm={self.norm}, gate={self.gate is not None}"
