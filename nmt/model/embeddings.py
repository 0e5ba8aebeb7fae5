"""Token embeddings and sinusoidal positions."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from nmt.config.config import ModelConfig
from nmt.model.dropout import Dropout


def sinusoids(positions: Tensor, config: ModelConfig) -> Tensor:
    """[P, D] for positions [P]: sines in the first half of the width, cosines in the second."""
    dim = config.dim
    half = (dim + 1) // 2
    # Wavelengths run geometrically from 2 pi to 10000 * 2 pi, which is the last one or the next.
    steps = half - 1 if config.position_wavelengths == "inclusive" else half
    rates = torch.arange(half, dtype=torch.float64, device=positions.device)
    rates = torch.exp(rates * (-math.log(10000.0) / max(steps, 1)))
    angles = positions.to(torch.float64)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[:, :dim].float()


class PositionalInput(nn.Module):
    """Embeddings, scaled by sqrt(D) or not, plus positions, with dropout; owns no parameter.

    The table of positions is computed, grows by doubling, and is no part of the state dict.
    """

    table: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.scale = math.sqrt(config.dim) if config.scale_embeddings else 1.0
        self.dropout = Dropout(config.dropout)
        self.register_buffer("table", torch.empty(0, config.dim), persistent=False)
        self.reset_table()

    def reset_table(self) -> None:
        """Compute the first positions, unless the model is only a shape so far."""
        if not self.table.is_meta:
            self.table = sinusoids(torch.arange(512, device=self.table.device), self.config)

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
            self.table = sinusoids(torch.arange(count, device=self.table.device), self.config)
        return self.table[:length]
