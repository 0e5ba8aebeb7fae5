"""The speed that a GPU can reach, calculated from recorded operations: a roofline, no measurement.

`counts.tsv` holds what whole updates and decoding steps of Transformer-base ask of a GPU, recorded
on fake tensors. `predict` turns such a row into seconds on a GPU by published rates:

    products  = max(FLOP / (PRODUCT_SHARE rate), bytes / (BANDWIDTH_SHARE bandwidth))
    fused     = max(FLOP / (PRODUCT_SHARE rate), bytes in L2 / (BANDWIDTH_SHARE L2 bandwidth))
    attention = FLOP / (ATTENTION_SHARE rate) + vector FLOP / (VECTOR_SHARE float32 rate)
    others    = bytes / (BANDWIDTH_SHARE bandwidth)
    device    = products + fused + attention + others + launches LAUNCH_GAP
    seconds   = max(device, launches HOST_LAUNCH) + synchronisations SYNCHRONISATION

The shares are what large products, fused attention and elementwise kernels usually reach. Read a
prediction as plus or minus 40 %; ratios between predictions are better.
"""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Literal

PRODUCT_SHARE = 0.6  # of the peak rate that products of a few thousand rows reach
ATTENTION_SHARE = 0.2  # of the peak rate in the small products of fused attention
VECTOR_SHARE = 0.3  # of the peak rate outside of products; exponentials make it small
BANDWIDTH_SHARE = 0.8
CACHE_RATIO = 4.6  # bandwidth of L2 to that of memory: an A100 reads 5,120 bytes of it per cycle
LAUNCH_GAP = 1e-6  # seconds between two kernels on the device
HOST_LAUNCH = 6e-6  # seconds of Python, autograd and driver for each launch
SYNCHRONISATION = 30e-6  # seconds: the way there and back, and the device without work

Pass = Literal["update", "decoding step"]


@dataclass(frozen=True)
class Gpu:
    """A GPU with the rates of its data sheet, dense, with accumulation in float32."""

    name: str
    half_flops: float | None  # bfloat16 or float16; None: no faster than float32
    tf32_flops: float | None
    float32_flops: float
    bandwidth: float  # bytes per second
    memory_bytes: float
    has_bfloat16: bool = True

    def product_rate(self, precision: str) -> float:
        """FLOP per second of matrix products; float32 means TF32 where the GPU has it."""
        rate = self.tf32_flops if precision == "float32" else self.half_flops
        return rate or self.float32_flops


T, G = 1e12, 1e9

# By a part of the name that torch.cuda.get_device_name returns; the first that fits is taken.
GPUS: Mapping[str, Gpu] = {
    "B200": Gpu("B200", 2250 * T, 1125 * T, 75 * T, 8000 * G, 180 * G),
    "H200": Gpu("H200", 989 * T, 494 * T, 67 * T, 4800 * G, 141 * G),
    "H100 PCIe": Gpu("H100 PCIe", 756 * T, 378 * T, 51 * T, 2000 * G, 80 * G),
    "H100": Gpu("H100 SXM", 989 * T, 494 * T, 67 * T, 3350 * G, 80 * G),
    "A100-SXM4-80GB": Gpu("A100 80 GB", 312 * T, 156 * T, 19.5 * T, 2039 * G, 80 * G),
    "A100 80GB PCIe": Gpu("A100 80 GB PCIe", 312 * T, 156 * T, 19.5 * T, 1935 * G, 80 * G),
    "A100": Gpu("A100 40 GB", 312 * T, 156 * T, 19.5 * T, 1555 * G, 40 * G),
    "L40S": Gpu("L40S", 362 * T, 183 * T, 91.6 * T, 864 * G, 48 * G),
    "L4": Gpu("L4", 121 * T, 60 * T, 30.3 * T, 300 * G, 24 * G),
    "RTX 5090": Gpu("RTX 5090", 209.5 * T, 104.8 * T, 104.8 * T, 1792 * G, 32 * G),
    "RTX 4090": Gpu("RTX 4090", 165.2 * T, 82.6 * T, 82.6 * T, 1008 * G, 24 * G),
    "RTX 3090": Gpu("RTX 3090", 71 * T, 35.6 * T, 35.6 * T, 936 * G, 24 * G),
    "RTX A6000": Gpu("RTX A6000", 154.8 * T, 77.4 * T, 38.7 * T, 768 * G, 48 * G),
    "A10": Gpu("A10", 125 * T, 62.5 * T, 31.2 * T, 600 * G, 24 * G),
    "V100": Gpu("V100", 125 * T, None, 15.7 * T, 900 * G, 16 * G, has_bfloat16=False),
    "T4": Gpu("T4", 65 * T, None, 8.1 * T, 320 * G, 16 * G, has_bfloat16=False),
    "P100": Gpu("P100", 21.2 * T, None, 10.6 * T, 732 * G, 16 * G, has_bfloat16=False),
    "1080 Ti": Gpu("GTX 1080 Ti", None, None, 11.3 * T, 484 * G, 11 * G, has_bfloat16=False),
}
REFERENCE_GPU = GPUS["A100"]


