"""Dropout in one place, with random bits that are cheap on a CPU."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from nmt.native.training import Dropping

LEVELS = 1 << 16  # a rate is rounded to a multiple of 1 / LEVELS
SPARE_DRAWS = 4  # of 64 bits: kernels read whole vectors


def dropped_levels(rate: float) -> int:
    """How many of the LEVELS values of a 16-bit draw drop their element."""
    return min(round(rate * LEVELS), LEVELS - 1)


def keep_scale(rate: float) -> float:
    """What kept elements are multiplied with, so that the expectation stays exactly the same."""
    return LEVELS / (LEVELS - dropped_levels(rate))


def least_kept(rate: float) -> int:
    """The lowest 16-bit draw, as a signed number, that keeps its element."""
    return dropped_levels(rate) - LEVELS // 2


def draw_bits(count: int, device: torch.device) -> Tensor:
    """16 random bits for each of `count` elements, [count], with room for vectors at the end.

    Drawing four elements' bits as one integer takes a seventh of the time of `bernoulli_`, which
    draws a double for each element.
    """
    draws = torch.empty((count + 3) // 4 + SPARE_DRAWS, dtype=torch.int64, device=device)
    draws[:-SPARE_DRAWS].random_(-(1 << 63), None)
    return draws.view(torch.int16)[:count]


def draw_dropping(count: int, rate: float) -> Dropping | None:
    """The dropout of `count` elements, as the kernels take it."""
    if rate == 0.0:
        return None
    return Dropping(draw_bits(count, torch.device("cpu")), least_kept(rate), keep_scale(rate))


def kept_elements(x: Tensor, rate: float) -> Tensor:
    """0 where an element of x is dropped, 1 where it is kept, in the shape and type of x."""
    bits = draw_bits(x.numel(), x.device).view(x.shape)
    kept = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return torch.ge(bits, least_kept(rate), out=kept)


def dropout_factors(x: Tensor, rate: float) -> Tensor:
    """What dropout multiplies x with: 0 with probability `rate`, else 1 / (1 - rate)."""
    return kept_elements(x, rate).mul_(keep_scale(rate))


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
        if rate == 0.0:
            return x
        if has_own_dropout(x):
            return functional.dropout(x, rate)
        return x * dropout_factors(x, rate)

    def add(self, residual: Tensor, x: Tensor) -> Tensor:
        """The residual plus x after dropout, in one pass where that can be."""
        rate = self.active_rate
        if rate == 0.0 or has_own_dropout(x):
            dropped: Tensor = self(x)
            return residual + dropped
        return torch.addcmul(residual, x, kept_elements(x, rate), value=keep_scale(rate))

    def extra_repr(self) -> str:
        return f"{self.rate}"


def has_own_dropout(x: Tensor) -> bool:
    """Whether torch's dropout is the quicker one: on GPUs, and in a compiled model."""
    return x.is_cuda or torch.compiler.is_compiling()
