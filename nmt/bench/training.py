"""The speed of training: whole updates with every attention kind, on the same batches."""

import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nmt.bench.kinds import REFERENCE_KIND, with_attention
from nmt.bench.machine import MatrixProduct, describe_machine, peak_memory
from nmt.bench.result import Result, Speed, speed_fields
from nmt.bench.synthetic import Shapes, synthetic_config, write_synthetic_corpus
from nmt.bench.timing import Spread, measure_rounds
from nmt.bench.work import training_operations
from nmt.checkpoint.start import start_codec
from nmt.config.config import Config
from nmt.data.batching import BatchStream, Update
from nmt.data.corpus import EncodedCorpus
from nmt.data.prepare import prepare
from nmt.errors import ConfigError, UserError
from nmt.model.summary import count
from nmt.model.transformer import Transformer
from nmt.progress import progress_bar
from nmt.training.distributed import Processes
from nmt.training.loss import TranslationLoss
from nmt.training.precision import HALF_DTYPES, with_precision
from nmt.training.state import TrainingState
from nmt.training.stream import training_stream
from nmt.training.update import Updater

CONFIGURED = "config"  # as a kind: the attention that the config asks for


@dataclass(frozen=True)
class Task:
    """The common part of all kinds: the config and the batches of a few updates."""

    config: Config
    source_vocabulary: int
    target_vocabulary: int
    updates: Sequence[Update]

    @property
    def tokens(self) -> int:
        """Target tokens of all updates and processes, without padding."""
        return sum(update.tokens for update in self.updates)

    @property
    def own_tokens(self) -> int:
        """Target tokens of this process."""
        return sum(b.num_target_tokens for update in self.updates for b in update.batches)

    @property
    def operations(self) -> int:
        """Operations in the matrix products of all updates, of this process."""
        return sum(
            training_operations(
                self.config.model, update.batches, vocabulary=self.target_vocabulary
            )
            for update in self.updates
        )


@dataclass(frozen=True)
class TrainingSpeed(Speed):
    """The speed of one attention kind; the memory is that of a model with its optimizer."""

    kind: str


def task_of_config(config: Config, updates: int) -> Task:
    """The first updates of a config, on its own data."""
    prepared = prepare(config, start=start_codec(config))
    return Task(
        config,
        len(prepared.codec.source.vocabulary),
        len(prepared.codec.target.vocabulary),
        list(itertools.islice(training_stream(config, prepared).updates(), updates)),
    )


def synthetic_task(
    shapes: Shapes,
    updates: int,
    *,
    precision: str,
    compiled: bool = False,
    accumulate: int = 1,
    team: Processes | None = None,
) -> Task:
    """Updates on random data, or the share of this process in them."""
    config = synthetic_config(shapes, precision=precision)
    train = replace(config.train, compile=compiled, accumulate=accumulate)
    config = replace(config, train=train)
    full = shapes.batch_tokens // (shapes.length + 1) * (shapes.length + 1)
    least = accumulate * full if shapes.same_length else 0
    with tempfile.TemporaryDirectory(prefix="nmt-bench-") as directory:
        corpus = write_synthetic_corpus(Path(directory), shapes)
        batches = first_updates(config, corpus, updates, team=team, least_tokens=least)
    return Task(config, shapes.vocabulary, shapes.vocabulary, batches)


def first_updates(
    config: Config,
    corpus: EncodedCorpus,
    updates: int,
    *,
    team: Processes | None = None,
    least_tokens: int = 0,
) -> list[Update]:
    """The batches that training would begin with; of a team, the share of this process.

    Updates of fewer than `least_tokens` target tokens are passed over.
    """
    stream = BatchStream(
        corpus,
        batch_tokens=config.train.batch_tokens,
        seed=config.seed,
        accumulate=config.train.accumulate,
        rank=0 if team is None else team.rank,
        world_size=1 if team is None else team.size,
    )
    large = (update for update in stream.updates() if update.tokens >= least_tokens)
    return list(itertools.islice(large, updates))


