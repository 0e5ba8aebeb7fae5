"""The arguments of an attention call besides its tensors, and the layout of its tensors.

Shapes: B batch, H heads, T tokens, D width, Dh = D / H.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.ops.score_mappings import ScoreMapping


@dataclass(frozen=True)
class AttentionCall:
    """Everything about a call of attention that is not a tensor."""

    mapping: ScoreMapping
    heads: int
    scale: float
    dropout: float  # rate on the weights
    training: bool
    causal: bool = False  # the mask only hides the keys after a query's own position
    observer: Callable[[Tensor], None] | None = None  # takes the weights before dropout


def split_heads(projections: Sequence[Tensor], heads: int) -> list[Tensor]:
    """Query, key and value, each a view [B, H, T, Dh] of the projections.

    A projection [B, T, n D] holds n of the three side by side.
    """
    width = sum(projection.shape[-1] for projection in projections) // 3
    parts: list[Tensor] = []
    for projection in projections:
        batch, length, total = projection.shape
        shape = (batch, length, total // width, heads, width // heads)
        parts.extend(projection.view(shape).permute(2, 0, 3, 1, 4).unbind(0))
    return parts


@contextmanager
def replayed_random_state(state: Tensor | None) -> Iterator[None]:
    """Draw random numbers from a state, and leave the current one untouched; None: do nothing."""
    if state is None:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(state)
        yield
