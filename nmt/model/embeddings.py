"""Token embeddings and sinusoidal positions."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from nmt.model.dropout import Dropout


def sinusoids(positions: Tensor, dim: int) -> Tensor:
    """[P, D] for positions [P]: sines in the first half of the width, cosines in the second."""
    half = (dim + 1) // 2
    # Wavelengths run geometrically from 2 pi to 10000 * 2 pi, both ends included.
    rates = torch.arange(half, dtype=torch.float64, device=positions.device)
    rates = torch.exp(rates * (-math.log(10000.0) / max(half - 1, 1)))
    angles = positions.to(torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[:, :dim].float()


class PositionalInput(nn.Module):
    """Embeddings scaled by sqrt(D), plus positions, with dropout; owns no parameter.

    The table of positions is computed, grows by doubling, and is no part of the state dict.
    """

    table: Tensor

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.dim = dim
        self.scale = math.sqrt(dim)
        self.dropout = Dropout(dropout)
        self.register_buffer("table", torch.empty(0, dim), persistent=False)
        self.reset_table()

    def reset_table(self) -> None:
        """Compute the first positions, unless the model is only a shape so far."""
        if not self.table.is_meta:
            self.table = sinusoids(torch.arange(512, device=self.table.device), self.dim)

    def forward(self, tokens: Tensor, embedding: Tensor) -> Tensor:
        """[B, T, D] for tokens [B, T]; embedding is [V, D]."""
        return self.at(tokens, embedding, self.positions(tokens.shape[1]))

    def at(self, tokens: Tensor, embedding: Tensor, positions: Tensor) -> Tensor:
        """[..., D] for tokens [...] whose position vectors (broadcastable) are given."""
        x = functional.embedding(tokens, embedding)
        # Positions are float32: their sum with embeddings in bfloat16 is rounded once.
        total = torch.add(positions, x, alpha=self.scale).to(x.dtype)
        result: Tensor = self.dropout(total)
        return result

    def positions(self, length: int) -> Tensor:
        """The first `length` position vectors, [length, D]."""
        if length > self.table.shape[0]:
            count = 1 << (length - 1).bit_length()
            self.table = sinusoids(torch.arange(count, device=self.table.device), self.dim)
        return self.table[:length]
