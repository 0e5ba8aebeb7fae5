"""Speed of the attention core, forward and backward, every kind against softmax.

The core is everything between the projections: scores, weights, dropout, the sum of the values,
and the kind's norm on the concatenated heads. Ours starts from the packed projection, as a layer
does, the references (plain softmax, torch's fused attention) from three separate projections.
"""

import gc
import json
import logging
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from nmt.bench.machine import Machine, describe_machine
from nmt.bench.timing import seconds
from nmt.config.config import AttentionConfig
from nmt.model.attention import AttentionCore
from nmt.model.attention_kinds import ATTENTION_KINDS

logger = logging.getLogger(__name__)

REFERENCES = ("plain softmax", "torch SDPA")
VARIANTS = {
    "entmax, alpha learned": AttentionConfig("entmax", alpha="learned"),
    "sparsemax, package": AttentionConfig("sparsemax", backend="package"),
    "entmax15, package": AttentionConfig("entmax15", backend="package"),
    "entmax, alpha learned, package": AttentionConfig("entmax", alpha="learned", backend="package"),
}
CASES = {kind: AttentionConfig(kind) for kind in ATTENTION_KINDS} | VARIANTS


@dataclass(frozen=True)
class Sizes:
    """What is measured."""

    tokens: int
    dim: int
    heads: int
    dropout: float
    mask: str  # none | padding | causal
    device: str
    repeats: int


@dataclass(frozen=True)
class Measurement:
    """The median time of one form at one length; speed 1 is that of the quicker reference."""

    form: str
    length: int
    milliseconds: float
    relative_speed: float


def measure_attention(sizes: Sizes, lengths: Sequence[int]) -> list[Measurement]:
    """Every form at every length, interleaved, so that a busy machine treats all alike."""
    results: list[Measurement] = []
    device = torch.device(sizes.device)
    for length in lengths:
        forms = make_forms(sizes, length)
        times: dict[str, list[float]] = {name: [] for name in forms}
        counts = {name: calls_needed(form, device) for name, form in forms.items()}
        for _ in range(sizes.repeats):
            gc.collect()  # between rounds, so that it seldom is within
            for name, form in forms.items():
                times[name].append(seconds(form, counts[name], device))
        medians = {name: statistics.median(found) for name, found in times.items()}
        best = min(medians[name] for name in REFERENCES)
        results.extend(
            Measurement(name, length, median * 1000.0, best / median)
            for name, median in medians.items()
        )
        logger.info("length %d done", length)
    return results


def calls_needed(form: Callable[[], None], device: torch.device) -> int:
    """How many calls make a measurement of about 30 ms; the first call warms up."""
    seconds(form, 1, device)
    return max(1, math.ceil(0.03 / seconds(form, 1, device)))


def make_forms(sizes: Sizes, length: int) -> dict[str, Callable[[], None]]:
    """A function for each form that runs it forward and backward once."""
    batch = max(1, sizes.tokens // length)
    generator = torch.Generator().manual_seed(1)
    projections = torch.randn(batch, length, 3 * sizes.dim, generator=generator).to(sizes.device)
    gradient = torch.randn(batch, length, sizes.dim, generator=generator).to(sizes.device)
    visible = make_mask(sizes, batch, length)
    separate = [part.contiguous().requires_grad_() for part in projections.chunk(3, dim=-1)]
    projections.requires_grad_()

    def run(attend: Callable[[], Tensor], inputs: Sequence[Tensor]) -> Callable[[], None]:
        def once() -> None:
            torch.autograd.grad(attend(), inputs, gradient)

        return once

    def split() -> list[Tensor]:
        shape = (batch, length, sizes.heads, -1)
        return [part.view(shape).transpose(1, 2) for part in separate]

    def plain() -> Tensor:
        query, key, value = split()
        scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-2, -1)
        if visible is not None:
            scores = scores.masked_fill(~visible, -torch.inf)
        weights = functional.dropout(scores.softmax(-1), sizes.dropout)
        heads: Tensor = weights @ value
        return heads.transpose(1, 2).flatten(2)

    def fused() -> Tensor:
        query, key, value = split()
        attended = functional.scaled_dot_product_attention(
            query, key, value, visible, sizes.dropout
        )
        return attended.transpose(1, 2).flatten(2)

    forms = {
        "plain softmax": run(plain, separate),
        "torch SDPA": run(fused, separate),
    }
    for name, case in CASES.items():
        core = AttentionCore(sizes.dim, sizes.heads, attention=case, dropout=sizes.dropout)
        core.to(sizes.device).train()
        inputs = [projections, *core.parameters()]
        forms[name] = run(lambda core=core: core((projections,), visible), inputs)  # type: ignore[misc]
    return forms


def make_mask(sizes: Sizes, batch: int, length: int) -> Tensor | None:
    """The mask of the benchmark: none, sentences of 3/4 to full length, or causal."""
    if sizes.mask == "none":
        return None
    if sizes.mask == "causal":
        return torch.ones(length, length, dtype=torch.bool, device=sizes.device).tril_()
    generator = torch.Generator().manual_seed(2)
    ends = torch.randint(3 * length // 4, length + 1, (batch, 1), generator=generator)
    return (torch.arange(length) < ends)[:, None, None, :].to(sizes.device)


def as_markdown(measurements: Sequence[Measurement]) -> str:
    """A table: a row a form, a column a length, speed relative to the quicker reference."""
    lengths = sorted({measurement.length for measurement in measurements})
    cells = {(m.form, m.length): m for m in measurements}
    lines = [
        "| form | " + " | ".join(f"T = {length}" for length in lengths) + " |",
        "|---|" + "---|" * len(lengths),
    ]
    for form in dict.fromkeys(measurement.form for measurement in measurements):
        row = [cells[form, length] for length in lengths]
        values = " | ".join(f"{m.relative_speed:.2f} ({m.milliseconds:.1f} ms)" for m in row)
        lines.append(f"| {form} | {values} |")
    return "\n".join(lines)


def as_json(sizes: Sizes, machine: Machine, measurements: Sequence[Measurement]) -> str:
    """Everything measured, with what it was measured on."""
    document = {
        "benchmark": "attention",
        "machine": asdict(machine),
        **asdict(sizes),
        "measurements": [asdict(measurement) for measurement in measurements],
    }
    return json.dumps(document, indent=2)


def run(sizes: Sizes, lengths: Sequence[int], json_path: Path | None) -> str:
    """Measure, write the JSON file if one is named, and return the Markdown table."""
    machine = describe_machine(torch.device(sizes.device))
    measurements = measure_attention(sizes, lengths)
    if json_path is not None:
        text = as_json(sizes, machine, measurements) + "\n"
        json_path.write_text(text, encoding="utf-8")
    return f"{machine}\n\n{as_markdown(measurements)}"
