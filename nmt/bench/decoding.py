"""Speed of translation: several models, interleaved batch by batch, on the same sentences."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from nmt.bench.kinds import with_attention
from nmt.bench.machine import Machine, MatrixProduct, describe_machine, peak_memory
from nmt.bench.synthetic import Shapes, synthetic_codec, synthetic_config
from nmt.bench.timing import Spread, timed
from nmt.bench.work import translation_operations
from nmt.checkpoint.model_directory import NoInitialisation
from nmt.data.codec import Codec
from nmt.decoding.ensemble import Member
from nmt.decoding.translation import Line, Options
from nmt.decoding.translator import Translator
from nmt.errors import DataError
from nmt.model.summary import count
from nmt.model.transformer import Transformer
from nmt.progress import progress_bar

GROUPS = 10
Numbers = npt.NDArray[np.float64]

NO_LIMIT = 1 << 30  # tokens of a batch: its sentences are counted instead


@dataclass(frozen=True)
class Settings:
    """How to translate."""

    batch_sizes: Sequence[int]  # sentences
    beam: int
    repeats: int
    force_length: bool  # every output as long as the longest source of its batch
    fast: bool


@dataclass(frozen=True)
class GroupSpeed:
    """Sentences of similar source length (subwords and the end token)."""

    shortest: int
    longest: int
    mean_length: float
    sentences: int
    sentences_per_second: float
    relative_speed: float  # to the first model's


@dataclass(frozen=True)
class DecodingSpeed:
    """What was measured of one model at one batch size."""

    model: str
    weights: str  # float32 | int8
    batch_size: int
    parameters: int
    sentences_per_second: Spread
    tokens_per_second: Spread  # of the output, with the end of each sentence
    relative_speed: Spread  # sentences a second, to the first model's in the same round
    share_of_matrix_rate: Spread
    peak_memory_bytes: int | None  # for the longest batch, on top of the weights
    groups: Sequence[GroupSpeed]


@dataclass(frozen=True)
class DecodingResult:
    """A whole run of the benchmark."""

    machine: Machine
    matrix_rate: Spread  # operations a second
    sentences: int
    beam: int
    models: Sequence[DecodingSpeed]


@dataclass(frozen=True)
class Contender:
    """A model to measure."""

    name: str
    int8: bool
    translator: Translator

    @property
    def member(self) -> Member:
        """The model and what belongs to it."""
        return self.translator.members[0]

    @property
    def vocabulary(self) -> int:
        """Target pieces."""
        return len(self.member.codec.target.vocabulary)

    @property
    def parameters(self) -> int:
        """Of the model as it was trained: layers made quick for decoding have none."""
        with NoInitialisation():
            return count(
                Transformer(
                    self.member.model.config,
                    source_vocabulary_size=len(self.member.codec.source.vocabulary),
                    target_vocabulary_size=self.vocabulary,
                )
            )


def saved_contenders(paths: Sequence[Path], *, int8: bool, device: torch.device) -> list[Contender]:
    """Models of directories in float32, and also in 8 bits if wanted."""
    return [
        Contender(str(path), small, Translator.load(path, device=device.type, int8=small))
        for path in paths
        for small in ((False, True) if int8 else (False,))
    ]


def random_contenders(
    shapes: Shapes, kinds: Sequence[str], *, int8: bool, device: torch.device
) -> list[Contender]:
    """Untrained models of every kind, for outputs of forced length."""
    codec = synthetic_codec(synthetic_config(shapes), shapes)
    return [
        Contender(kind, small, random_translator(shapes, kind, codec, int8=small, device=device))
        for kind in kinds
        for small in ((False, True) if int8 else (False,))
    ]


def random_translator(
    shapes: Shapes, kind: str, codec: Codec, *, int8: bool, device: torch.device
) -> Translator:
    """A translator of random weights, as quick as one of trained weights."""
    config = synthetic_config(shapes)
    torch.manual_seed(1)
    model = Transformer(
        with_attention(config.model, kind),
        source_vocabulary_size=len(codec.source.vocabulary),
        target_vocabulary_size=len(codec.target.vocabulary),
    )
    model.to(device).eval()
    on_cpu = device.type == "cpu"
    return Translator(
        [Member.quick(model, codec, int8=int8) if on_cpu else Member(model, codec, model.logits)],
        Options.of(config.decode),
        max_source_length=None,
        device=device,
    )


@dataclass(frozen=True)
class Sentences:
    """Lines sorted by source length (subwords and the end token), and these lengths."""

    lines: Sequence[str]
    lengths: Sequence[int]

    @classmethod
    def of(cls, lines: Sequence[str], codec: Codec) -> "Sentences":
        """Blank lines, which cost nothing, are left out."""
        found = [(len(codec.source.encode(line)), line) for line in lines if line.strip()]
        if not found:
            raise DataError("expected lines with words to translate, got none")
        found.sort(key=lambda pair: pair[0])
        return cls([line for _, line in found], [length for length, _ in found])

    def batches(self, size: int) -> list[slice]:
        """All sentences in order, so many at a time."""
        total = len(self.lines)
        return [slice(start, min(start + size, total)) for start in range(0, total, size)]


@dataclass(frozen=True)
class Rounds:
    """All that was measured at one batch size; C models, R rounds, N batches."""

    batches: Sequence[slice]
    times: Numbers  # [C, R, N] seconds
    matrix_rates: Sequence[float]  # [R]
    outputs: Sequence[Sequence[int]]  # [C][sentence] tokens, with the end
    peaks: Sequence[int | None]  # [C]


def measure_decoding(
    contenders: Sequence[Contender],
    lines: Sequence[str],
    settings: Settings,
    *,
    device: torch.device,
) -> DecodingResult:
    """Every model on every batch in turn, at each batch size."""
    machine = describe_machine(device)
    sentences = Sentences.of(lines, contenders[0].member.codec)
    speeds: list[DecodingSpeed] = []
    rates: list[float] = []
    for batch_size in settings.batch_sizes:
        rounds = run_rounds(contenders, sentences, settings, batch_size, device=device)
        rates += rounds.matrix_rates
        for row, contender in enumerate(contenders):
            operations = translation_work(contender, sentences, rounds.outputs[row], settings)
            seconds = rounds.times[row].sum(axis=1)
            first = rounds.times[0].sum(axis=1)
            speeds.append(
                DecodingSpeed(
                    model=contender.name,
                    weights="int8" if contender.int8 else "float32",
                    batch_size=batch_size,
                    parameters=contender.parameters,
                    sentences_per_second=Spread.of(len(sentences.lines) / seconds),
                    tokens_per_second=Spread.of(sum(rounds.outputs[row]) / seconds),
                    relative_speed=Spread.of_ratios(first, seconds),
                    share_of_matrix_rate=Spread.of_ratios(
                        operations / seconds, rounds.matrix_rates
                    ),
                    peak_memory_bytes=rounds.peaks[row],
                    groups=group_speeds(rounds, row, sentences.lengths),
                )
            )
    return DecodingResult(machine, Spread.of(rates), len(sentences.lines), settings.beam, speeds)


def run_rounds(
    contenders: Sequence[Contender],
    sentences: Sentences,
    settings: Settings,
    batch_size: int,
    *,
    device: torch.device,
) -> Rounds:
    """Translate everything `repeats` times with every model; the longest batch warms up first."""
    batches = sentences.batches(batch_size)
    times = np.zeros((len(contenders), settings.repeats, len(batches)))
    outputs: list[list[int]] = [[] for _ in contenders]
    rates: list[float] = []
    product = MatrixProduct(device)
    product.rate()
    peaks = [warm_up(contender, sentences, batches[-1], settings) for contender in contenders]
    bar = progress_bar(
        total=settings.repeats * len(batches), unit="batch", description=f"batch {batch_size}"
    )
    with bar:
        for repeat in range(settings.repeats):
            gc.collect()
            rates.append(product.rate())
            for column, batch in enumerate(batches):
                for row, contender in enumerate(contenders):
                    call = partial(translate, contender, sentences, batch, settings)
                    found, times[row, repeat, column] = timed(call, device)
                    if repeat == 0:
                        outputs[row] += found
                bar.update(1)
    return Rounds(batches, times, rates, outputs, peaks)


def warm_up(
    contender: Contender, sentences: Sentences, batch: slice, settings: Settings
) -> int | None:
    """Translate a batch twice; the memory that it takes."""
    translate(contender, sentences, batch, settings)
    with peak_memory(torch.device(contender.translator.device)) as peak:
        translate(contender, sentences, batch, settings)
    return peak.bytes


def translate(
    contender: Contender, sentences: Sentences, batch: slice, settings: Settings
) -> list[int]:
    """The lengths of the translations of a batch, with the end."""
    longest = max(sentences.lengths[batch]) - 1
    options = Options(
        beam=settings.beam,
        batch_tokens=NO_LIMIT,
        min_length=longest if settings.force_length else 0,
        max_length=longest if settings.force_length else None,
        max_length_extra=longest if settings.force_length else Options.max_length_extra,
        fast=settings.fast,
    )
    lines = [Line(number, text) for number, text in enumerate(sentences.lines[batch])]
    found = dict(contender.translator.translate_lines(lines, options))
    return [len(found[number].ids) + 1 for number in range(len(lines))]


def translation_work(
    contender: Contender, sentences: Sentences, outputs: Sequence[int], settings: Settings
) -> int:
    """Operations in matrix products for all sentences."""
    return sum(
        translation_operations(
            contender.member.model.config,
            source=source,
            target=target,
            beam=settings.beam,
            vocabulary=contender.vocabulary,
        )
        for source, target in zip(sentences.lengths, outputs, strict=True)
    )


def group_speeds(rounds: Rounds, row: int, lengths: Sequence[int]) -> list[GroupSpeed]:
    """The speed by source length, in equal groups (fewer than ten for fewer than ten sentences)."""
    groups = np.array_split(np.asarray(lengths), min(GROUPS, len(lengths)))
    sizes = [len(group) for group in groups]
    seconds = group_seconds(rounds.times[row], rounds.batches, sizes)
    first = group_seconds(rounds.times[0], rounds.batches, sizes)
    return [
        GroupSpeed(
            shortest=int(group.min()),
            longest=int(group.max()),
            mean_length=float(group.mean()),
            sentences=len(group),
            sentences_per_second=float(np.median(len(group) / seconds[:, number])),
            relative_speed=float(np.median(first[:, number] / seconds[:, number])),
        )
        for number, group in enumerate(groups)
    ]


def group_seconds(times: Numbers, batches: Sequence[slice], sizes: Sequence[int]) -> Numbers:
    """[R, groups] seconds from those of batches [R, N].

    A batch that belongs to two groups counts for each by the sentences it has there.
    """
    ends = np.cumsum(sizes)
    starts = ends - sizes
    first = np.array([batch.start for batch in batches])[:, None]
    last = np.array([batch.stop for batch in batches])[:, None]
    common = np.clip(np.minimum(last, ends) - np.maximum(first, starts), 0, None)
    result: Numbers = times @ (common / (last - first))
    return result