class TrainingModel:
    """A model with one attention kind in training; a call runs all updates of the task once."""

    def __init__(
        self, task: Task, kind: str, device: torch.device, *, team: Processes | None = None
    ) -> None:
        config = task.config
        if kind != CONFIGURED:
            config = replace(config, model=with_attention(config.model, kind))
        torch.manual_seed(config.seed)
        model = Transformer(
            config.model,
            source_vocabulary_size=task.source_vocabulary,
            target_vocabulary_size=task.target_vocabulary,
        ).to(device)
        self.parameters = count(model)
        self.state = TrainingState()
        self.updates = task.updates
        self.updater = Updater(
            TranslationLoss(model, smoothing=config.train.label_smoothing),
            config,
            team or Processes(0, 1, device, None),
            idle_batch=task.updates[0].batches[0],
        )

    def check_memory(self) -> None:
        """Raise if the batches do not fit, since an update that cuts them is another task."""
        for update in self.updates:
            if self.updater.gradients(update, 1) is None:
                raise ConfigError(f"not enough memory on {self.updater.device} for a whole batch")

    def __call__(self) -> None:
        for update in self.updates:
            self.updater.run(update, self.state)
            self.state.update += 1
        self.updater.optimizer.zero_grad(set_to_none=True)  # leaves memory to the other models


def measure_training(
    task: Task, kinds: Sequence[str], team: Processes, *, repeats: int
) -> Result[TrainingSpeed]:
    """The speed of every kind; each is warmed up before the rounds that count."""
    device = team.device
    task = replace(task, config=with_precision(task.config, device))
    if task.config.train.compile:  # all models share the code that is compiled
        torch._dynamo.config.recompile_limit = max(8, 8 * len(kinds))
    machine = describe_machine(device)
    product = MatrixProduct(device, HALF_DTYPES.get(task.config.train.precision, torch.float32))
    # The very first call pays for what torch sets up once.
    TrainingModel(without_compiler(task), kinds[0], device, team=team)()
    models: dict[str, TrainingModel] = {}
    peaks: dict[str, int | None] = {}
    bar = progress_bar(total=len(kinds) * (1 + 2 * repeats), unit="turn", description="training")
    with bar:
        for kind in kinds:
            with peak_memory(device) as peak:
                models[kind] = TrainingModel(task, kind, device, team=team)
                models[kind].check_memory()
                models[kind]()
            peaks[kind] = peak.bytes
            bar.update(1)
        cases = [case for model in models.values() for case in (product.case, model)]
        times = measure_rounds(cases, repeats=repeats, device=device, advance=bar.update)
    matrix_rates = product.rates(times[0::2])
    seconds = dict(zip(models, times[1::2], strict=True))
    reference = REFERENCE_KIND if REFERENCE_KIND in models else kinds[0]
    operations = task.operations
    rows = [
        TrainingSpeed(
            kind=kind,
            parameters=model.parameters,
            peak_memory_bytes=peaks[kind],
            **speed_fields(
                seconds[kind], seconds[reference], rate, tokens=task.tokens, operations=operations
            ),
        )
        for (kind, model), rate in zip(models.items(), matrix_rates, strict=True)
    ]
    facts = {
        "matrix_rate": Spread.of(matrix_rates.flatten()),
        "tokens": task.tokens,
        "operations_per_token": operations / max(1, task.own_tokens),
        "reference": reference,
        "processes": team.size,
    }
    return Result(machine, rows, facts)


def on_device(team: Processes, device: torch.device) -> Processes:
    """A single process on the GPU that was named, which becomes the current one."""
    if team.size > 1:
        raise UserError(f"--device {device}: torchrun gives each process its own GPU: say cuda")
    torch.cuda.set_device(device)
    return replace(team, device=device)


def without_compiler(task: Task) -> Task:
    """The same task without torch.compile."""
    train = replace(task.config.train, compile=False)
    return replace(task, config=replace(task.config, train=train))
