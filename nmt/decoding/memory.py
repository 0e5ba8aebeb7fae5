"""How much memory a search takes on a GPU, so that batches fill what is free.

Calculated for the longest output that is allowed. Tests compare it with the peak that was recorded
on a fake device. Shapes: S source positions, K hypotheses per sentence, T tokens of an output.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from nmt.decoding.ensemble import Member
from nmt.model.cache import slot_capacity

logger = logging.getLogger(__name__)

SHARE = 0.8  # of the free memory is planned for; the rest is for workspaces and fragments
LEAST_SHARE = SHARE / 16
LARGEST_TENSOR = 2**31 - 1  # numbers; kernels count them with 32 bits


@dataclass(frozen=True)
class Need:
    """The memory per sentence of a batch: bytes at most, and numbers of the largest tensor."""

    bytes: int
    numbers: int


def search_need(members: Sequence[Member], source: int, output: int, *, beam: int) -> Need:
    """The memory to encode a sentence of S tokens and search for outputs of at most T."""
    kept = encoding = numbers = 0
    for member in members:
        model = member.model
        config, element = model.config, model.target_embedding.element_size()
        vocabulary = len(model.target_embedding)
        slots = slot_capacity(beam, output + 1)
        cross = 2 * config.decoder_layers * config.dim * source * element
        past = 2 * config.decoder_layers * config.dim * slots * element
        scores = config.heads * source**2
        logits = beam * vocabulary
        # Twice: when sentences leave or the cache grows, there is the old one and the new one.
        kept += 2 * (cross + past + beam * slots)
        # In the type of the model, in float32, and what normalizing them takes.
        kept += logits * (element + 16)
        activations = source * (8 * config.dim + 2 * config.feed_forward_dim)
        # Attention without a fused kernel writes its scores, and sorts them for top-k.
        encoding = max(encoding, activations * element + 64 * scores)
        widest = max(3 * config.dim, config.feed_forward_dim)
        numbers = max(numbers, logits, config.dim * slots, scores, source * widest)
    return Need(kept + encoding, numbers)


class Budget:
    """The memory that a batch may take; halved when it turns out not to be there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.share = SHARE

    def free(self) -> int:
        """The bytes that torch can still allocate on the GPU."""
        free = torch.cuda.mem_get_info(self.device)[0]
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return free + unused

    def halve(self, size: int) -> None:
        """Take note that memory did not suffice for a batch of this size, and say so."""
        self.share = max(self.share / 2.0, LEAST_SHARE)
        logger.warning(
            "%s: not enough memory for %d sentences at once: they are computed in two halves, and "
            "further batches take less",
            self.device,
            size,
        )

    def batches(self, needs: Sequence[Need]) -> Iterator[list[int]]:
        """Positions of sentences in batches that fit, those that need most first.

        Memory is asked for when a batch is begun. A sentence that does not fit is a batch.
        """
        order = sorted(range(len(needs)), key=lambda position: (-needs[position].bytes, position))
        batch: list[int] = []
        numbers, fitting = 0, 0.0
        for position in order:
            need = needs[position]
            numbers = max(numbers, need.numbers)
            if batch and (len(batch) >= fitting or (len(batch) + 1) * numbers > LARGEST_TENSOR):
                yield batch
                batch, numbers = [], need.numbers
            if not batch:
                fitting = self.share * self.free() // need.bytes
            batch.append(position)
        if batch:
            yield batch
