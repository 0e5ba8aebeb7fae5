"""One update: forward and backward over its batches, and a step if all numbers are finite."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nmt.config.config import Config
from nmt.data.batching import Batch, Update
from nmt.data.loss_inputs import LossInputs
from nmt.errors import ConfigError
from nmt.training.compilation import compiler_errors, training_module
from nmt.training.distributed import Processes, data_parallel
from nmt.training.half_copies import HalfCopies
from nmt.training.loss import TranslationLoss
from nmt.training.precision import HALF_DTYPES
from nmt.training.schedule import learning_rate
from nmt.training.state import TrainingState, dropout_seed

logger = logging.getLogger(__name__)

SCALE_GROWTH_INTERVAL = 2000
DIGEST_FACTOR = 0x9E3779B97F4A7C15  # odd, with bits all over: those of the golden ratio


@dataclass(frozen=True)
class UpdateResult:
    """The result of an update, as tensors, so that the host need not wait for the device."""

    update: int
    bad: Tensor  # 1.0 where the update was skipped because a number was not finite
    sums: Tensor  # [len(SUM_NAMES)] float64, zero where skipped
    batches: Sequence[Batch]
    scaling: Tensor | None = None  # of float16: the numbers of LossScale after the update


class Updater:
    """Holds what an update changes: weights, optimizer, the average of the weights."""

    def __init__(
        self, loss: TranslationLoss, config: Config, processes: Processes, *, idle_batch: Batch
    ) -> None:
        self.config = config
        self.idle_batch = idle_batch  # for a process that has no row of an update
        self.processes = processes
        self.loss = loss
        self.device = processes.device
        train = config.train
        self.optimizer = torch.optim.Adam(
            trained_parameters(loss),
            lr=1.0,
            betas=(train.adam.beta1, train.adam.beta2),
            eps=train.adam.epsilon,
            fused=True,
        )
        self.average = Average(loss.model, decay=train.ema) if train.ema else None
        dtype = HALF_DTYPES.get(train.precision)
        self.half_copies = None if dtype is None else HalfCopies(loss.model, dtype)
        self.loss_scale: LossScale | None = None  # of float16, from the first update on
        # What training calls; all else goes through `loss`.
        self.module: nn.Module = training_module(loss, config, processes, self.precision)
        if processes.size > 1:
            halved = train.all_reduce == "bfloat16"
            self.module = data_parallel(self.module, self.device, halved=halved)

    def run(self, update: Update, state: TrainingState) -> UpdateResult:
        """Update number `state.update + 1`."""
        number = state.update + 1
        if self.loss_scale is None and self.config.train.precision == "float16":
            self.loss_scale = LossScale(state, self.device)
        scale = None if self.loss_scale is None else self.loss_scale.numbers[0]
        pieces = 1
        while (sums := self.gradients(update, number, scale=scale, pieces=pieces)) is None:
            pieces *= 2
            logger.warning("update %d: not enough memory; trying batches in %d", number, pieces)
        norm = self.unscale_and_clip(scale)
        bad = (norm * 0.0 != 0.0).float()  # infinity or NaN
        self.step(number, bad)
        scaling = None if self.loss_scale is None else self.loss_scale.grow_or_shrink(bad)
        row = self.row(update, sums, norm, bad)
        return UpdateResult(number, bad, row, update.batches, scaling)

    def gradients(
        self, update: Update, number: int, *, scale: Tensor | None = None, pieces: int = 1
    ) -> Tensor | None:
        """Compute the gradients, batches cut in `pieces`; the sums of loss and likelihood.

        None when memory is short and smaller pieces may help. Several processes cannot try again,
        because the others have gone on.
        """
        self.optimizer.zero_grad(set_to_none=True)
        try:
            return self.accumulate(update, number, scale=scale, pieces=pieces)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        if self.processes.size > 1 or pieces >= max(len(b.indices) for b in update.batches):
            raise ConfigError(
                f"update {number}: not enough memory on {self.device}; lower train.batch_tokens "
                "and raise train.accumulate by the same factor, in another run_dir"
            )
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def accumulate(
        self, update: Update, number: int, *, scale: Tensor | None, pieces: int
    ) -> Tensor:
        """Forward and backward over all batches; the sums of loss and likelihood."""
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        # DDP averages over the processes; we want the sum, divided by the tokens of the update.
        factor: float | Tensor = self.processes.size / update.tokens
        if scale is not None:
            factor = scale * factor
        with self.precision():
            for batch, share in zip(update.batches, update.shares, strict=True):
                torch.manual_seed(dropout_seed(self.config.seed, number, share.batch, share.start))
                last = share is update.shares[-1]
                for piece in split_batch(batch, pieces):
                    sums += self.backward(piece, factor=factor, synchronise=last)
            if not update.batches:  # the others wait for our gradients
                torch.manual_seed(0)
                self.backward(self.idle_batch, factor=0.0, synchronise=True)
        return sums

    def backward(self, batch: Batch, *, factor: float | Tensor, synchronise: bool) -> Tensor:
        """Accumulate the gradients of one batch; the sums of its loss and likelihood."""
        waiting = (
            self.module.no_sync()
            if isinstance(self.module, DistributedDataParallel) and not synchronise
            else nullcontext()
        )
        with compiler_errors(), waiting:
            loss, likelihood = self.module(*loss_inputs(batch, self.device))
            # A loss that is not finite must show in the gradients, the one thing all processes see:
            # 0 times infinity is NaN.
            loss.backward(loss.detach() * 0.0 + factor)
        return torch.stack([loss.detach(), likelihood])

    def precision(self) -> AbstractContextManager[object]:
        """A context for forward and backward passes with the weights as they are now."""
        return nullcontext() if self.half_copies is None else self.half_copies

    def unscale_and_clip(self, scale: Tensor | None) -> Tensor:
        """The norm of the gradients of all parameters, before clipping."""
        gradients = [p.grad for p in self.loss.parameters() if p.grad is not None]
        if scale is not None:
            torch._foreach_mul_(gradients, scale.reciprocal())
        norm = torch.nn.utils.get_total_norm(gradients)
        if self.config.train.clip_norm:
            torch.nn.utils.clip_grads_with_norm_(
                trained_parameters(self.loss), self.config.train.clip_norm, norm
            )
        return norm

    def step(self, update: int, bad: Tensor) -> None:
        """Adam's step; the device itself leaves it out where `bad` is 1."""
        rate = learning_rate(self.config.train, dim=self.config.model.dim, update=update)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.found_inf = bad  # type: ignore[attr-defined]
        self.optimizer.grad_scale = None  # type: ignore[attr-defined]
        self.optimizer.step()
        if self.average is not None:
            self.average.update(bad)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """A context in which the model has its averaged weights, if an average is kept."""
        if self.average is None:
            yield
            return
        self.average.swap()
        try:
            yield
        finally:
            self.average.swap()

    def first_bad_tensor(self) -> str | None:
        """The name of a weight, average or moment of Adam's that is not finite, if there is one."""
        named = dict(self.loss.named_parameters())
        tensors: dict[str, Tensor] = {f"the weight {name}": p for name, p in named.items()}
        for name, parameter in named.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"Adam's {key} of {name}"] = value
        if self.average is not None:
            for name, value in zip(self.average.names, self.average.values, strict=True):
                tensors[f"the average of {name}"] = value
        finite = [
            torch.isfinite(tensor.detach()).all().to(self.device) for tensor in tensors.values()
        ]
        if torch.stack(finite).all():  # one wait for the device, not one per tensor
            return None
        return next(name for name, good in zip(tensors, finite, strict=True) if not good)

    def weights_digest(self) -> int:
        """A number that differs (but by chance) where any bit of the weights does."""
        sums = [
            parameter.detach().reshape(-1).view(torch.int32).sum(dtype=torch.int64)
            for parameter in self.loss.parameters()
        ]
        digest = 0
        for value in torch.stack(sums).tolist():
            digest = (digest * DIGEST_FACTOR + int(value)) % (1 << 64)
        return digest

    def row(self, update: Update, sums: Tensor, norm: Tensor, bad: Tensor) -> Tensor:
        """The terms that this update adds to the sums of the log."""
        own = torch.stack(
            [
                torch.ones((), dtype=torch.float64, device=self.device),
                torch.full((), update.tokens, dtype=torch.float64, device=self.device),
                sums[0],
                sums[1],
                norm.double(),
            ]
        )
        return torch.where(bad.bool(), torch.zeros_like(own), own)


