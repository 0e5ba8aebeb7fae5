"""How long training will take on 1 to 1,024 GPUs: calculated from a roofline, never measured.

The work of a pass is that of the recorded counts of Transformer-base (`nmt/bench/roofline.py`),
scaled to the config. On n GPUs an update is divided among them; its gradients are summed by a ring
all-reduce over published rates of the network, which hides behind the backward pass as far as
that takes. Launches do not get fewer with fewer tokens: this is where more GPUs stop helping.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nmt.bench.kinds import LEARNED_ENTMAX
from nmt.bench.roofline import GPUS, Gpu, WorkCounts, find_counts, find_gpu, predict
from nmt.config.config import AttentionConfig, Config, ModelConfig
from nmt.doctor.compute import Device
from nmt.errors import ConfigError

logger = logging.getLogger(__name__)

MAX_GPUS = 1024
GPUS_PER_NODE = 8
PLANNED_VOCABULARY = (
    27_500  # each side of the counted model and of WMT14 En-De with 32,000 joint merges
)
STATE_BYTES = 16  # per parameter: weight, gradient and the two moments of Adam in float32
UPDATE_BYTES = 50  # per parameter that an update moves once, by two rows of the recorded counts
GRADIENT_BYTES = {"float32": 4, "bfloat16": 2}  # per parameter, by train.all_reduce
BUCKET_BYTES = 25e6  # of DistributedDataParallel
STEP_SECONDS = 15e-6  # latency of one step of an all-reduce
BACKWARD_SHARE = 2 / 3  # of a pass, behind which the all-reduce of its gradients hides
MEMORY_SHARE = 0.9  # of a card that a run may use
COMPARED = ("softmax", "entmax15", "rela-g")  # kinds that are told of the GPUs of this machine
WORTHWHILE = 1.25  # twice the GPUs have to be faster by this to be worth it


@dataclass(frozen=True)
class Network:
    """The bus bandwidth of an all-reduce, in bytes per second: in a node, and between nodes."""

    inside: float
    between: float


G = 1e9
# Bus bandwidths as published for NCCL's tests. Between nodes: eight NICs of 200 Gb/s (A100) or 400
# Gb/s (later), four of 100 Gb/s (V100), and one of 100 Gb/s for cards without NVLink.
NETWORKS = {
    "B200": Network(680 * G, 370 * G),
    "H200": Network(370 * G, 350 * G),
    "H100 SXM": Network(370 * G, 350 * G),
    "A100 80 GB": Network(230 * G, 180 * G),
    "A100 40 GB": Network(230 * G, 180 * G),
    "V100": Network(130 * G, 40 * G),
}
PCI_EXPRESS = Network(20 * G, 11 * G)


@dataclass(frozen=True)
class Work:
    """The model and the updates that are planned for."""

    kind: str
    model: ModelConfig
    update_tokens: int
    pass_tokens: int
    updates: int
    precision: str = "auto"
    vocabulary: int = PLANNED_VOCABULARY  # of each side
    all_reduce: str = "float32"

    @property
    def parameters(self) -> int:
        """The parameters of the model."""
        return count_parameters(self.model, self.vocabulary)


@dataclass(frozen=True)
class Step:
    """The calculated training on one number of GPUs."""

    gpus: int
    tokens_per_second: float
    efficiency: float  # against as many single GPUs
    hours: float
    bound_by: str  # computing, launches or network


@dataclass(frozen=True)
class ScalingPlan:
    """Everything here is calculated, not measured."""

    gpu: str
    precision: str
    kind: str
    parameters: int
    update_tokens: int
    updates: int
    tokens_that_fit: int  # in a pass
    steps: list[Step]
    useful_gpus: int  # more make an update of this size hardly faster
    note: str = "calculated, not measured on a GPU: read it as plus or minus 40 %"


def choose_gpu(asked: str | None, device_name: str | None) -> Gpu:
    """The GPU by a name such as a100 or 4090; without one that of this machine, else an A100."""
    if asked is None:
        known = None if device_name is None else find_gpu(device_name)
        if known is None:
            logger.warning(
                "there is no known GPU here: an A100 is assumed; name another with --gpu"
            )
        return known or GPUS["A100"]
    for name, gpu in GPUS.items():
        if plain(asked) in (plain(name), plain(gpu.name)) or plain(name).endswith(plain(asked)):
            return gpu
    raise ConfigError(f"--gpu {asked}: expected one of {', '.join(GPUS)}")


def plain(name: str) -> str:
    """A name in small letters without spaces and hyphens."""
    return name.lower().replace(" ", "").replace("-", "")


def work_of(config: Config | None) -> Work:
    """The training work of a config, by its slowest kind, or of a row of the paper's Table 1."""
    if config is None:
        return Work("softmax", ModelConfig(), 25_000, 6_250, 300_000)
    train, attention, subword = config.train, config.model.attention, config.data.subword
    sublayers = (attention.encoder_self, attention.decoder_self, attention.cross)
    slowest = min(map(kind_name, sublayers), key=tokens_per_second)
    return Work(
        slowest,
        config.model,
        train.batch_tokens * train.accumulate,
        train.batch_tokens,
        train.max_updates,
        train.precision,
        min(PLANNED_VOCABULARY, subword.merges or subword.vocabulary_size or PLANNED_VOCABULARY),
        train.all_reduce,
    )


