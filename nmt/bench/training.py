"""Speed of training: whole updates of every attention kind, interleaved, on the same batches."""

import gc
import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nmt.bench.kinds import REFERENCE, with_attention
from nmt.bench.machine import Machine, MatrixProduct, describe_machine, peak_memory
from nmt.bench.synthetic import Shapes, synthetic_config, write_synthetic_corpus
from nmt.bench.timing import Spread, seconds
from nmt.bench.work import training_operations
from nmt.config.config import Config
from nmt.data.batching import BatchStream, Update
from nmt.data.corpus import EncodedCorpus
from nmt.data.prepare import prepare
from nmt.errors import ConfigError
from nmt.model.summary import count
from nmt.model.transformer import Transformer
from nmt.progress import progress_bar
from nmt.training.distributed import Processes, choose_device
from nmt.training.loss import TranslationLoss
from nmt.training.state import TrainingState
from nmt.training.update import PRECISIONS, Updater

CONFIGURED = "config"  # the kind that stands for the attention that the config asks for


@dataclass(frozen=True)
class Task:
    """The same for all kinds: settings and a few updates' batches."""

    config: Config
    source_vocabulary: int
    target_vocabulary: int
    updates: Sequence[Update]

    @property
    def tokens(self) -> int:
        """Target tokens of all updates, padding not counted."""
        return sum(update.tokens for update in self.updates)

    @property
    def operations(self) -> int:
        """Of matrix products, in all updates."""
        return sum(
            training_operations(
                self.config.model, update.batches, vocabulary=self.target_vocabulary
            )
            for update in self.updates
        )


@dataclass(frozen=True)
class TrainingSpeed:
    """What was measured of one kind."""

    kind: str
    parameters: int
    tokens_per_second: Spread
    relative_speed: Spread  # to the reference's in the same round
    share_of_matrix_rate: Spread
    peak_memory_bytes: int | None  # weights, gradients, Adam's state and activations


@dataclass(frozen=True)
class TrainingResult:
    """A whole run of the benchmark."""

    machine: Machine
    matrix_rate: Spread  # operations a second
    tokens: int  # target tokens of a round
    operations_per_token: float
    reference: str
    kinds: Sequence[TrainingSpeed]


def task_of_config(config: Config, updates: int) -> Task:
    """The first updates of a config's run, on its own data."""
    prepared = prepare(config)
    return Task(
        config,
        len(prepared.codec.source.vocabulary),
        len(prepared.codec.target.vocabulary),
        first_updates(config, prepared.train, updates),
    )


def synthetic_task(shapes: Shapes, updates: int, *, precision: str) -> Task:
    """Updates on random data."""
    config = synthetic_config(shapes, precision=precision)
    with tempfile.TemporaryDirectory(prefix="nmt-bench-") as directory:
        corpus = write_synthetic_corpus(Path(directory), shapes)
        batches = first_updates(config, corpus, updates)
    return Task(config, shapes.vocabulary, shapes.vocabulary, batches)


def first_updates(config: Config, corpus: EncodedCorpus, updates: int) -> list[Update]:
    """What training would begin with."""
    stream = BatchStream(
        corpus,
        batch_tokens=config.train.batch_tokens,
        seed=config.seed,
        accumulate=config.train.accumulate,
    )
    return list(itertools.islice(stream.updates(), updates))


class Contender:
    """A model of one kind in training."""

    def __init__(self, task: Task, kind: str, device: torch.device) -> None:
        config = task.config
        if kind != CONFIGURED:
            config = replace(config, model=with_attention(config.model, kind))
        torch.manual_seed(config.seed)
        model = Transformer(
            config.model,
            source_vocabulary_size=task.source_vocabulary,
            target_vocabulary_size=task.target_vocabulary,
        ).to(device)
        self.kind = kind
        self.parameters = count(model)
        self.state = TrainingState()
        self.updates = task.updates
        self.updater = Updater(
            TranslationLoss(model, smoothing=config.train.label_smoothing),
            config,
            Processes(0, 1, device, None),
            idle_batch=task.updates[0].batches[0],
        )

    def __call__(self) -> None:
        """All updates once."""
        for update in self.updates:
            self.updater.run(update, self.state)
            self.state.update += 1

    def rest(self) -> None:
        """Free what is not needed until the next turn."""
        self.updater.optimizer.zero_grad(set_to_none=True)


def measure_training(task: Task, kinds: Sequence[str], *, repeats: int) -> TrainingResult:
    """Every kind in turn, round after round; the first round is not counted."""
    device = choose_device(task.config.train.device, 0)
    precision = task.config.train.precision
    if precision == "float16" and device.type == "cpu":
        raise ConfigError("train.precision float16 needs a GPU; use float32 or bfloat16")
    machine = describe_machine(device)
    product = MatrixProduct(device, PRECISIONS.get(precision, torch.float32))
    product.rate()
    Contender(task, kinds[0], device)()  # what the first call of all takes once is nobody's
    contenders: list[Contender] = []
    peaks: dict[str, int | None] = {}
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    rounds = progress_bar(total=len(kinds) * (1 + repeats), unit="turn", description="training")
    with rounds:
        for kind in kinds:
            with peak_memory(device) as peak:
                contenders.append(Contender(task, kind, device))
                contenders[-1]()
            contenders[-1].rest()
            peaks[kind] = peak.bytes
            rounds.update(1)
        for _ in range(repeats):
            gc.collect()
            for contender in contenders:
                rates[contender.kind].append(product.rate())
                times[contender.kind].append(seconds(contender, 1, device))
                contender.rest()
                rounds.update(1)
    return summarize_training(task, machine, contenders, rates=rates, times=times, peaks=peaks)


def summarize_training(
    task: Task,
    machine: Machine,
    contenders: Sequence[Contender],
    *,
    rates: dict[str, list[float]],
    times: dict[str, list[float]],
    peaks: dict[str, int | None],
) -> TrainingResult:
    """Speeds from the times of the rounds."""
    reference = REFERENCE if REFERENCE in times else contenders[0].kind
    operations = task.operations
    speeds = []
    for contender in contenders:
        own = times[contender.kind]
        speeds.append(
            TrainingSpeed(
                kind=contender.kind,
                parameters=contender.parameters,
                tokens_per_second=Spread.of([task.tokens / time for time in own]),
                relative_speed=Spread.of_ratios(times[reference], own),
                share_of_matrix_rate=Spread.of_ratios(
                    [operations / time for time in own], rates[contender.kind]
                ),
                peak_memory_bytes=peaks[contender.kind],
            )
        )
    return TrainingResult(
        machine=machine,
        matrix_rate=Spread.of([rate for found in rates.values() for rate in found]),
        tokens=task.tokens,
        operations_per_token=operations / task.tokens,
        reference=reference,
        kinds=speeds,
    )
