"""Training with torch.compile: one graph for all shapes of batches, made before the first update.

Only forward passes of training are compiled. Validation, observers, decoding and the look ahead at
memory go through the model itself, so that none of them ever has to wait for a compiler.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from nmt.config.config import Config
from nmt.errors import ConfigError
from nmt.model.transformer import Transformer
from nmt.ops.environment import requested_backend
from nmt.training.distributed import Processes
from nmt.training.loss import TranslationLoss

logger = logging.getLogger(__name__)

BACKEND = "inductor"
FIRST_SHAPE = (64, 31, 29)  # sentences, source and target positions of an ordinary batch
# Kernels in Triton are built for multiples of 16 and for other sizes, and by the length of tiles.
LATER_SHAPES = ((16, 32, 48), (3, 65, 63), (2, 128, 144))
LONGEST_IN_WARM_UP = 512
TILE = 64  # keys: a kernel is built for each number of tiles
SECONDS_TO_COMPILE = 1800.0  # that processes wait for the one whose compiler is the slowest


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
        self.longest = longest
        self.compiled_forward = torch.compile(model.forward, backend=BACKEND)
        self.is_compiled = False

    @property
    def output_weight(self) -> Tensor:
        """[V, D]."""
        return self.model.output_weight

    @property
    def half_output_weight(self) -> Tensor | None:
        """The copy of output_weight in half precision, or None."""
        return self.model.half_output_weight

    @property
    def output_bias(self) -> Tensor | None:
        """[V], or None."""
        return self.model.output_bias

    def forward(self, source: Tensor, source_visible: Tensor, target_input: Tensor) -> Tensor:
        """Hidden states [B, T, D] as of the model."""
        if not self.is_compiled:
            self.warm_up(source.device)
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

    def warm_up(self, device: torch.device) -> None:
        """Let the compiler see batches that are the same in every run.

        It chooses loops by the sizes it sees first, and with them the order in which numbers are
        added: a run that is resumed would else differ in its last bits. The later ones make what
        is made for each size, so that no update waits for it.
        """
        self.is_compiled = True
        requested_backend()  # read from the environment once, before there is a graph
        longest = min(self.longest, LONGEST_IN_WARM_UP)
        shapes = [FIRST_SHAPE, *LATER_SHAPES, (2, longest, longest)]
        if device.type == "cuda":
            shapes += [(2, length, length) for length in range(4 * TILE, longest, TILE)]
        parameters = [value for value in self.parameters() if value.requires_grad]
        devices = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            for sentences, source_length, target_length in shapes:
                source = torch.zeros(sentences, source_length, dtype=torch.int64, device=device)
                target = torch.zeros(sentences, target_length, dtype=torch.int64, device=device)
                hidden = self.run(source, torch.ones_like(source, dtype=torch.bool), target)
                if hidden.requires_grad:  # and not only the output layer is trained
                    torch.autograd.grad(hidden.sum(), parameters, allow_unused=True)


def training_module(
    loss: TranslationLoss,
    config: Config,
    processes: Processes,
    precision: Callable[[], AbstractContextManager[object]],
) -> TranslationLoss:
    """The module that training calls: the loss by a compiled model, or the loss itself.

    With `train.compile: auto` that is a compiled model on GPUs, and a failure to compile is a
    warning. All processes do the same.
    """
    wanted = config.train.compile
    if wanted is False or (wanted == "auto" and processes.device.type != "cuda"):
        return loss
    logger.info("compiling the model (train.compile); this can take minutes")
    started = time.monotonic()
    problem = None
    try:
        with compiler_errors(), precision():
            compiled = compiled_loss(loss, longest=config.data.max_length + 1)
            cast(CompiledModel, compiled.model).warm_up(processes.device)
    except (ConfigError, RuntimeError, OSError) as error:
        problem = str(error).strip().split("\n", maxsplit=1)[0]
    processes.wait_for_all(SECONDS_TO_COMPILE)
    if not processes.maximum(int(problem is not None)):
        logger.info("compiled in %.0f seconds", time.monotonic() - started)
        return compiled
    problem = problem or "train.compile: another process could not compile the model"
    if wanted is True:
        raise ConfigError(problem)
    logger.warning("training without torch.compile, which is slower: %s", problem)
    return loss


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
