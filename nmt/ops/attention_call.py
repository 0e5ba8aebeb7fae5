"""The arguments of an attention call besides its tensors, and the layout of its tensors.

Shapes: B batch, H heads, T tokens, D width, Dh = D / H.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.ops.masking import InPlaceMask
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


@dataclass(frozen=True)
class Past:
    """Keys and values of a layer so far, in slots, with room for those of a new position."""

    key_value: Tensor  # [2, B, H, P, Dh]
    first: int  # slot of the new position; one for each hypothesis
    mask: InPlaceMask  # the slots that each hypothesis sees, its new one among them

    def append(self, new: Tensor) -> None:
        """Write keys and values [2, B, H, W, Dh] to the slots of the new position.

        Numbers that are not finite become finite: a hypothesis hides them, but 0 x NaN is NaN.
        """
        end = self.first + new.shape[3]
        torch.nan_to_num(new, out=self.key_value[:, :, :, self.first : end])


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
