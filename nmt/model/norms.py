"""The norm that ReLA puts on the concatenated heads (paper, equations 4 and 5)."""

import math

import torch
from torch import Tensor, nn

from nmt.config.attention_kinds import JoinedHeadsNorm
from nmt.ops.head_norm import HeadNormArguments, head_norm


class HeadNorm(nn.Module):
    """`sigmoid(w * z) * norm(z)` over the concatenated heads z [..., D]; the gate is optional.

    Neither norm has a bias, so a row that attends to nothing (z = 0) stays exactly 0.
    """

    def __init__(self, dim: int, described: JoinedHeadsNorm) -> None:
        super().__init__()
        self.dim = dim
        self.norm = described.norm
        self.gain_init = described.gain_init
        self.gain = None if described.norm == "none" else nn.Parameter(torch.empty(dim))
        self.gate = nn.Parameter(torch.empty(dim)) if described.gate else None
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
        return head_norm(z, *self.arguments)

    @property
    def arguments(self) -> HeadNormArguments:
        """The gain, the gate and the norm."""
        return HeadNormArguments(self.gain, self.gate, self.norm)

    def extra_repr(self) -> str:
        return f"{self.dim}, norm={self.norm}, gate={self.gate is not None}"
