"""All benchmarks of a GPU in one run, each beside what the roofline predicts for it.

Every measurement is a trial of its own: one that fails, for example because memory is short, is
recorded with its error, and the others go on. With small sizes the same code runs on a CPU.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

import torch

from nmt.bench import attention, decoding, scaling, training
from nmt.bench.growth import quiet
from nmt.bench.machine import PRODUCT_SIZE, MatrixProduct
from nmt.bench.roofline import PRODUCT_SHARE, Gpu, WorkCounts, find_counts, find_gpu, predict
from nmt.bench.synthetic import Shapes, synthetic_lines
from nmt.bench.timing import Spread, measure_rounds
from nmt.decoding.translation import Precision
from nmt.ops.cuda_device import has_bfloat16, tf32_is_on
from nmt.training.distributed import Processes

TERA = 1e12
GPU_BEAM = 4
GPU_PARTS = ("products", "train", "attention", "decode", "processes")
UNITS = {
    "products": "TFLOP/s",
    "train": "target tokens/s",
    "attention": "tokens/s",
    "decode": "target tokens/s",
    "processes": "target tokens/s",
}


@dataclass(frozen=True)
class BenchmarkSizes:
    """The models, data and repetitions of all parts."""

    shapes: Shapes
    long_shapes: Shapes  # with long sentences, for memory
    accumulate: int
    updates: int
    batch_sizes: Sequence[int]  # of decoding, in sentences
    lengths: Sequence[int]  # of attention
    attention_tokens: int
    compiled: bool  # train with torch.compile, too
    counted: bool  # the counts of the roofline are for these shapes


# The shapes that counts.tsv was recorded with: 231 sentences of 27 tokens, and 97 of 257.
BASE = Shapes(
    dim=512,
    heads=8,
    layers=6,
    feed_forward_dim=2048,
    vocabulary=32000,
    length=26,
    same_length=True,
    batch_tokens=231 * 27,
    dropout=0.1,
)
FULL = BenchmarkSizes(
    shapes=BASE,
    long_shapes=replace(BASE, length=256, batch_tokens=97 * 257),
    accumulate=4,
    updates=4,
    batch_sizes=(1, 16, 100),
    lengths=(32, 64, 128, 256, 512, 1024, 2048),
    attention_tokens=16384,
    compiled=True,
    counted=True,
)
TINY_SHAPES = replace(
    BASE, dim=16, heads=2, layers=1, feed_forward_dim=32, vocabulary=40, length=4, batch_tokens=40
)
SMALL = BenchmarkSizes(
    shapes=TINY_SHAPES,
    long_shapes=replace(TINY_SHAPES, length=15, batch_tokens=64),
    accumulate=2,
    updates=1,
    batch_sizes=(1, 4),
    lengths=(4, 8),
    attention_tokens=16,
    compiled=False,
    counted=False,
)


def known_gpu(device: torch.device, sizes: BenchmarkSizes) -> Gpu | None:
    """The rates of a device that predictions can be made for, with sizes that were counted."""
    if device.type != "cuda" or not sizes.counted:
        return None
    return find_gpu(torch.cuda.get_device_name(device))


@dataclass(frozen=True)
class BenchmarkPlan:
    """The measurements to make, and their device."""

    device: torch.device
    sizes: BenchmarkSizes
    kinds: Sequence[str]
    parts: Sequence[str]
    processes: int  # at most
    repeats: int
    gpu: Gpu | None = None  # that predictions are for; None: there are none

    @property
    def half(self) -> str:
        """The 16-bit format that the device is fast in."""
        return "bfloat16" if self.device.type == "cpu" or has_bfloat16(self.device) else "float16"

    def facts(self) -> dict[str, Any]:
        """The conditions of the measurements besides the machine."""
        cuda = self.device.type == "cuda"
        card = torch.cuda.get_device_properties(self.device) if cuda else None
        return {
            "nmt": version("nmt"),
            "device": self.device.type,
            "gpus": torch.cuda.device_count() if cuda else 0,
            "cuda": torch.version.cuda,
            "capability": None if card is None else f"{card.major}.{card.minor}",
            "memory_bytes": None if card is None else card.total_memory,
            "tf32": cuda and tf32_is_on(),
            "sizes": asdict(self.sizes),
            "rates": None if self.gpu is None else asdict(self.gpu),
        }


@dataclass(frozen=True)
class Figures:
    """The measured figures of a trial."""

    speed: Spread
    peak_memory_bytes: int | None = None


@dataclass(frozen=True)
class PredictedFigures:
    """The calculated figures of a trial."""

    speed: float | None = None
    peak_memory_bytes: int | None = None


@dataclass(frozen=True)
class Trial:
    """A measurement that can fail without harm to the others."""

    part: str
    name: str
    settings: dict[str, str | int]
    run: Callable[[], Figures]
    expected: PredictedFigures = PredictedFigures()


@dataclass(frozen=True)
class GpuRow:
    """The outcome of a trial: figures or an error. `predicted` is calculated, not measured."""

    part: str
    name: str
    settings: dict[str, str | int]
    unit: str
    measured: Figures | None
    predicted: PredictedFigures
    error: str | None = None


def run_trials(trials: Sequence[Trial]) -> Iterator[GpuRow]:
    """The outcome of each trial, in order."""
    gc.freeze()  # the objects of imported modules would make up most of each collection
    try:
        for trial in trials:
            yield outcome(trial)
    finally:
        gc.unfreeze()


def outcome(trial: Trial) -> GpuRow:
    """Run a trial; an error is recorded."""
    measured, error = None, None
    try:
        release_memory()  # which fails, too, after an error that has stopped the device
        with quiet("nmt.data"):
            measured = trial.run()
    except Exception as problem:  # a driver or a compiler may raise anything
        text = str(problem).strip().split("\n", maxsplit=1)[0]
        error = f"{type(problem).__name__}: {text}"
    unit = UNITS[trial.part]
    return GpuRow(trial.part, trial.name, trial.settings, unit, measured, trial.expected, error)


def release_memory() -> None:
    """Drop the graphs and the memory of the trial before."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def make_trials(plan: BenchmarkPlan) -> list[Trial]:
    """The trials of all parts of a plan."""
    makers = {
        "products": product_trials,
        "train": training_trials,
        "attention": attention_trials,
        "decode": decoding_trials,
        "processes": process_trials,
    }
    return [trial for part in plan.parts for trial in makers[part](plan)]


