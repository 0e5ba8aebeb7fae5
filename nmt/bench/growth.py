"""How cost grows with one size at a time, compared with the work that the model asks for."""

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from nmt.bench import decoding, training
from nmt.bench.machine import describe_machine
from nmt.bench.result import Result
from nmt.bench.synthetic import Shapes, synthetic_lines
from nmt.bench.timing import Spread, Times, measure_rounds
from nmt.config.config import Config, DataConfig, ParallelFiles, SubwordConfig, TrainingCorpus
from nmt.data.prepare import prepare
from nmt.progress import progress_bar

GROWTH_SENTENCES = 32  # to translate
GROWTH_BEAM = 4
WORD_TYPES = 20_000  # word types in random text
WORDS_OF_A_LINE = 12
MERGES = 1000


@dataclass(frozen=True)
class Case:
    """Something to time at one size."""

    run: Callable[[], object]
    units: int  # pairs or tokens that a run processes
    demand: float  # the work of a run, in any measure that is the same at all sizes


@dataclass(frozen=True)
class Setting:
    """The common part of all axes."""

    shapes: Shapes
    kind: str
    device: torch.device
    directory: Path  # for files that a case needs while it runs


@dataclass(frozen=True)
class Axis:
    """One size that grows while all others stay the same."""

    title: str
    size: str
    unit: str
    sizes: Sequence[int]
    make: Callable[[int, Setting], Case]


@dataclass(frozen=True)
class Point:
    """The measurements at one size."""

    size: int
    seconds_per_unit: Spread
    cost: Spread  # seconds per unit, relative to the first size in the same round
    demand: float  # work per unit, relative to the first size


@dataclass(frozen=True)
class Growth:
    """The measurements along one axis."""

    title: str
    size: str
    unit: str
    points: Sequence[Point]


def measure_growth(
    names: Sequence[str], shapes: Shapes, kind: str, *, largest: int, repeats: int,
    device: torch.device,
) -> Result[Growth]:  # fmt: skip
    """The axes of these names, each with its first `largest` sizes; one round warms up."""
    machine = describe_machine(device)
    axes = [replace(GROWTH_AXES[name], sizes=GROWTH_AXES[name].sizes[:largest]) for name in names]
    total = sum(len(axis.sizes) for axis in axes) * (1 + repeats)
    rows = []
    with progress_bar(total=total, unit="run", description="growth") as bar:
        for axis in axes:
            with ExitStack() as stack:
                cases = []
                for size in axis.sizes:
                    directory = stack.enter_context(
                        tempfile.TemporaryDirectory(prefix="nmt-bench-")
                    )
                    setting = Setting(shapes, kind, device, Path(directory))
                    cases.append(axis.make(size, setting))
                times = measure_rounds(
                    [case.run for case in cases],
                    repeats=1 + repeats,
                    device=device,
                    advance=bar.update,
                )
            points = growth_points(axis.sizes, cases, times[:, 1:])
            rows.append(Growth(axis.title, axis.size, axis.unit, points))
    return Result(machine, rows)


def growth_points(sizes: Sequence[int], cases: Sequence[Case], times: Times) -> list[Point]:
    """The points of an axis from the seconds [sizes, R] of its cases."""
    units = np.array([case.units for case in cases])
    demands = np.array([case.demand for case in cases]) / units
    per_unit = times / units[:, None]
    return [
        Point(size, Spread.of(seconds), Spread.of(seconds / per_unit[0]), float(demand))
        for size, seconds, demand in zip(sizes, per_unit, demands / demands[0], strict=True)
    ]


# ---------------------------------------------------------------- axes


