"""The one masking rule: what is not visible has weight 0, whatever its score (NaN included).

`visible` is a boolean tensor broadcastable to the scores [B, H, Q, K]; None: all keys are visible.
"""

from functools import cached_property

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


class InPlaceMask:
    """A mask in the forms that are fast on a CPU: masked_fill is nine times slower than addition.

    The forms are made for a block at a time, so that of a large mask they never exist as a whole.
    """

    def __init__(self, visible: Tensor, dtype: torch.dtype, *, has_empty_rows: bool) -> None:
        self.visible = visible
        self.dtype = dtype
        self.has_empty_rows = has_empty_rows
        self.last: tuple[tuple[int | None, ...], MaskBlock] | None = None

    @staticmethod
    def of(visible: Tensor | None, dtype: torch.dtype) -> "InPlaceMask | None":
        """The mask for scores of a type."""
        if visible is None:
            return None
        while visible.dim() < 4:
            visible = visible[None]
        # A GPU is not asked: the host would wait for the answer.
        may_be_empty = visible.is_cuda or not bool(visible.any(-1).all())
        return InPlaceMask(visible, dtype, has_empty_rows=may_be_empty)

    def select(self, rows: Tensor) -> "InPlaceMask":
        """The mask of these sentences (int64); the host does not look whether it has empty rows."""
        kept = self.visible.index_select(0, rows)
        return InPlaceMask(kept, self.dtype, has_empty_rows=self.has_empty_rows)

    def block(self, batch: slice, heads: slice, queries: slice) -> "MaskBlock":
        """The mask of some sentences, heads and queries; the last one made is kept."""
        wanted = [
            part if size > 1 else slice(None)
            for part, size in zip((batch, heads, queries), self.visible.shape, strict=False)
        ]
        place = tuple(part.start for part in wanted)
        if self.last is None or self.last[0] != place:
            bits = -self.visible[tuple(wanted)].to(BITS[self.dtype])
            self.last = (place, MaskBlock(bits, self.dtype, has_empty_rows=self.has_empty_rows))
        return self.last[1]


class MaskBlock:
    """The mask of one block of scores."""

    def __init__(self, bits: Tensor, dtype: torch.dtype, *, has_empty_rows: bool) -> None:
        self.bits = bits  # all ones where visible, else 0: as integers of the scores' width
        self.dtype = dtype
        self.has_empty_rows = has_empty_rows

    @cached_property
    def penalty(self) -> Tensor:
        """0 where visible, else -inf."""
        infinite = torch.tensor(-torch.inf, dtype=self.dtype).view(self.bits.dtype)
        return self.bits.bitwise_not().bitwise_and_(infinite).view(self.dtype)

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
