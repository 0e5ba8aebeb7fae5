"""The arguments of the loss of a batch in one block of memory: one copy brings them to a device.

Shapes: B sentences of a batch, S source positions, T target positions, N target tokens.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

BYTES = 8  # of an int64


class LossInputs(NamedTuple):
    """The arguments of the loss, in their order."""

    source: Tensor  # [B, S] int64
    source_visible: Tensor  # [B, S] bool
    target_input: Tensor  # [B, T] int64
    positions: Tensor  # [N] int64, the places of the target tokens in the flattened [B, T]
    gold: Tensor  # [N] int64, the target tokens


@dataclass(frozen=True)
class PackedInputs:
    """The arguments of the loss as bytes, those of int64 first."""

    block: Tensor  # [bytes] uint8, in pinned memory if it is to be copied to a GPU
    sentences: int
    source_length: int
    target_length: int
    tokens: int

    def on(self, device: torch.device) -> LossInputs:
        """The arguments on a device; the host does not wait for the copy from pinned memory."""
        block = self.block
        if device.type != "cpu":
            block = block.to(device, non_blocking=True)
        sizes = [self.sentences * self.source_length, self.sentences * self.target_length]
        ids = block[: BYTES * (sum(sizes) + 2 * self.tokens)].view(torch.int64)
        source, target_input, positions, gold = ids.split_with_sizes(
            [*sizes, self.tokens, self.tokens]
        )
        visible = block[BYTES * len(ids) :].view(torch.bool)
        return LossInputs(
            source=source.view(self.sentences, self.source_length),
            source_visible=visible.view(self.sentences, self.source_length),
            target_input=target_input.view(self.sentences, self.target_length),
            positions=positions,
            gold=gold,
        )


def pack_inputs(
    source: Tensor,
    source_visible: Tensor,
    target_input: Tensor,
    target_output: Tensor,
    target_visible: Tensor,
    *,
    pinned: bool,
) -> PackedInputs:
    """Find the target tokens of a batch, and pack all arguments of its loss."""
    positions = target_visible.flatten().nonzero().squeeze(1)
    gold = target_output.flatten()[positions]
    ids = torch.cat([source.flatten(), target_input.flatten(), positions, gold])
    block = torch.cat([ids.view(torch.uint8), source_visible.flatten().view(torch.uint8)])
    return PackedInputs(
        block=block.pin_memory() if pinned else block,
        sentences=len(source),
        source_length=source.shape[1],
        target_length=target_input.shape[1],
        tokens=len(positions),
    )
