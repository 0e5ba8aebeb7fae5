"""How cost grows with each size alone, beside what the mathematics asks for."""

import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from nmt.bench import decoding, training
from nmt.bench.machine import Machine, describe_machine
from nmt.bench.synthetic import Shapes, synthetic_lines
from nmt.bench.timing import Spread, seconds
from nmt.config.config import Config, DataConfig, ParallelFiles, SubwordConfig
from nmt.data.prepare import prepare
from nmt.progress import progress_bar

SENTENCES = 32  # to translate, where their number is not what grows
BEAM = 4
WORDS = 20_000  # different words in made-up text
WORDS_OF_A_LINE = 12
MERGES = 1000


@dataclass(frozen=True)
class Case:
    """Something to time at one size."""

    run: Callable[[], object]
    units: int  # pairs, tokens, sentences: what a run gets done
    demand: float  # what a run asks for, in any measure that is the same at all sizes


@dataclass(frozen=True)
class Axis:
    """One size that grows while all others stay."""

    title: str
    size: str
    unit: str
    sizes: Sequence[int]
    make: Callable[[int, "Setting"], Case]


@dataclass(frozen=True)
class Setting:
    """What is the same for all axes."""

    shapes: Shapes
    kind: str
    device: torch.device
    directory: Path  # for files that a case needs while it runs


@dataclass(frozen=True)
class Point:
    """What was measured at one size."""

    size: int
    seconds_per_unit: Spread
    cost: Spread  # seconds a unit, relative to the first size's in the same round
    demand: float  # work a unit, relative to the first size's


@dataclass(frozen=True)
class Growth:
    """What was measured along one axis."""

    title: str
    size: str
    unit: str
    points: Sequence[Point]


@dataclass(frozen=True)
class GrowthResult:
    """A whole run of the benchmark."""

    machine: Machine
    axes: Sequence[Growth]


def measure_growth(
    names: Sequence[str], shapes: Shapes, kind: str, *, largest: int, repeats: int,
    device: torch.device,
) -> GrowthResult:  # fmt: skip
    """The axes of these names, each with no more than `largest` sizes."""
    machine = describe_machine(device)
    axes = [replace(AXES[name], sizes=AXES[name].sizes[:largest]) for name in names]
    total = sum(len(axis.sizes) for axis in axes) * (1 + repeats)
    with progress_bar(total=total, unit="run", description="growth") as bar:
        found = [
            measure_axis(axis, shapes, kind, repeats=repeats, device=device, done=bar.update)
            for axis in axes
        ]
    return GrowthResult(machine, found)


def measure_axis(
    axis: Axis, shapes: Shapes, kind: str, *, repeats: int, device: torch.device,
    done: Callable[[int], object],
) -> Growth:  # fmt: skip
    """Every size in turn, round after round; the first round is not counted."""
    with ExitStack() as stack:
        cases = []
        for size in axis.sizes:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="nmt-bench-"))
            cases.append(axis.make(size, Setting(shapes, kind, device, Path(directory))))
        rounds = []
        for _ in range(1 + repeats):
            times = []
            for case in cases:
                times.append(seconds(case.run, 1, device) / case.units)
                done(1)
            rounds.append(times)
    return Growth(axis.title, axis.size, axis.unit, summarize(axis.sizes, cases, rounds[1:]))


def summarize(
    sizes: Sequence[int], cases: Sequence[Case], rounds: Sequence[Sequence[float]]
) -> list[Point]:
    """Points from the seconds a unit of every round and size."""
    first = [times[0] for times in rounds]
    first_demand = cases[0].demand / cases[0].units
    return [
        Point(
            size,
            Spread.of([times[column] for times in rounds]),
            Spread.of_ratios([times[column] for times in rounds], first),
            cases[column].demand / cases[column].units / first_demand,
        )
        for column, size in enumerate(sizes)
    ]


# ---------------------------------------------------------------- what can grow


def preparation(pairs: int, setting: Setting) -> Case:
    """Preparing so many pairs of made-up text: every pair asks for the same."""
    rows = made_up_text(pairs)
    files = {}
    for side, lines in rows.items():
        path = setting.directory / f"train.{side}"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        files[side] = (path,)
    data = ParallelFiles(files["source"], files["target"])
    subword = SubwordConfig("bpe", merges=MERGES)

    def run() -> None:
        with quiet("nmt.data"), tempfile.TemporaryDirectory(dir=setting.directory) as directory:
            prepared = Path(directory) / "prepared"
            config = DataConfig("xx", "yy", data, data, subword=subword, prepared_dir=prepared)
            prepare(Config(run_dir=Path(directory), data=config))

    return Case(run, pairs, demand=pairs)


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """A context in which loggers below `name` report no news, which are the same in every run."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def made_up_text(pairs: int) -> dict[str, list[str]]:
    """Lines of words whose frequencies fall as those of real words do (Zipf)."""
    generator = np.random.default_rng(pairs)
    weights = 1.0 / np.arange(1, WORDS + 1)
    text = {}
    for side in ("source", "target"):
        letters = generator.integers(ord("a"), ord("z") + 1, size=(WORDS, 8), dtype=np.uint8)
        lengths = generator.integers(2, 9, size=WORDS)
        words = [
            row[:length].tobytes().decode() for row, length in zip(letters, lengths, strict=True)
        ]
        chosen = generator.choice(
            WORDS, size=(pairs, WORDS_OF_A_LINE), p=weights / weights.sum()
        ).tolist()
        text[side] = [" ".join(words[word] for word in line) for line in chosen]
    return text


def training_update(setting: Setting, **changes: int) -> Case:
    """An update; it asks for its matrix products."""
    task = training.synthetic_task(replace(setting.shapes, **changes), 1, precision="float32")
    contender = training.Contender(task, setting.kind, setting.device)
    return Case(contender, task.tokens, task.operations)


def translation(
    setting: Setting, *, beam: int = BEAM, batch: int = SENTENCES, **changes: int
) -> Case:
    """Translating random sentences, outputs as long as sources; asks for its matrix products."""
    shapes = replace(setting.shapes, **changes)
    (contender,) = decoding.random_contenders(
        shapes, [setting.kind], int8=False, device=setting.device
    )
    lines = synthetic_lines(shapes, SENTENCES)
    sentences = decoding.Sentences.of(lines, contender.member.codec)
    settings = decoding.Settings([batch], beam, repeats=1, force_length=True, fast=False)
    batches = sentences.batches(batch)

    def run() -> list[int]:
        return [
            length
            for rows in batches
            for length in decoding.translate(contender, sentences, rows, settings)
        ]

    outputs = run()
    demand = decoding.translation_work(contender, sentences, outputs, settings)
    return Case(run, sum(outputs), demand)


AXES = {
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