class LossScale:
    """Dynamic loss scaling of float16, on the device, so that no update waits for the one before.

    The scale is halved after an overflow and doubled after 2,000 updates without one.
    """

    def __init__(self, state: TrainingState, device: torch.device) -> None:
        # The scale, and the updates since it has changed.
        self.numbers = torch.tensor(
            [state.loss_scale, state.updates_since_overflow], dtype=torch.float32, device=device
        )

    def grow_or_shrink(self, bad: Tensor) -> Tensor:
        """The numbers after an update, which overflowed if `bad` is 1."""
        scale, good = self.numbers.unbind()
        good = (good + 1.0) * (1.0 - bad)
        grown = (good == SCALE_GROWTH_INTERVAL).float()
        self.numbers = torch.stack([scale * (1.0 + grown - 0.5 * bad), good * (1.0 - grown)])
        return self.numbers


def trained_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not frozen."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


class Average:
    """An exponential moving average of the weights that are trained, kept in float32."""

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self.decay = decay
        self.parameters = trained_parameters(model)
        self.names = [name for name, value in model.named_parameters() if value.requires_grad]
        self.values = [parameter.detach().clone().float() for parameter in self.parameters]

    @torch.no_grad()
    def update(self, bad: Tensor) -> None:
        """Move towards the weights, or stay where the update was skipped."""
        weight = (1.0 - self.decay) * (1.0 - bad)
        for value, parameter in zip(self.values, self.parameters, strict=True):
            value.lerp_(parameter.float(), weight.to(value.dtype))

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the weights of the model and their average."""
        for value, parameter in zip(self.values, self.parameters, strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(value)
            value.copy_(kept)


def loss_inputs(batch: Batch, device: torch.device) -> LossInputs:
    """The arguments of TranslationLoss on the device, packed now unless they have been."""
    packed = batch.packed or batch.pack(pinned=device.type == "cuda").packed
    assert packed is not None
    return packed.on(device)


def split_batch(batch: Batch, pieces: int) -> list[Batch]:
    """The sentences of a batch as at most `pieces` batches, with the padding unchanged."""
    if pieces == 1:
        return [batch]
    size = -(-len(batch.indices) // pieces)
    parts = []
    for start in range(0, len(batch.indices), size):
        rows = slice(start, start + size)
        visible = batch.target_visible[rows]
        parts.append(
            Batch(
                source=batch.source[rows],
                source_visible=batch.source_visible[rows],
                target_input=batch.target_input[rows],
                target_output=batch.target_output[rows],
                target_visible=visible,
                indices=batch.indices[rows],
                num_target_tokens=int(visible.sum()),
            )
        )
    return parts


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch or Python was refused memory, on whatever device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return "not enough memory" in str(error) or "can't allocate" in str(error)
