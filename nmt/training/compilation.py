"""Training with torch.compile: one graph for all shapes of batches, made in the first update.

Only forward passes of training are compiled. Validation, observers, decoding and the look ahead at
memory go through the model itself, so that none of them ever has to wait for a compiler.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from nmt.errors import ConfigError
from nmt.model.transformer import Transformer
from nmt.training.loss import TranslationLoss

BACKEND = "inductor"
FIRST_SHAPE = (64, 31, 29)  # sentences, source and target positions of an ordinary batch


class CompiledModel(nn.Module):
    """A model whose forward pass is compiled; weights and all else are those of the model.

    The compiler would make another graph for each of these, so none of them reaches it: sizes
    that happen to be equal in the first batch (which `mark_dynamic` tells apart), a batch of one
    sentence, and a table of positions that grows.
    """

    def __init__(self, model: Transformer, *, longest: int) -> None:
        super().__init__()
        for side in (model.source_input, model.target_input):
            side.positions(longest)
        self.model = model
        self.compiled_forward = torch.compile(model.forward, backend=BACKEND)
        self.is_compiled = False

    @property
    def output_weight(self) -> Tensor:
        """[V, D]."""
        return self.model.output_weight

    def forward(self, source: Tensor, source_visible: Tensor, target_input: Tensor) -> Tensor:
        """Hidden states [B, T, D] as of the model."""
        if not self.is_compiled:
            self.compile_for(source.device)
            self.is_compiled = True
        rows = len(source)
        inputs = (source, source_visible, target_input)
        if rows == 1:
            inputs = (source.repeat(2, 1), source_visible.repeat(2, 1), target_input.repeat(2, 1))
        return self.run(*inputs)[:rows]

    def run(self, *inputs: Tensor) -> Tensor:
        """The compiled forward pass, told which sizes vary."""
        for tensor in inputs:
            torch._dynamo.mark_dynamic(tensor, (0, 1))
        hidden: Tensor = self.compiled_forward(*inputs)
        return hidden

    def compile_for(self, device: torch.device) -> None:
        """Let the compiler see a batch that is the same in every run.

        It chooses loops by the sizes it sees first, and with them the order in which numbers are
        added: a run that is resumed would else differ in its last bits.
        """
        sentences, source_length, target_length = FIRST_SHAPE
        source = torch.zeros(sentences, source_length, dtype=torch.int64, device=device)
        target = torch.zeros(sentences, target_length, dtype=torch.int64, device=device)
        with torch.random.fork_rng():
            hidden = self.run(source, torch.ones_like(source, dtype=torch.bool), target)
            torch.autograd.grad(hidden.sum(), list(self.parameters()), allow_unused=True)


def compiled_loss(loss: TranslationLoss, *, longest: int) -> TranslationLoss:
    """The same loss of the same weights by a compiled model; no sentence has over `longest` tokens.

    A kind of attention that can be no part of the graph is refused: it would be compiled in
    pieces, again and again.
    """
    for attention in loss.model.attentions().values():
        if not attention.core.mapping.traceable:
            raise ConfigError(
                "train.compile: attention with backend: package cannot be compiled; use backend: "
                "solver, or write compile: false"
            )
    model = CompiledModel(loss.model, longest=longest)
    return TranslationLoss(cast(Transformer, model), smoothing=loss.smoothing)


@contextmanager
def compiler_errors() -> Iterator[None]:
    """Turn a compiler that is missing or fails into one line of advice."""
    try:
        yield
    except TorchDynamoException as error:
        cause = getattr(error, "inner_exception", error)
        reason = str(cause).strip().split("\n", maxsplit=1)[0]
        raise ConfigError(
            f"train.compile: torch could not compile the model ({reason}); it needs a C++ compiler "
            "on a CPU, Triton and a C compiler on a GPU. Install them, or write compile: false"
        ) from error
