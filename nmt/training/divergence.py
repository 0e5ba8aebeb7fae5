"""Watching over a run: numbers that are not finite, a loss that blows up, one that never falls."""

import logging
import math
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from nmt.data.corpus import EncodedCorpus
from nmt.data.vocabulary import PAD
from nmt.errors import DivergedError
from nmt.ops.half_linear import SublayerOutput
from nmt.ops.residual import ResidualStream
from nmt.training.loss import TranslationLoss
from nmt.training.state import SUM_NAMES, TrainingState
from nmt.training.update import UpdateResult, loss_inputs

logger = logging.getLogger(__name__)

SKIPS_ALLOWED = 10  # consecutive updates with non-finite numbers
LOSS_WINDOW = 50  # updates whose mean loss is compared
HIGH_WINDOWS_ALLOWED = 2
SMALLEST_LOSS_SCALE = 1e-4
# A run has learned nothing to speak of while its loss has not come this far from that of a model
# that only knows how frequent each token is towards a perfect one's. On Multi30k, ReLU without a
# norm had come 0.12 (six layers) and 0.19 (three) after 2,600 updates, other kinds 0.46 to 0.61.
SOMETHING_LEARNED = 0.25
UPDATES_TO_LEARN = 2000  # what that may take; a long warm-up counts twice
WARNINGS_ALLOWED = 4
SENTENCES_COUNTED = 20_000


@dataclass(frozen=True)
class LossBounds:
    """Losses per token, label smoothing included, that tell what a model has learned."""

    perfect: float  # of a model that is always right
    frequency: float  # of a model that knows nothing but how frequent each token is


class Arrival:
    """A result whose numbers are on their way to the host, behind the update that makes them.

    Asking for the numbers themselves would wait for all that was launched since then.
    """

    def __init__(self, result: UpdateResult) -> None:
        self.result = result
        numbers = result.bad[None]
        if result.scaling is not None:
            numbers = torch.cat([numbers, result.scaling])
        self.numbers = numbers.to("cpu", non_blocking=True)  # to pinned memory
        self.event = torch.cuda.Event() if result.bad.is_cuda else None  # type: ignore[no-untyped-call]
        if self.event is not None:
            self.event.record()

    def read(self) -> list[float]:
        """1.0 if the update was skipped, else 0.0; with float16 also the numbers of LossScale.

        Waits until they have arrived, and no longer.
        """
        if self.event is not None:
            self.event.synchronize()
        numbers: list[float] = self.numbers.tolist()
        return numbers


class Watch:
    """Looks at each update's result, on a GPU one update late so that nobody waits for it."""

    def __init__(
        self,
        loss: TranslationLoss,
        state: TrainingState,
        *,
        warmup: int,
        loss_bounds: Callable[[], LossBounds],
        borders: Collection[int] = (),
    ) -> None:
        """Losses are compared between two `borders`, the updates after which other text comes."""
        self.loss = loss
        self.state = state
        self.warn_every = math.ceil(max(2 * warmup, UPDATES_TO_LEARN) / LOSS_WINDOW) * LOSS_WINDOW
        self.loss_bounds = cache(loss_bounds)
        self.device = next(loss.parameters()).device
        self.lag = 1 if self.device.type == "cuda" else 0
        self.borders = borders
        self.pending: deque[Arrival] = deque()

    def take(self, result: UpdateResult) -> None:
        """Remember a result; look at those that are old enough."""
        self.pending.append(Arrival(result))
        while len(self.pending) > self.lag:
            self.look(self.pending.popleft())

    def flush(self) -> None:
        """Look at everything that is still waiting: before a checkpoint."""
        while self.pending:
            self.look(self.pending.popleft())

    def look(self, arrival: Arrival) -> None:
        """Count an update that was skipped; too many in a row end the run."""
        state, result = self.state, arrival.result
        bad, *scaling = arrival.read()
        if scaling:
            state.loss_scale, state.updates_since_overflow = scaling[0], int(scaling[1])
            if state.loss_scale < SMALLEST_LOSS_SCALE:
                raise DivergedError(
                    f"diverged at update {result.update}: float16 overflows at every loss scale "
                    f"down to {SMALLEST_LOSS_SCALE}; try bfloat16 or float32"
                )
        if not bad:
            state.skipped_in_a_row = 0
            return
        state.skipped_updates += 1
        if scaling:
            return
        state.skipped_in_a_row += 1
        where = locate(self.loss, result)
        logger.warning("update %d skipped: %s", result.update, where)
        if state.skipped_in_a_row >= SKIPS_ALLOWED:
            raise DivergedError(
                f"diverged at update {result.update}: {SKIPS_ALLOWED} updates in a row with "
                f"non-finite numbers, last {where}; the last checkpoint is good. Try a lower "
                "learning rate, a longer warm-up, or train.clip_norm"
            )

    def judge(self, sums: list[float]) -> None:
        """Take the sums over the last LOSS_WINDOW updates, over all processes."""
        state = self.state
        values = dict(zip(SUM_NAMES, sums, strict=True))
        passed = state.update - LOSS_WINDOW
        if inside := [border for border in self.borders if passed <= border < state.update]:
            self.forget_lowest()
        if not values["tokens"] or any(border > passed for border in inside):
            return
        loss = values["loss"] / values["tokens"]
        if state.lowest_loss is None or loss < state.lowest_loss:
            state.lowest_loss = loss
        high = self.is_high(loss, state.lowest_loss)
        state.high_windows = state.high_windows + 1 if high else 0
        if state.high_windows >= HIGH_WINDOWS_ALLOWED:
            raise DivergedError(
                f"diverged at update {state.update}: the loss was as low as "
                f"{state.lowest_loss:.2f} a token and has been {loss:.2f} lately; the last "
                "checkpoints are kept. Try a lower learning rate or a longer warm-up"
            )
        if state.update % self.warn_every == 0:
            self.look_for_learning(state.lowest_loss)

    def forget_lowest(self) -> None:
        """Let other text have a higher loss; of what was learned remains that something was."""
        state = self.state
        state.high_windows = 0
        if state.lowest_loss is not None and self.has_learned(state.lowest_loss):
            state.lowest_loss = math.nextafter(self.learned_loss(), 0.0)

    def is_high(self, loss: float, lowest: float) -> bool:
        """Whether a loss is far above the lowest one, or all that had been learned is lost."""
        if loss <= lowest + 1.0:
            return False
        return loss > 1.5 * lowest or (
            self.has_learned(lowest) and loss >= self.loss_bounds().frequency
        )

    def has_learned(self, lowest: float) -> bool:
        """Whether a run with this lowest loss knows more than how frequent each token is."""
        return lowest < self.learned_loss()

    def learned_loss(self) -> float:
        """The loss below which a run has learned something."""
        bounds = self.loss_bounds()
        return bounds.frequency - SOMETHING_LEARNED * (bounds.frequency - bounds.perfect)

    def look_for_learning(self, lowest: float) -> None:
        """Warn of a run that has learned nothing so far; the fifth time it is ended.

        By then it has had ten times its warm-up, and at least 10,000 updates.
        """
        update = self.state.update
        if self.has_learned(lowest):
            return
        if update > WARNINGS_ALLOWED * self.warn_every:
            raise self.nothing_learned(lowest)
        logger.warning("update %d: nothing is learned: %s", update, self.describe(lowest))

    def conclude(self) -> None:
        """Raise DivergedError for a run that ends without having learned, though it had time to."""
        lowest = self.state.lowest_loss
        if lowest is None or self.state.update < self.warn_every or self.has_learned(lowest):
            return
        raise self.nothing_learned(lowest)

    def describe(self, lowest: float) -> str:
        """The message about a run that learns nothing."""
        return (
            f"the loss was never below {lowest:.2f} a token in {self.state.update} updates, and "
            f"{self.loss_bounds().frequency:.2f} takes no more than counting words"
        )

    def nothing_learned(self, lowest: float) -> DivergedError:
        """The DivergedError that ends a run which has learned nothing."""
        return DivergedError(
            f"diverged at update {self.state.update}: {self.describe(lowest)}. Try another "
            "learning rate, a longer warm-up, or an attention kind with a norm"
        )


