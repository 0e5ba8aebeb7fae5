"""The plan of a training: data, model, memory and time, and settings that do not fit the data.

Nothing is written to the run directory: the numbers come from a sample of the text, prepared in a
temporary directory, and from a few updates on it.
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nmt.checkpoint.model_directory import model_for
from nmt.checkpoint.start import Start, Transfer, read_start, transfer
from nmt.config.config import Config
from nmt.data.batching import make_batch
from nmt.data.encoding_choice import choose_encoding, num_subwords
from nmt.data.mixture import Mixture, describe_mixture
from nmt.data.prepare import Prepared, StartCodec, prepare
from nmt.data.reading import TRAIN, count_pairs, evenly, read
from nmt.data.text import SIDES, LineWriter, ReadStatistics
from nmt.model.parts import check_parts, freeze
from nmt.model.summary import summarize
from nmt.training.distributed import processes
from nmt.training.loss import TranslationLoss
from nmt.training.pace import duration
from nmt.training.precision import with_precision
from nmt.training.schedule import low_peak
from nmt.training.state import TrainingState
from nmt.training.stream import training_stream
from nmt.training.update import Updater

SAMPLE = 20_000  # pairs that the data is judged by
MEASURED_SECONDS = 1.0
BYTES_PER_PARAMETER = 16  # weight, gradient and Adam's two moments, in float32
BYTES_PER_FROZEN_PARAMETER = 4
MOST_EPOCHS = 200
FEWEST_UPDATES_PER_EPOCH = 10
MOST_LEFT_OUT = 0.01
MOST_VALIDATION_LINES = 5_000


@dataclass(frozen=True)
class TrainingPlan:
    """The numbers that a config leads to."""

    config: Config
    pairs: int  # in the text, bad lines not counted
    kept: float  # the share of pairs that are not left out
    source_tokens: float  # per sentence
    target_tokens: float
    source_vocabulary: int
    target_vocabulary: int
    validation_pairs: int  # of all validation corpora
    corpora: tuple[str, ...]  # a line on each training corpus, if there are several
    updates_per_epoch: float  # of the first epoch
    measured: "MeasuredTraining"
    peak_bytes: int  # of this process, while it trained

    @property
    def epochs(self) -> float:
        """Epochs of the whole run."""
        return self.config.train.max_updates / self.updates_per_epoch

    def __str__(self) -> str:
        train = self.config.train
        lengths = f"{self.source_tokens:.1f} and {self.target_tokens:.1f} subwords"
        vocabulary = f"{self.source_vocabulary:,} source, {self.target_vocabulary:,} target"
        parameters, frozen = self.measured.parameters, self.measured.frozen
        states = (parameters - frozen) * BYTES_PER_PARAMETER + frozen * BYTES_PER_FROZEN_PARAMETER
        seconds = self.measured.seconds_per_update
        note = f", of which {frozen:,} are frozen" if frozen else ""
        rows = {
            **(
                {"warning": warning}
                if (warning := low_peak(train, dim=self.config.model.dim))
                else {}
            ),
            **({"start": self.measured.start} if self.measured.start else {}),
            "training pairs": f"{self.pairs:,}, {lengths} on average; {self.kept:.1%} are used",
            **{f"  {line.partition(': ')[0]}": line.partition(": ")[2] for line in self.corpora},
            "validation pairs": f"{self.validation_pairs:,}",
            "vocabulary": f"{vocabulary} (of a sample)",
            "parameters": f"{parameters:,}{note}",
            "memory": f"{gigabytes(states)} for weights, gradients and Adam; the largest batch "
            f"adds to that (this process: {gigabytes(self.peak_bytes)} at its peak)",
            "updates": f"{train.max_updates:,}, of which {self.updates_per_epoch:,.0f} are an "
            f"epoch: {self.epochs:,.1f} epochs",
            "time": f"{duration(train.max_updates * seconds)} at {seconds:.2f} s per update, "
            "validations not counted",
        }
        lines = [f"{name:<18}{value}" for name, value in rows.items()]
        return "\n".join([*lines, *(f"warning: {text}" for text in warnings(self))])


def gigabytes(count: int) -> str:
    """A number of bytes as text."""
    return f"{count / 1e9:.2f} GB"


def warnings(plan: TrainingPlan) -> Iterator[str]:
    """Settings that do not fit the data, each with what to do."""
    data, train, validate = plan.config.data, plan.config.train, plan.config.validate
    size = data.subword.merges if data.subword.kind == "bpe" else data.subword.vocabulary_size
    is_learned = data.subword.kind != "none" and train.start_from is None
    if is_learned and size >= 4 * num_subwords(plan.pairs):
        yield (
            f"data.subword: {size:,} subwords are many for {plan.pairs:,} pairs; "
            f"{num_subwords(plan.pairs):,} are usual"
        )
    if 1 - plan.kept > MOST_LEFT_OUT:
        yield (
            f"data.max_length {data.max_length} and data.max_ratio {data.max_ratio:g} leave out "
            f"{1 - plan.kept:.1%} of the pairs"
        )
    if train.schedule.warmup > train.max_updates / 2:
        yield (
            f"train.schedule.warmup {train.schedule.warmup:,} is more than half of "
            f"train.max_updates {train.max_updates:,}; a tenth to a fifth is usual"
        )
    if plan.updates_per_epoch < FEWEST_UPDATES_PER_EPOCH:
        yield (
            f"an epoch has only {plan.updates_per_epoch:.0f} updates; lower train.batch_tokens "
            f"{train.batch_tokens:,} or train.accumulate {train.accumulate}"
        )
    if plan.epochs > MOST_EPOCHS:
        yield (
            f"each pair is seen {plan.epochs:,.0f} times; lower train.max_updates, or set "
            "validate.patience"
        )
    if plan.epochs < 1:
        yield f"only {plan.epochs:.0%} of the data is seen; raise train.max_updates"
    if validate.every > train.max_updates:
        yield (
            f"validate.every {validate.every:,} is more than train.max_updates: there is one "
            "validation, at the end"
        )
    lines = min(plan.validation_pairs, validate.sentences or plan.validation_pairs)
    if validate.beam and lines > MOST_VALIDATION_LINES:
        yield f"each validation translates {lines:,} lines; validate.sentences limits that"


def make_plan(config: Config) -> TrainingPlan:
    """Sample the data, build the model and measure a second of training."""
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    sizes = count_pairs(config.data, config.data.train, "reading training text")
    pairs = sum(sizes)
    config = replace(config, data=choose_encoding(config.data, pairs=pairs))
    check_parts(config.model, config.train.freeze)
    start = read_start(config)
    with tempfile.TemporaryDirectory(prefix="nmt-plan-") as name:
        codec = None if start is None else start.codec
        prepared = prepare_sample(config, Path(name), sizes, codec)
        corpora, vocabulary = prepared.about["corpora"], prepared.about["vocabulary"]
        train = corpora["train"]
        return TrainingPlan(
            config=config,
            pairs=pairs,
            kept=train["pairs"] / train["read"],
            source_tokens=train["source"]["tokens"] / train["pairs"],
            target_tokens=train["target"]["tokens"] / train["pairs"],
            source_vocabulary=vocabulary["source"],
            target_vocabulary=vocabulary["target"],
            validation_pairs=sum(
                description["pairs"] for role, description in corpora.items() if role != TRAIN
            ),
            corpora=tuple(describe_mixture(Mixture.of(config.data.train, sizes))),
            updates_per_epoch=updates_per_epoch(config, prepared, scale=pairs / train["read"]),
            measured=measure_training(config, prepared, start),
            peak_bytes=peak_memory(),
        )


def peak_memory() -> int:
    """The most memory in bytes that this process has had; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def prepare_sample(
    config: Config, directory: Path, sizes: Sequence[int], start: StartCodec | None
) -> Prepared:
    """Prepare an even sample of each training corpus, and all of the validation text."""
    corpora, total = [], sum(sizes)
    for index, (corpus, size) in enumerate(zip(config.data.train, sizes, strict=True)):
        source, target = (directory / f"sample.{index}.{side}" for side in SIDES)
        wanted = max(1, min(SAMPLE, total) * size // total)
        with LineWriter(source) as sources, LineWriter(target) as targets:
            for pair in evenly(read(config.data, corpus, ReadStatistics()), wanted, size):
                sources.write(pair.source)
                targets.write(pair.target)
        corpora.append(replace(corpus, source=(source,), target=(target,)))
    data = replace(config.data, train=tuple(corpora), prepared_dir=directory / "prepared")
    return prepare(replace(config, data=data), start=start)


def updates_per_epoch(config: Config, prepared: Prepared, *, scale: float) -> float:
    """The updates of an epoch of all the data, which is `scale` times the sample."""
    batches = training_stream(config, prepared).plan(0)
    return max(len(batches) * scale / config.train.accumulate, 1.0)


@dataclass(frozen=True)
class MeasuredTraining:
    """The model of a plan, and the time that its training takes."""

    parameters: int
    frozen: int  # of the parameters
    start: str  # what the model takes from the one it starts from, if there is one
    seconds_per_update: float  # after the first


def measure_training(config: Config, prepared: Prepared, start: Start | None) -> MeasuredTraining:
    """Build the model, and train it for a second."""
    with processes(config.train) as team:
        config = with_precision(config, team.device)
        model = model_for(config.model, prepared.codec).to(team.device)
        taken = "" if start is None else describe_start(start, transfer(start.loaded, model))
        frozen = freeze(model, config.train.freeze)
        loss = TranslationLoss(model, smoothing=config.train.label_smoothing)
        first = make_batch(prepared.train, torch.zeros(1, dtype=torch.int64).numpy())
        updater, state = Updater(loss, config, team, idle_batch=first), TrainingState()
        loss.train()
        updates = training_stream(config, prepared).updates()
        updater.run(next(updates), state).sums.cpu()
        count, started = 0, time.monotonic()
        while (seconds := time.monotonic() - started) < MEASURED_SECONDS or count == 0:
            updater.run(next(updates), state).sums.cpu()
            count += 1
        named = dict(model.named_parameters())
        return MeasuredTraining(
            parameters=summarize(model).total,
            frozen=sum(named[name].numel() for name in frozen),
            start=taken,
            seconds_per_update=seconds / count,
        )


def describe_start(start: Start, transfer: Transfer) -> str:
    """The start, and the number of tensors that are taken from it, drawn and left out."""
    return (
        f"{start.loaded.path}: {len(transfer.taken)} tensors are taken, {len(transfer.drawn)} are "
        f"drawn, {len(transfer.left_out)} are left out"
    )
