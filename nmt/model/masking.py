"""The one masking rule: what is not visible has weight 0, whatever its score (NaN included).

`visible` is a boolean tensor broadcastable to the scores [B, H, Q, K]; None: all keys are visible.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

BITS = {torch.float32: torch.int32, torch.float64: torch.int64}


def hide(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Scores with -inf at hidden keys."""
    return scores if visible is None else scores.masked_fill(~visible, -torch.inf)


def open_empty_rows(visible: Tensor | None) -> Tensor | None:
    """The mask with every key shown in rows that have none, so that a softmax is defined there."""
    return None if visible is None else visible | ~visible.any(-1, keepdim=True)


def clear_empty_rows(weights: Tensor, visible: Tensor | None) -> Tensor:
    """Weights with 0 in the rows that have no visible key."""
    return weights if visible is None else weights * visible.any(-1, keepdim=True)


@dataclass(frozen=True)
class InPlaceMask:
    """A mask in the forms that are quick on a CPU: masked_fill takes nine times an addition."""

    bits: Tensor  # all ones where visible, else 0: as integers of the scores' width
    penalty: Tensor  # 0 where visible, else -inf
    has_empty_rows: bool

    @staticmethod
    def of(visible: Tensor | None, dtype: torch.dtype) -> "InPlaceMask | None":
        """The forms of one mask for scores of a type."""
        if visible is None:
            return None
        while visible.dim() < 4:
            visible = visible[None]
        penalty = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -torch.inf)
        empty = not bool(visible.any(-1).all())
        return InPlaceMask(-visible.to(BITS[dtype]), penalty, empty)

    def block(self, batch: slice, heads: slice) -> "InPlaceMask":
        """The mask of some sentences and heads."""
        return InPlaceMask(
            take(self.bits, batch, heads), take(self.penalty, batch, heads), self.has_empty_rows
        )

    def zero_(self, scores: Tensor) -> None:
        """Put 0 at hidden keys."""
        scores.view(self.bits.dtype).bitwise_and_(self.bits)

    def hide_(self, scores: Tensor) -> None:
        """Put -inf at hidden keys."""
        self.zero_(scores)  # first: NaN plus -inf would stay NaN
        scores.add_(self.penalty)

    def clear_empty_rows_(self, weights: Tensor) -> None:
        """Put 0 in rows without a visible key, where a normalised map is undefined."""
        if self.has_empty_rows:
            self.zero_(weights)


def take(mask: Tensor, batch: slice, heads: slice) -> Tensor:
    """The block of a mask [B or 1, H or 1, ...]."""
    if mask.shape[0] > 1:
        mask = mask[batch]
    return mask[:, heads] if mask.shape[1] > 1 else mask