def product_trials(plan: BenchmarkPlan) -> list[Trial]:
    """The rate of a large matrix product in 16 bits and in float32 or TF32."""

    def run(precision: str) -> Figures:
        product = MatrixProduct(plan.device, getattr(torch, precision))
        product.case()
        times = measure_rounds([product.case], repeats=plan.repeats, device=plan.device)
        return Figures(Spread.of(product.rates(times[0]) / TERA))

    def expected(precision: str) -> PredictedFigures:
        if plan.gpu is None:
            return PredictedFigures()
        return PredictedFigures(PRODUCT_SHARE * plan.gpu.product_rate(precision) / TERA)

    tf32 = plan.device.type == "cuda" and tf32_is_on()
    names = {plan.half: plan.half, "float32": "TF32" if tf32 else "float32"}
    return [
        Trial(
            "products",
            name,
            {"size": PRODUCT_SIZE[plan.device.type]},
            lambda precision=precision: run(precision),  # type: ignore[misc]
            expected(precision),
        )
        for precision, name in names.items()
    ]


def training_trials(plan: BenchmarkPlan) -> list[Trial]:
    """Updates with every kind: in each precision, compiled, with accumulation, long sentences."""
    sizes, half = plan.sizes, plan.half
    ways = [(sizes.shapes, half, False, 1), (sizes.shapes, "float32", False, 1)]
    ways += [(sizes.shapes, half, True, 1)] if sizes.compiled else []
    ways += [(sizes.shapes, half, False, sizes.accumulate), (sizes.long_shapes, half, False, 1)]

    def run(kind: str, way: tuple[Shapes, str, bool, int]) -> Figures:
        shapes, precision, compiled, accumulate = way
        task = training.synthetic_task(
            shapes, sizes.updates, precision=precision, compiled=compiled, accumulate=accumulate
        )
        team = Processes(0, 1, plan.device, None)
        (row,) = training.measure_training(task, [kind], team, repeats=plan.repeats).rows
        return Figures(row.tokens_per_second, row.peak_memory_bytes)

    def expected(kind: str, way: tuple[Shapes, str, bool, int]) -> PredictedFigures:
        shapes, precision, compiled, accumulate = way
        if compiled or accumulate > 1:  # the counts are of one pass in eager execution
            return PredictedFigures()
        sentences = shapes.batch_tokens // (shapes.length + 1)
        return prediction(plan.gpu, find_counts("update", kind, precision, sentences=sentences))

    return [
        Trial(
            "train",
            kind,
            {
                "precision": way[1],
                "compile": "yes" if way[2] else "no",
                "accumulate": way[3],
                "length": way[0].length + 1,
            },
            lambda kind=kind, way=way: run(kind, way),  # type: ignore[misc]
            expected(kind, way),
        )
        for way in ways
        for kind in plan.kinds
    ]