def kind_name(attention: AttentionConfig) -> str:
    """The name of a kind in the recorded counts."""
    return LEARNED_ENTMAX if attention.given.get("alpha") == "learned" else attention.kind


def tokens_per_second(kind: str) -> float:
    """The calculated speed of a kind on the reference GPU."""
    return predict(counts_of(kind, "bfloat16")).tokens_per_second


def counts_of(kind: str, precision: str) -> WorkCounts:
    """The recorded counts of an update; a kind that was not counted is taken for softmax."""
    found = find_counts("update", kind, precision) or find_counts("update", "softmax", precision)
    assert found is not None, "softmax is counted in every precision"
    return found


def count_parameters(model: ModelConfig, vocabulary: int = PLANNED_VOCABULARY) -> int:
    """The parameters of a model."""
    tables = {"none": 3, "target": 2, "all": 1}[model.tie_embeddings]
    return matrix_parameters(model, vocabulary) + (tables - 1) * vocabulary * model.dim


def matrix_parameters(model: ModelConfig, vocabulary: int = PLANNED_VOCABULARY) -> int:
    """The parameters of all products, with one table for the output layer."""
    square, feed_forward = model.dim**2, 2 * model.dim * model.feed_forward_dim
    encoder = model.encoder_layers * (4 * square + feed_forward)
    decoder = model.decoder_layers * (8 * square + feed_forward)
    return encoder + decoder + vocabulary * model.dim


def scaled(work: Work, precision: str, tokens: float) -> WorkCounts:
    """The counts of one pass of `tokens` without its optimizer, for the model of the config."""
    base, counts = ModelConfig(), counts_of(work.kind, precision)
    model = work.model
    layers = (model.encoder_layers + model.decoder_layers) / (
        base.encoder_layers + base.decoder_layers
    )
    products = matrix_parameters(model, work.vocabulary) / matrix_parameters(base)
    activations = layers * model.dim / base.dim
    share = tokens / counts.tokens
    moved = counts.other_bytes - UPDATE_BYTES * count_parameters(base)
    return replace(
        counts,
        tokens=max(1, round(tokens)),
        launches=round(counts.launches * layers),
        product_flops=round(counts.product_flops * products * share),
        product_bytes=round(counts.product_bytes * products * share),
        attention_flops=round(counts.attention_flops * activations * share),
        vector_flops=round(counts.vector_flops * activations * share),
        other_bytes=round(moved * activations * share),
    )


def tokens_that_fit(work: Work, gpu: Gpu, precision: str) -> int:
    """How many target tokens a pass may have before the memory of the card is full."""
    base, counts = ModelConfig(), counts_of(work.kind, precision)
    layers = (work.model.encoder_layers + work.model.decoder_layers) / (
        base.encoder_layers + base.decoder_layers
    )
    state = STATE_BYTES * count_parameters(base)
    per_token = (counts.peak_bytes - state) / counts.tokens * layers * work.model.dim / base.dim
    free = MEMORY_SHARE * gpu.memory_bytes - STATE_BYTES * work.parameters
    return max(0, int(free / per_token))