def loss_bounds(corpus: EncodedCorpus, *, vocabulary_size: int, smoothing: float) -> LossBounds:
    """The bounds for a corpus, whose tokens are counted in a sample of it."""
    count = min(len(corpus), SENTENCES_COUNTED)
    rows = np.linspace(0, len(corpus) - 1, count).astype(np.int64)
    tokens, visible = corpus.padded("target", rows, padding=PAD)
    counts = np.bincount(tokens[visible], minlength=vocabulary_size)
    certain = np.eye(1, vocabulary_size)[0]
    return LossBounds(
        perfect=smoothed_entropy(certain, smoothing),
        frequency=smoothed_entropy(counts / counts.sum(), smoothing),
    )


def smoothed_entropy(probabilities: npt.NDArray[np.float64], smoothing: float) -> float:
    """The lowest label-smoothed loss of a model that knows these probabilities [V] and no more."""
    wanted = (1.0 - smoothing) * probabilities + smoothing / len(probabilities)
    wanted = wanted[wanted > 0.0]
    return float(-(wanted * np.log(wanted)).sum())


def locate(loss: TranslationLoss, result: UpdateResult) -> str:
    """Which module and sentences are to blame: the update is run once more under observation."""
    for batch in result.batches:
        module = first_bad_module(loss, loss_inputs(batch, next(loss.parameters()).device))
        if module:
            sentences = ", ".join(str(index) for index in batch.indices[:8])
            return f"{module} (training pairs {sentences}, counted from 0)"
    return "a gradient is not finite, in no single batch alone"


def first_bad_module(loss: TranslationLoss, inputs: tuple[Tensor, ...]) -> str | None:
    """The first module with a non-finite weight, output or gradient."""
    for name, parameter in loss.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"the weight {name} is not finite"
    found: list[str] = []

    def look(name: str, output: object) -> None:
        if isinstance(output, SublayerOutput | ResidualStream):
            output = output[0]
        if isinstance(output, Tensor) and not found and not torch.isfinite(output).all():
            found.append(f"the output of {name or 'the loss'} is not finite")

    hooks = [
        module.register_forward_hook(partial(forward_hook, look, name))
        for name, module in loss.named_modules()
    ]
    try:
        value, _ = loss(*inputs)
    finally:
        for handle in hooks:
            handle.remove()
    if found:
        return found[0]
    if not torch.isfinite(value):
        return "the loss is not finite"
    named = {name: value for name, value in loss.named_parameters() if value.requires_grad}
    gradients = torch.autograd.grad(value, list(named.values()), allow_unused=True)
    for name, gradient in zip(named, gradients, strict=True):
        if gradient is not None and not torch.isfinite(gradient).all():
            return f"the gradient of {name} is not finite"
    return None


def forward_hook(
    look: Callable[[str, object], None],
    name: str,
    _module: nn.Module,
    _input: object,
    output: object,
) -> None:
    """Show a module's output to `look`."""
    look(name, output)
