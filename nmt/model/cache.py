"""The decoder cache: keys and values of the past positions, and of the source.

The hypotheses of a sentence share one past. Every position adds a slot for each hypothesis that
reads a token there; a table says which slots a hypothesis descends from, and hides the others from
it. When search rearranges hypotheses, the table is rearranged: keys and values are never copied.

Shapes: B sentences, W hypotheses of a sentence, L layers, H heads, P slots, S source positions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nmt.model.attention import HeadValues, KeyValue
from nmt.ops.attention_call import Past
from nmt.ops.masking import InPlaceMask

# Numbers of keys are kept at multiples of this (the rest is hidden), because matrix products give
# the same bits for a row whatever the batch around it only then.
LENGTH_STEP = 16

FIRST_POSITIONS = 16  # for which there is room at first


def round_up(length: int) -> int:
    """The next multiple of LENGTH_STEP."""
    return -(-length // LENGTH_STEP) * LENGTH_STEP


def slot_capacity(beam: int, positions: int) -> int:
    """The slots per sentence that a cache has room for at most, after it has grown by doubling."""
    capacity = round_up(beam * min(FIRST_POSITIONS, positions))
    while capacity < beam * positions:
        capacity *= 2
    return capacity


class DecoderCache:
    """The state of a batch of sentences: one position per step, the same for all hypotheses."""

    def __init__(
        self, cross: Sequence[KeyValue], source_visible: Tensor, *, beam: int, max_length: int
    ) -> None:
        key = cross[0].key
        batch, heads, _, head_dim = key.shape
        self.max_length = max_length
        self.position = 0  # of the token that the next step takes
        self.num_slots = 0  # that are taken
        self.cross = list(cross)  # a KeyValue [B, H, S, Dh] per layer, shared by all hypotheses
        self.source = InPlaceMask.of(source_visible, key.dtype)  # [B, 1, 1, S]
        capacity = round_up(beam * min(FIRST_POSITIONS, max_length))
        self.past = key.new_empty(len(cross), 2, batch, heads, capacity, head_dim)
        self.descent = torch.zeros(batch, 1, capacity, dtype=torch.bool, device=key.device)
        self.layers: list[Past] = []  # with the slots of the current position
        self.head_values: HeadValues = {}  # of the sublayers with learned parameters

    @property
    def batch(self) -> int:
        """The number of sentences in the cache."""
        return self.past.shape[2]

    def open_position(self, width: int) -> None:
        """Take slots for the next token of W hypotheses, before the layers write to them."""
        assert self.position < self.max_length, "decoding goes beyond max_length"
        assert self.position == 0 or width == self.descent.shape[1], "the beams were not reordered"
        old, new = round_up(self.num_slots), round_up(self.num_slots + width)
        if new > self.past.shape[4]:
            self.grow(new)
        if new > old:
            self.past[:, :, :, :, old:new] = 0.0  # hidden slots must hold finite numbers
        self.descent = self.descent.expand(-1, width, -1).contiguous()
        first = self.num_slots
        self.num_slots += width
        self.descent[:, :, first : self.num_slots].diagonal(dim1=1, dim2=2).fill_(True)
        visible = self.descent[:, None, :, :new]
        mask = InPlaceMask(visible, self.past.dtype, has_empty_rows=False)
        self.layers = [Past(layer, first, mask) for layer in self.past[:, :, :, :, :new].unbind(0)]

    def grow(self, capacity: int) -> None:
        """Make room for at least `capacity` slots, by doubling."""
        old = self.past
        capacity = max(capacity, 2 * old.shape[4])
        self.past = old.new_empty(*old.shape[:4], capacity, old.shape[5])
        self.past[:, :, :, :, : old.shape[4]] = old
        descent = self.descent.new_zeros(*self.descent.shape[:2], capacity)
        descent[:, :, : old.shape[4]] = self.descent
        self.descent = descent

    def reorder(self, parents: Tensor) -> None:
        """Let hypothesis w of sentence b continue the old hypothesis parents[b, w]."""
        index = parents[:, :, None].expand(-1, -1, self.descent.shape[2])
        self.descent = self.descent.gather(1, index)

    def select(self, rows: Tensor) -> None:
        """Keep only the sentences `rows` (int64), in that order."""
        self.past = self.past.index_select(2, rows)
        self.descent = self.descent.index_select(0, rows)
        self.cross = [
            KeyValue(memory.key.index_select(0, rows), memory.value.index_select(0, rows))
            for memory in self.cross
        ]
        if self.source is not None:
            self.source = self.source.select(rows)
