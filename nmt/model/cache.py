"""What decoding keeps between positions: keys and values of the past, and of the source.

Shapes: B sentences, N = B * beam hypotheses, L layers, H heads, P positions, S source positions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nmt.model.attention import KeyValue

# Key lengths are kept at multiples of this (the rest is hidden), because matrix products give the
# same bits for a row whatever the batch around it only then.
LENGTH_STEP = 16


def round_up(length: int) -> int:
    """The next multiple of LENGTH_STEP."""
    return -(-length // LENGTH_STEP) * LENGTH_STEP


class DecoderCache:
    """The state of a batch of beams: one position a step, the same for all hypotheses."""

    def __init__(
        self,
        cross: Sequence[KeyValue],
        source_visible: Tensor | None,
        *,
        beam: int,
        max_length: int,
    ) -> None:
        key = cross[0].key
        batch, heads, _, head_dim = key.shape
        self.beam = beam
        self.max_length = max_length
        self.position = 0  # of the token that the next step takes
        self.cross = list(cross)  # a KeyValue [B, H, S, Dh] a layer, the same for all beams
        self.source_visible = source_visible  # [B, 1, 1, S]
        capacity = min(LENGTH_STEP, round_up(max_length))
        # Zeros, not empty memory: hidden positions must hold finite numbers.
        self.past = key.new_zeros(len(cross), 2, batch * beam, heads, capacity, head_dim)
        self.spare: Tensor | None = None

    @property
    def batch(self) -> int:
        """Sentences in the cache."""
        return self.past.shape[2] // self.beam

    def visible(self) -> Tensor:
        """Which past positions the current one may attend to: [1, 1, 1, K]."""
        keys = torch.arange(round_up(self.position + 1), device=self.past.device)
        return (keys <= self.position)[None, None, None]

    def append(self, layer: int, new: KeyValue) -> KeyValue:
        """The past of one layer with `new` ([N, H, 1, Dh]) at the current position, K positions."""
        length = round_up(self.position + 1)
        if length > self.past.shape[4]:
            self.grow(length)
        past = self.past[layer, :, :, :, :length]
        past[0, :, :, self.position] = new.key[:, :, 0]
        past[1, :, :, self.position] = new.value[:, :, 0]
        return KeyValue(past[0], past[1])

    def grow(self, length: int) -> None:
        """Make room for at least `length` positions, by doubling up to the longest output."""
        assert self.position < self.max_length, "decoding goes beyond max_length"
        old = self.past
        capacity = max(length, min(2 * old.shape[4], round_up(self.max_length)))
        self.past = old.new_zeros(*old.shape[:4], capacity, old.shape[5])
        self.past[:, :, :, :, : old.shape[4]] = old
        self.spare = None

    def reorder(self, parents: Tensor) -> None:
        """Let new beam j of sentence i continue old beam parents[i, j]; parents is [B, beam]."""
        assert parents.shape == (self.batch, self.beam)
        first = torch.arange(self.batch, device=parents.device)[:, None] * self.beam
        hypotheses = (parents + first).flatten()
        unchanged = torch.arange(len(hypotheses), device=parents.device)
        if torch.equal(hypotheses, unchanged):
            return
        if self.spare is None:
            self.spare = torch.zeros_like(self.past)
        torch.index_select(self.past, 2, hypotheses, out=self.spare)
        self.past, self.spare = self.spare, self.past

    def select(self, rows: Tensor) -> None:
        """Keep only the sentences `rows` (int64), in that order."""
        beams = torch.arange(self.beam, device=rows.device)
        self.past = self.past.index_select(2, (rows[:, None] * self.beam + beams).flatten())
        self.spare = None
        self.cross = [
            KeyValue(memory.key.index_select(0, rows), memory.value.index_select(0, rows))
            for memory in self.cross
        ]
        if self.source_visible is not None:
            self.source_visible = self.source_visible.index_select(0, rows)