def prediction(gpu: Gpu | None, counts: WorkCounts | None) -> PredictedFigures:
    """The figures that the roofline predicts from recorded counts."""
    if gpu is None or counts is None:
        return PredictedFigures()
    return PredictedFigures(predict(counts, gpu).tokens_per_second, counts.peak_bytes)


def attention_trials(plan: BenchmarkPlan) -> list[Trial]:
    """The attention core, forward and backward, by length."""
    precision = "float32" if plan.device.type == "cpu" or plan.half == "float16" else plan.half
    cases = {name: case for name, case in attention.attention_cases().items() if name in plan.kinds}
    tokens = plan.sizes.attention_tokens
    sizes = attention.AttentionSizes(
        tokens=tokens,
        dim=plan.sizes.shapes.dim,
        heads=plan.sizes.shapes.heads,
        dropout=plan.sizes.shapes.attention_dropout,
        mask="padding",
        device=str(plan.device),
        repeats=plan.repeats,
        precision=precision,
    )

    def run(name: str, length: int) -> Figures:
        chosen = {name: cases[name]} if name in cases else {}
        (rows,) = attention.measure_attention(sizes, [length], chosen)
        row = next(row for row in rows if row.form == name)
        times = row.seconds
        positions = max(1, tokens // length) * length
        speed = Spread(*(positions / value for value in (times.median, times.high, times.low)))
        return Figures(speed, row.peak_memory_bytes)

    return [
        Trial(
            "attention",
            name,
            {"precision": precision, "length": length},
            lambda name=name, length=length: run(name, length),  # type: ignore[misc]
        )
        for length in plan.sizes.lengths
        for name in (*attention.REFERENCES, *cases)
    ]


def decoding_trials(plan: BenchmarkPlan) -> list[Trial]:
    """Beam search with every kind, in each precision and batch size."""
    shapes = plan.sizes.shapes
    precisions: list[Precision] = ["float32"]
    precisions += ["bfloat16"] if plan.half == "bfloat16" else []

    def run(kind: str, precision: Precision, batch: int) -> Figures:
        models = decoding.random_models(
            shapes, [kind], int8=False, device=plan.device, precision=precision
        )
        settings = decoding.DecodingSettings(
            [batch], GPU_BEAM, repeats=plan.repeats, force_length=True, fast=False
        )
        lines = synthetic_lines(shapes, max(batch, 4))
        (row,) = decoding.measure_decoding(models, lines, settings, device=plan.device).rows
        return Figures(row.tokens_per_second, row.peak_memory_bytes)

    return [
        Trial(
            "decode",
            kind,
            {"precision": precision, "batch": batch, "beam": GPU_BEAM},
            lambda kind=kind, way=(precision, batch): run(kind, *way),  # type: ignore[misc]
            # The memory of a step counts the weights, that of the benchmark does not.
            replace(
                prediction(
                    plan.gpu, find_counts("decoding step", kind, precision, sentences=batch)
                ),
                peak_memory_bytes=None,
            ),
        )
        for precision in precisions
        for batch in plan.sizes.batch_sizes
        for kind in plan.kinds
    ]


def process_trials(plan: BenchmarkPlan) -> list[Trial]:
    """Training on 1, 2, 4 ... processes, each with a batch of its own in every update."""
    precision = plan.half if plan.device.type == "cuda" else "float32"

    def run(kind: str, count: int) -> Figures:
        return Figures(
            scaling.measure_processes(
                replace(plan.sizes.shapes, same_length=False),
                kind,
                count,
                precision=precision,
                updates=plan.sizes.updates,
                repeats=plan.repeats,
                device=plan.device.type,
            )
        )

    compared = [kind for kind in ("softmax", "rela-g") if kind in plan.kinds]
    return [
        Trial(
            "processes",
            kind,
            {"processes": count, "precision": precision},
            lambda kind=kind, count=count: run(kind, count),  # type: ignore[misc]
        )
        for kind in compared or plan.kinds[:1]
        for count in scaling.process_counts(plan.processes)
    ]
