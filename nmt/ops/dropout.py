"""Dropout, with random bits that are cheap on a CPU."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from nmt.ops.backend import Implementation, Operation

DROPOUT_LEVELS = 1 << 16  # a rate is rounded to a multiple of 1 / DROPOUT_LEVELS
SPARE_WORDS = 4  # of 64 bits: kernels read whole vectors


@dataclass(frozen=True)
class DropoutMask:
    """Random bits in the form that the kernels take: 16 for each element."""

    bits: Tensor  # int16, with room for whole vectors behind
    least_kept: int  # the lowest value that keeps its element
    keep_scale: float  # the factor of a kept element


def dropped_levels(rate: float) -> int:
    """How many of the DROPOUT_LEVELS values of 16 random bits drop their element."""
    return min(round(rate * DROPOUT_LEVELS), DROPOUT_LEVELS - 1)


def keep_scale(rate: float) -> float:
    """The factor of kept elements, with which the expectation stays exactly the same."""
    return DROPOUT_LEVELS / (DROPOUT_LEVELS - dropped_levels(rate))


def least_kept(rate: float) -> int:
    """The lowest value of 16 random bits, as a signed number, that keeps its element."""
    return dropped_levels(rate) - DROPOUT_LEVELS // 2


def draw_bits(count: int, device: torch.device) -> Tensor:
    """16 random bits for each of `count` elements, [count], with room for vectors at the end.

    Drawing four elements' bits as one integer takes a seventh of the time of `bernoulli_`, which
    draws a double for each element.
    """
    words = torch.empty((count + 3) // 4 + SPARE_WORDS, dtype=torch.int64, device=device)
    words[:-SPARE_WORDS].random_(-(1 << 63), None)
    return words.view(torch.int16)[:count]


def draw_mask(count: int, rate: float) -> DropoutMask | None:
    """The dropout mask of `count` elements in the form that the kernels take; None for rate 0."""
    if rate == 0.0:
        return None
    return DropoutMask(draw_bits(count, torch.device("cpu")), least_kept(rate), keep_scale(rate))


def kept_elements(x: Tensor, rate: float) -> Tensor:
    """0 where an element of x is dropped, 1 where it is kept, in the shape and type of x."""
    bits = draw_bits(x.numel(), x.device).view(x.shape)
    kept = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return torch.ge(bits, least_kept(rate), out=kept)


def dropout_factors(x: Tensor, rate: float) -> Tensor:
    """The factors of dropout for x: 0 with probability `rate`, else 1 / (1 - rate)."""
    return kept_elements(x, rate).mul_(keep_scale(rate))


def dropout_reference(x: Tensor, rate: float, residual: Tensor | None = None) -> Tensor:
    """x after dropout with a rate above 0, added to a residual if there is one."""
    if residual is None:
        return x * dropout_factors(x, rate)
    return torch.addcmul(residual, x, kept_elements(x, rate), value=keep_scale(rate))


def dropout_torch(x: Tensor, rate: float, residual: Tensor | None = None) -> Tensor:
    """x after torch's own dropout, added to a residual if there is one."""
    dropped = functional.dropout(x, rate)
    return dropped if residual is None else residual + dropped


def torch_refusal(x: Tensor, *_rest: object) -> str | None:
    """Torch's own dropout is for GPUs and for compiled models."""
    if x.is_cuda or torch.compiler.is_compiling():
        return None
    return "on a CPU its random numbers take seven times as long to draw"


dropout = Operation(
    "dropout",
    dropout_reference,
    [Implementation("torch", "torch's dropout", dropout_torch, accepts=torch_refusal)],
    example=lambda device: ((torch.ones(4, device=device), 0.1), {}),
)
