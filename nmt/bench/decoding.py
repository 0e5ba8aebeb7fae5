"""The speed of translation: several models on the same sentences, batch by batch in turn."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from nmt.bench.kinds import with_attention
from nmt.bench.machine import MatrixProduct, describe_machine, peak_memory
from nmt.bench.result import Result, Speed, speed_fields
from nmt.bench.synthetic import Shapes, synthetic_codec, synthetic_config
from nmt.bench.timing import Spread, Times, measure_rounds
from nmt.bench.work import translation_operations
from nmt.checkpoint.model_directory import model_for
from nmt.checkpoint.selection import find_model
from nmt.config.limits import MAX_BATCH_TOKENS
from nmt.config.search_options import SearchOptions
from nmt.data.codec import Codec
from nmt.decoding.devices import place
from nmt.decoding.ensemble import Member
from nmt.decoding.torch_models import TorchModels
from nmt.decoding.translation import Line, Precision
from nmt.decoding.translator import Translator
from nmt.errors import DataError
from nmt.model.summary import count
from nmt.progress import progress_bar

GROUPS = 10
NO_LIMIT = MAX_BATCH_TOKENS  # tokens in a batch, because its sentences are counted instead


@dataclass(frozen=True)
class DecodingSettings:
    """How to translate."""

    batch_sizes: Sequence[int]  # sentences
    beam: int
    repeats: int
    force_length: bool  # every output has the length of the longest source of its batch
    fast: bool


@dataclass(frozen=True)
class GroupSpeed:
    """The speed on sentences of similar source length (subwords and the end token)."""

    shortest: int
    longest: int
    mean_length: float
    sentences: int
    sentences_per_second: float
    relative_speed: float  # to the first model


@dataclass(frozen=True)
class DecodingSpeed(Speed):
    """The speed of one model at one batch size, relative to the first model.

    The memory is that of translating the longest batch, on top of the weights.
    """

    model: str
    weights: str  # float32 | bfloat16 | int8
    batch_size: int
    sentences_per_second: Spread
    groups: Sequence[GroupSpeed]


@dataclass(frozen=True)
class DecodingModel:
    """A model to measure."""

    name: str
    int8: bool
    translator: Translator

    @property
    def member(self) -> Member:
        """The model with its codec."""
        assert isinstance(self.translator.models, TorchModels)
        return self.translator.models.members[0]

    @property
    def weights(self) -> str:
        """The type of the weights."""
        dtype = self.member.model.output_weight.dtype
        return "int8" if self.int8 else str(dtype).removeprefix("torch.")

    @property
    def parameters(self) -> int:
        """Parameters of the model as it was trained: packed layers have none."""
        codec = self.member.codec
        with torch.device("meta"):
            return count(model_for(self.member.model.config, codec))


def saved_models(
    paths: Sequence[Path], *, int8: bool, device: torch.device, precision: Precision = "auto"
) -> list[DecodingModel]:
    """Models from directories, in a precision and with `int8` also in 8 bits."""
    return [
        DecodingModel(
            str(path),
            small,
            Translator.load(  # find_model refuses packed models, which have no torch model
                find_model(path),
                device=str(device),
                int8=small,
                precision="auto" if small else precision,
            ),
        )
        for path in paths
        for small in ((False, True) if int8 else (False,))
    ]


def random_models(
    shapes: Shapes,
    kinds: Sequence[str],
    *,
    int8: bool,
    device: torch.device,
    precision: Precision = "auto",
) -> list[DecodingModel]:
    """Untrained models of every kind, in a precision and with `int8` also in 8 bits."""
    codec = synthetic_codec(synthetic_config(shapes), shapes)
    return [
        DecodingModel(
            kind,
            small,
            random_translator(
                shapes,
                kind,
                codec,
                int8=small,
                device=device,
                precision="auto" if small else precision,
            ),
        )
        for kind in kinds
        for small in ((False, True) if int8 else (False,))
    ]


def random_translator(
    shapes: Shapes,
    kind: str,
    codec: Codec,
    *,
    int8: bool,
    device: torch.device,
    precision: Precision,
) -> Translator:
    """A translator with random weights, as fast as one with trained weights."""
    config = synthetic_config(shapes)
    torch.manual_seed(1)
    model = model_for(with_attention(config.model, kind), codec)
    place(model, device, precision).eval()
    return Translator(
        TorchModels([Member.of(model, codec, int8=int8)], device),
        SearchOptions.of(config.decode),
        max_source_length=None,
    )


@dataclass(frozen=True)
class Sentences:
    """Lines sorted by source length (subwords and the end token), and these lengths."""

    lines: Sequence[str]
    lengths: Sequence[int]

    @classmethod
    def of(cls, lines: Sequence[str], codec: Codec) -> "Sentences":
        """Blank lines are left out because they cost nothing."""
        found = [(len(codec.source.encode(line)), line) for line in lines if line.strip()]
        if not found:
            raise DataError("expected lines with words to translate, got none")
        found.sort(key=lambda pair: pair[0])
        return cls([line for _, line in found], [length for length, _ in found])

    def batches(self, size: int) -> list[slice]:
        """All sentences in order, in batches of `size`."""
        total = len(self.lines)
        return [slice(start, min(start + size, total)) for start in range(0, total, size)]


class BatchTranslation:
    """One model that translates one batch: a case to time, which keeps the output lengths."""

    def __init__(
        self, model: DecodingModel, sentences: Sentences, batch: slice, settings: DecodingSettings
    ) -> None:
        longest = max(sentences.lengths[batch]) - 1
        self.options = SearchOptions(
            beam=settings.beam,
            batch_tokens=NO_LIMIT,
            min_length=longest if settings.force_length else 0,
            max_length=longest if settings.force_length else None,
            max_length_extra=longest if settings.force_length else SearchOptions.max_length_extra,
            fast=settings.fast,
        )
        self.model = model
        self.lines = [Line(number, text) for number, text in enumerate(sentences.lines[batch])]
        self.source_lengths = sentences.lengths[batch]
        self.output_lengths: list[int] = []

    def __call__(self) -> None:
        found = dict(self.model.translator.translate_lines(self.lines, self.options))
        self.output_lengths = [len(found[number].ids) + 1 for number in range(len(self.lines))]

    @property
    def operations(self) -> int:
        """Operations in matrix products that the last translation asked for."""
        member = self.model.member
        return sum(
            translation_operations(
                member.model.config,
                source=source,
                target=target,
                beam=self.options.beam,
                vocabulary=len(member.codec.target.vocabulary),
            )
            for source, target in zip(self.source_lengths, self.output_lengths, strict=True)
        )


def measure_decoding(
    models: Sequence[DecodingModel],
    lines: Sequence[str],
    settings: DecodingSettings,
    *,
    device: torch.device,
) -> Result[DecodingSpeed]:
    """The speed of every model at each batch size; every batch goes to all models in turn."""
    machine = describe_machine(device)
    sentences = Sentences.of(lines, models[0].member.codec)
    product = MatrixProduct(device, models[0].member.model.output_weight.dtype)
    product.case()
    rows: list[DecodingSpeed] = []
    rates: list[float] = []
    for batch_size in settings.batch_sizes:
        batches = sentences.batches(batch_size)
        turns = [
            [BatchTranslation(model, sentences, batch, settings) for model in models]
            for batch in batches
        ]
        peaks = [warm_up(turn, device) for turn in turns[-1]]
        cases: list[Callable[[], None]] = [product.case, *itertools.chain(*turns)]
        with progress_bar(
            total=settings.repeats * len(cases), unit="turn", description=f"batch {batch_size}"
        ) as bar:
            times = measure_rounds(
                cases, repeats=settings.repeats, device=device, advance=bar.update
            )
        matrix_rate = product.rates(times[0])
        rates += matrix_rate.tolist()
        by_batch = times[1:].reshape(len(batches), len(models), settings.repeats)
        rows += [
            model_speed(
                [of_batch[number] for of_batch in turns],
                by_batch[:, number],
                by_batch[:, 0],
                batch_size=batch_size,
                matrix_rate=matrix_rate,
                peak_memory=peaks[number],
            )
            for number in range(len(models))
        ]
    facts = {
        "matrix_rate": Spread.of(rates),
        "sentences": len(sentences.lines),
        "beam": settings.beam,
    }
    return Result(machine, rows, facts)


def warm_up(turn: BatchTranslation, device: torch.device) -> int | None:
    """Translate a batch twice; the memory that it takes."""
    turn()
    with peak_memory(device) as peak:
        turn()
    return peak.bytes


def model_speed(
    turns: Sequence[BatchTranslation],
    times: Times,
    first: Times,
    *,
    batch_size: int,
    matrix_rate: Times,
    peak_memory: int | None,
) -> DecodingSpeed:
    """The speed of one model from the seconds [batches, R] of it and of the first model."""
    model = turns[0].model
    sizes = [len(turn.lines) for turn in turns]
    return DecodingSpeed(
        model=model.name,
        weights=model.weights,
        batch_size=batch_size,
        parameters=model.parameters,
        peak_memory_bytes=peak_memory,
        sentences_per_second=Spread.of(sum(sizes) / times.sum(axis=0)),
        groups=group_speeds(turns, times, first),
        **speed_fields(
            times.sum(axis=0),
            first.sum(axis=0),
            matrix_rate,
            tokens=sum(sum(turn.output_lengths) for turn in turns),
            operations=sum(turn.operations for turn in turns),
        ),
    )


def group_speeds(turns: Sequence[BatchTranslation], times: Times, first: Times) -> list[GroupSpeed]:
    """The speed by source length in equal groups (fewer than ten for fewer than ten sentences)."""
    lengths = [length for turn in turns for length in turn.source_lengths]
    groups = np.array_split(np.asarray(lengths), min(GROUPS, len(lengths)))
    sizes = [len(group) for group in groups]
    batch_sizes = [len(turn.lines) for turn in turns]
    seconds, of_first = (group_seconds(part, batch_sizes, sizes) for part in (times, first))
    return [
        GroupSpeed(
            shortest=int(group.min()),
            longest=int(group.max()),
            mean_length=float(group.mean()),
            sentences=len(group),
            sentences_per_second=float(np.median(len(group) / seconds[number])),
            relative_speed=float(np.median(of_first[number] / seconds[number])),
        )
        for number, group in enumerate(groups)
    ]


def group_seconds(times: Times, batch_sizes: Sequence[int], sizes: Sequence[int]) -> Times:
    """[groups, R] seconds from those of batches [N, R]; all sizes are numbers of sentences.

    The time of a batch that belongs to two groups is shared by the number of its sentences.
    """
    ends, last = np.cumsum(sizes)[:, None], np.cumsum(batch_sizes)
    starts, first = ends - np.array(sizes)[:, None], last - batch_sizes
    common = np.clip(np.minimum(last, ends) - np.maximum(first, starts), 0, None)
    seconds: Times = (common / np.array(batch_sizes)) @ times
    return seconds