def preparation(pairs: int, setting: Setting) -> Case:
    """Preparing pairs of random text; every pair asks for the same work."""
    rows = random_text(pairs)
    files = {}
    for side, lines in rows.items():
        path = setting.directory / f"train.{side}"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        files[side] = (path,)
    train = (TrainingCorpus(files["source"], files["target"]),)
    validation = (ParallelFiles(files["source"], files["target"]),)
    subword = SubwordConfig("bpe", merges=MERGES)

    def run() -> None:
        with quiet("nmt.data"), tempfile.TemporaryDirectory(dir=setting.directory) as directory:
            prepared = Path(directory) / "prepared"
            data = DataConfig("en", "de", train, validation, subword=subword, prepared_dir=prepared)
            prepare(Config(run_dir=Path(directory), data=data))

    return Case(run, pairs, demand=pairs)


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Silence the information of loggers below `name`, which is the same in every run."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def random_text(pairs: int) -> dict[str, list[str]]:
    """Lines of random words with the frequencies of real words (Zipf)."""
    generator = np.random.default_rng(pairs)
    weights = 1.0 / np.arange(1, WORD_TYPES + 1)
    text = {}
    for side in ("source", "target"):
        letters = generator.integers(ord("a"), ord("z") + 1, size=(WORD_TYPES, 8), dtype=np.uint8)
        lengths = generator.integers(2, 9, size=WORD_TYPES)
        words = [
            row[:length].tobytes().decode() for row, length in zip(letters, lengths, strict=True)
        ]
        chosen = generator.choice(
            WORD_TYPES, size=(pairs, WORDS_OF_A_LINE), p=weights / weights.sum()
        ).tolist()
        text[side] = [" ".join(words[word] for word in line) for line in chosen]
    return text


def training_update(setting: Setting, **changes: int) -> Case:
    """One update; its demand is the operations in its matrix products."""
    shapes = replace(setting.shapes, **changes)  # type: ignore[arg-type]
    task = training.synthetic_task(shapes, 1, precision="float32")
    model = training.TrainingModel(task, setting.kind, setting.device)
    return Case(model, task.tokens, task.operations)


def translation(
    setting: Setting, *, beam: int = GROWTH_BEAM, batch: int = GROWTH_SENTENCES, **changes: int
) -> Case:
    """Translating random sentences into outputs of their length.

    The demand is the operations in matrix products.
    """
    shapes = replace(setting.shapes, **changes)  # type: ignore[arg-type]
    (model,) = decoding.random_models(shapes, [setting.kind], int8=False, device=setting.device)
    sentences = decoding.Sentences.of(synthetic_lines(shapes, GROWTH_SENTENCES), model.member.codec)
    settings = decoding.DecodingSettings([batch], beam, repeats=1, force_length=True, fast=False)
    turns = [
        decoding.BatchTranslation(model, sentences, rows, settings)
        for rows in sentences.batches(batch)
    ]

    def run() -> None:
        for turn in turns:
            turn()

    run()
    tokens = sum(sum(turn.output_lengths) for turn in turns)
    return Case(run, tokens, sum(turn.operations for turn in turns))


GROWTH_AXES = {
    "prepare": Axis(
        "Preparing data", "pairs", "pair", (2_000, 8_000, 32_000), preparation
    ),
    "train-length": Axis(
        "Training", "subwords of a sentence", "target token", (8, 32, 128, 512),
        lambda size, setting: training_update(setting, length=size),
    ),
    "train-batch": Axis(
        "Training", "tokens of a batch", "target token", (256, 1024, 4096, 16384),
        lambda size, setting: training_update(setting, batch_tokens=size),
    ),
    "train-vocabulary": Axis(
        "Training", "subwords in the vocabulary", "target token", (2_000, 8_000, 32_000),
        lambda size, setting: training_update(setting, vocabulary=size),
    ),
    "decode-length": Axis(
        "Decoding", "subwords of a sentence", "target token", (8, 16, 32, 64, 128),
        lambda size, setting: translation(setting, length=size),
    ),
    "decode-beam": Axis(
        "Decoding", "beam", "target token", (1, 2, 4, 8, 16),
        lambda size, setting: translation(setting, beam=size),
    ),
    "decode-batch": Axis(
        "Decoding", "sentences of a batch", "target token", (1, 2, 4, 8, 16, 32),
        lambda size, setting: translation(setting, batch=size),
    ),
    "decode-vocabulary": Axis(
        "Decoding", "subwords in the vocabulary", "target token", (2_000, 8_000, 32_000),
        lambda size, setting: translation(setting, vocabulary=size),
    ),
}  # fmt: skip