def find_gpu(device_name: str) -> Gpu | None:
    """The GPU of a device name such as "NVIDIA A100-SXM4-40GB"; None: its rates are unknown."""
    words = {part: rf"(?<!\w){part}(?!\w)" for part in GPUS}
    if "Laptop" in device_name:
        return None
    return next((gpu for part, gpu in GPUS.items() if re.search(words[part], device_name)), None)


@dataclass(frozen=True)
class WorkCounts:
    """The demands of one update or decoding step on a GPU, recorded on fake tensors."""

    work: Pass
    kind: str  # of attention, in all sublayers
    precision: str
    sentences: int
    length: int  # of source and target, with padding
    tokens: int  # target tokens without padding; of a decoding step, one per sentence
    launches: int  # of kernels, in eager execution
    synchronisations: int  # in which the host waits for the device
    product_flops: int
    product_bytes: int
    fused_flops: int  # of our products that norm their output in the same launch
    cache_bytes: int  # that these read and write in the L2 cache
    attention_flops: int
    vector_flops: int  # of fused attention outside of products
    other_bytes: int
    peak_bytes: int  # of memory, with weights, gradients and the state of Adam
    waits: str  # the functions in which the host waits, separated by ", "

    @classmethod
    def parse(cls, row: Mapping[str, str]) -> "WorkCounts":
        """The counts of a row of counts.tsv."""
        texts = ("work", "kind", "precision", "waits")
        return cls(
            **{
                field.name: row[field.name] if field.name in texts else int(row[field.name])
                for field in fields(cls)
            }  # type: ignore[arg-type]
        )

    @property
    def key(self) -> tuple[str | int, ...]:
        """The task that was counted, which is what distinguishes rows."""
        return (self.work, self.kind, self.precision, self.sentences, self.length)


@dataclass(frozen=True)
class Prediction:
    """Calculated, not measured."""

    seconds: float
    device_seconds: float
    host_seconds: float
    tokens_per_second: float


def predict(counts: WorkCounts, gpu: Gpu = REFERENCE_GPU) -> Prediction:
    """The time of an update or step by the roofline at the top of this module."""
    rate = gpu.product_rate(counts.precision)
    bandwidth = BANDWIDTH_SHARE * gpu.bandwidth
    products = max(counts.product_flops / (PRODUCT_SHARE * rate), counts.product_bytes / bandwidth)
    fused = max(
        counts.fused_flops / (PRODUCT_SHARE * rate), counts.cache_bytes / (CACHE_RATIO * bandwidth)
    )
    attention = counts.attention_flops / (ATTENTION_SHARE * rate)
    attention += counts.vector_flops / (VECTOR_SHARE * gpu.float32_flops)
    device = products + fused + attention + counts.other_bytes / bandwidth
    device += counts.launches * LAUNCH_GAP
    host = counts.launches * HOST_LAUNCH
    seconds = max(device, host) + counts.synchronisations * SYNCHRONISATION
    return Prediction(seconds, device, host, counts.tokens / seconds)


@cache
def recorded_counts() -> Sequence[WorkCounts]:
    """The rows of counts.tsv."""
    text = files("nmt.bench").joinpath("counts.tsv").read_text(encoding="utf-8")
    return tuple(WorkCounts.parse(row) for row in csv.DictReader(text.splitlines(), delimiter="\t"))


def find_counts(
    work: Pass, kind: str, precision: str, *, sentences: int | None = None
) -> WorkCounts | None:
    """The recorded counts of a task, of the first shape unless the sentences are given."""
    for counts in recorded_counts():
        if (counts.work, counts.kind, counts.precision) == (work, kind, precision) and (
            sentences is None or counts.sentences == sentences
        ):
            return counts
    return None


def format_counts(rows: Sequence[WorkCounts]) -> str:
    """The text of counts.tsv, with the tokens per second calculated for the reference GPU."""
    names = [field.name for field in fields(WorkCounts)]
    lines = ["\t".join([*names, "calculated_a100_tokens_per_second"])]
    for row in rows:
        values = [*asdict(row).values(), round(predict(row).tokens_per_second)]
        lines.append("\t".join(map(str, values)))
    return "\n".join(lines) + "\n"
