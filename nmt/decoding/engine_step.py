"""The step function of the engine in C, for search over tensors.

Shapes: B sentences, K hypotheses per sentence, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nmt.decoding.engine import Engine, EngineBatch


class EngineStep:
    """The step function of a batch of sentences; uses as many threads as torch."""

    def __init__(
        self, engine: Engine, sources: Sequence[Sequence[int]], *, beam: int, max_length: int
    ) -> None:
        threads = torch.get_num_threads()
        self.batch = EngineBatch(engine, sources, beam=beam, max_length=max_length, threads=threads)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Logits [B, K, V] after tokens [B, K], valid until the next call."""
        self.batch.threads = torch.get_num_threads()
        return torch.from_numpy(self.batch.step(tokens.contiguous().numpy()))

    def reorder(self, parents: Tensor) -> None:
        """Continue the old hypotheses parents [B, K]."""
        self.batch.reorder(parents.numpy())

    def select(self, sentences: Tensor) -> None:
        """Keep these sentences [B']."""
        self.batch.select(sentences.numpy())
