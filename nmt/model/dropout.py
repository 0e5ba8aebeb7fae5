"""Dropout in one place, so that every use of it can be made cheaper at once."""

import torch
from torch import Tensor, nn


def dropout_factors(x: Tensor, rate: float) -> Tensor:
    """What dropout multiplies x with: 0 with probability `rate`, else 1 / (1 - rate)."""
    return torch.empty_like(x).bernoulli_(1.0 - rate).div_(1.0 - rate)


class Dropout(nn.Module):
    """Zeroes each element with probability `rate` in training mode and scales up the others."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    @property
    def active_rate(self) -> float:
        """The rate now: 0 outside training."""
        return self.rate if self.training else 0.0

    def forward(self, x: Tensor) -> Tensor:
        rate = self.active_rate
        return x if rate == 0.0 else x * dropout_factors(x, rate)

    def extra_repr(self) -> str:
        return f"{self.rate}"
