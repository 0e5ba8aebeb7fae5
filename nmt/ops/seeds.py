"""Seeds of dropout's random bits on a GPU, drawn together for a whole forward pass."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

SEEDS_AT_ONCE = 128  # Transformer-base takes 48 in a forward pass
SEED_STRIDE = 2  # numbers from seed to seed, so that each is aligned to 16 bytes, like a tensor


class PassSeeds:
    """The seeds of one forward pass: one launch for all, at the first that is taken."""

    def __init__(self) -> None:
        self.drawn: Tensor | None = None
        self.taken = 0

    def take(self, device: torch.device) -> Tensor:
        """A seed [1] that nobody else has."""
        place = self.taken % SEEDS_AT_ONCE * SEED_STRIDE
        if self.drawn is None or place == 0:
            self.drawn = torch.randint(1 << 62, (SEEDS_AT_ONCE * SEED_STRIDE,), device=device)
        self.taken += 1
        return self.drawn[place : place + 1]


_current: PassSeeds | None = None


@contextmanager
def seeds_of_one_pass() -> Iterator[None]:
    """Let `draw_seed` hand out seeds that are drawn together."""
    global _current
    before, _current = _current, PassSeeds()
    try:
        yield
    finally:
        _current = before


def draw_seed(rate: float, device: torch.device) -> Tensor | None:
    """A seed [1] of dropout's random bits, drawn on the device; None: nothing is dropped."""
    if rate == 0.0:
        return None
    return (PassSeeds() if _current is None else _current).take(device)