def update_seconds(work: Work, gpu: Gpu, precision: str, gpus: int) -> tuple[float, str]:
    """The time of an update on a number of GPUs, and what bounds it."""
    share = work.update_tokens / gpus
    fitting = max(1, min(work.pass_tokens, tokens_that_fit(work, gpu, precision)))
    passes = math.ceil(share / fitting)
    one = predict(scaled(work, precision, share / passes), gpu)
    parameters = work.parameters
    optimizer = UPDATE_BYTES * parameters / gpu.bandwidth
    sent = GRADIENT_BYTES[work.all_reduce] * parameters
    exposed = max(0.0, all_reduce_seconds(gpu, sent, gpus) - BACKWARD_SHARE * one.seconds)
    seconds = passes * one.seconds + optimizer + exposed
    if exposed > one.seconds / 2:
        return seconds, "network"
    return seconds, "launches" if one.host_seconds > one.device_seconds else "computing"


def all_reduce_seconds(gpu: Gpu, size: int, gpus: int) -> float:
    """The time of summing gradients of `size` bytes over all GPUs."""
    if gpus == 1:
        return 0.0
    network = NETWORKS.get(gpu.name, PCI_EXPRESS)
    bandwidth = network.inside if gpus <= GPUS_PER_NODE else network.between
    steps = math.ceil(math.log2(gpus)) * math.ceil(size / BUCKET_BYTES)
    return 2 * (gpus - 1) / gpus * size / bandwidth + steps * STEP_SECONDS


def make_plan(most: int, gpu: Gpu, work: Work) -> ScalingPlan:
    """The plan for 1, 2, 4, ... GPUs up to `most`."""
    precision = work.precision
    if precision == "auto":
        precision = "bfloat16" if gpu.has_bfloat16 else "float32"
    counted = "float32" if precision == "float32" else "bfloat16"
    numbers = sorted({1 << power for power in range(11) if 1 << power <= most} | {most})
    steps: list[Step] = []
    for number in numbers:
        seconds, bound = update_seconds(work, gpu, counted, number)
        speed = work.update_tokens / seconds
        efficiency = speed / (number * steps[0].tokens_per_second) if steps else 1.0
        steps.append(Step(number, speed, efficiency, work.updates * seconds / 3600, bound))
    return ScalingPlan(
        gpu.name,
        precision,
        work.kind,
        work.parameters,
        work.update_tokens,
        work.updates,
        tokens_that_fit(work, gpu, counted),
        steps,
        useful_gpus(work, gpu, counted),
    )


def plans_for(devices: Sequence[Device]) -> list[ScalingPlan]:
    """The plans for the GPUs of this machine, for the models of the paper's Table 1."""
    models = [device.model for device in devices if device.name.startswith("cuda")]
    gpu = find_gpu(models[0]) if models else None
    if gpu is None:
        return []
    work = work_of(None)
    return [make_plan(models.count(models[0]), gpu, replace(work, kind=kind)) for kind in COMPARED]


def useful_gpus(work: Work, gpu: Gpu, precision: str) -> int:
    """The number of GPUs that doubling makes less than WORTHWHILE times as fast."""
    number = 1
    while number < MAX_GPUS:
        now, twice = (update_seconds(work, gpu, precision, n)[0] for n in (number, 2 * number))
        if now / twice < WORTHWHILE:
            break
        number *= 2
    return number


def describe_hours(hours: float) -> str:
    """Hours with the digits that a calculation may have."""
    if hours < 0.01:
        return "<0.01"
    return f"{hours:,.{0 if hours >= 100 else 2}f}"


def describe_plan(plan: ScalingPlan) -> str:
    """The plan as text."""
    rows = [("GPUs", "tokens/s", "efficiency", "hours", "bound by")]
    rows += [
        (
            str(step.gpus),
            f"{step.tokens_per_second:,.0f}",
            f"{step.efficiency:.0%}",
            describe_hours(step.hours),
            step.bound_by,
        )
        for step in plan.steps
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
    hours = describe_hours(plan.steps[0].hours)
    return "\n".join(
        [
            f"Training on {plan.gpu} in {plan.precision}: {plan.parameters / 1e6:.1f} million "
            f"parameters, {plan.kind} attention,",
            f"{plan.updates:,} updates of {plan.update_tokens:,} target tokens. Calculated, not "
            "measured on a GPU: read it as plus or minus 40 %.",
            "",
            *lines,
            "",
            f"A pass of about {plan.tokens_that_fit:,} target tokens fits into the memory of one.",
            f"With more than {plan.useful_gpus} GPU(s) it hardly gets faster: twice as many make "
            f"an update of this size less than {WORTHWHILE} times as fast.",
            f"Variants side by side, one per GPU (nmt-table --gpus), take {hours} hours each "
            "and waste nothing.",
        ]
    )
