"""The speed of the attention core, forward and backward, for every kind and for softmax in torch.

The core is everything between the projections: scores, weights, dropout, the sum of the values,
and the kind's norm on the concatenated heads. Ours starts from the packed projection, as a layer
does; the references (plain softmax, torch's fused attention) start from three projections.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from nmt.bench.kinds import LEARNED_ENTMAX
from nmt.bench.machine import peak_memory
from nmt.bench.timing import Spread, measure_rounds, seconds
from nmt.config.attention_kinds import ATTENTION_KINDS
from nmt.config.config import AttentionConfig
from nmt.model.attention import AttentionCore

CASE_SECONDS = 0.03  # a case repeats its call until it takes about this long
REFERENCES = ("plain softmax", "torch SDPA")
VARIANTS = {
    LEARNED_ENTMAX: AttentionConfig("entmax", alpha="learned"),
    "sparsemax, package": AttentionConfig("sparsemax", backend="package"),
    "entmax15, package": AttentionConfig("entmax15", backend="package"),
    f"{LEARNED_ENTMAX}, package": AttentionConfig("entmax", alpha="learned", backend="package"),
}


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes and settings of the measured attention."""

    tokens: int
    dim: int
    heads: int
    dropout: float
    mask: str  # none | padding | causal
    device: str
    repeats: int
    precision: str = "float32"  # of the projections; float32 or bfloat16


@dataclass(frozen=True)
class Measurement:
    """The time of one implementation at one length; the faster reference has speed 1.

    The memory is that of one forward and backward pass, on top of inputs and parameters.
    """

    form: str
    length: int
    milliseconds: float  # median
    relative_speed: float
    seconds: Spread
    peak_memory_bytes: int | None


def attention_cases() -> dict[str, AttentionConfig]:
    """The kinds of the table and their variants, by name."""
    return {kind: AttentionConfig(kind) for kind in ATTENTION_KINDS} | VARIANTS


def measure_attention(
    sizes: AttentionSizes, lengths: Sequence[int], cases: Mapping[str, AttentionConfig]
) -> Iterator[list[Measurement]]:
    """The references and all cases, length by length."""
    device = torch.device(sizes.device)
    for length in lengths:
        forms = make_forms(sizes, length, cases)
        peaks = [warm_up(form, device) for form in forms.values()]
        calls = [calls_needed(form, device) for form in forms.values()]
        times = measure_rounds(
            list(forms.values()), repeats=sizes.repeats, device=device, calls=calls
        )
        medians = dict(zip(forms, np.median(times, axis=1), strict=True))
        best = min(medians[name] for name in REFERENCES)
        yield [
            Measurement(
                name, length, float(median) * 1000.0, float(best / median), Spread.of(row), peak
            )
            for (name, median), row, peak in zip(medians.items(), times, peaks, strict=True)
        ]


def warm_up(form: Callable[[], None], device: torch.device) -> int | None:
    """Call a function twice; the memory that it takes."""
    form()
    with peak_memory(device) as peak:
        form()
    return peak.bytes


def calls_needed(form: Callable[[], None], device: torch.device) -> int:
    """How often to call a function in one case."""
    return max(1, math.ceil(CASE_SECONDS / seconds(form, device)))


def make_forms(
    sizes: AttentionSizes, length: int, cases: Mapping[str, AttentionConfig]
) -> dict[str, Callable[[], None]]:
    """By name a function that runs an implementation forward and backward once."""
    batch = max(1, sizes.tokens // length)
    generator = torch.Generator().manual_seed(1)
    place = (torch.device(sizes.device), getattr(torch, sizes.precision))
    projections = torch.randn(batch, length, 3 * sizes.dim, generator=generator).to(*place)
    random = torch.randn(batch, length, sizes.dim, generator=generator).to(sizes.device)
    gradients = {dtype: random.to(dtype) for dtype in (torch.float32, place[1])}
    visible = make_mask(sizes, batch, length)
    separate = [part.contiguous().requires_grad_() for part in projections.chunk(3, dim=-1)]
    projections.requires_grad_()

    def run(attend: Callable[[], Tensor], inputs: Sequence[Tensor]) -> Callable[[], None]:
        def once() -> None:
            output = attend()
            torch.autograd.grad(output, inputs, gradients[output.dtype])

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

    forms = {"plain softmax": run(plain, separate), "torch SDPA": run(fused, separate)}
    for name, case in cases.items():
        core = AttentionCore(sizes.dim, sizes.heads, attention=case, dropout=sizes.dropout)
        core.to(sizes.device).train()
        inputs = [projections, *core.parameters()]
        forms[name] = run(lambda core=core: core((projections,), visible), inputs)  # type: ignore[misc]
    return forms


def make_mask(sizes: AttentionSizes, batch: int, length: int) -> Tensor | None:
    """No mask, the padding of sentences of 3/4 to full length, or a causal mask."""
    if sizes.mask == "none":
        return None
    if sizes.mask == "causal":
        return torch.ones(length, length, dtype=torch.bool, device=sizes.device).tril_()
    generator = torch.Generator().manual_seed(2)
    ends = torch.randint(3 * length // 4, length + 1, (batch, 1), generator=generator)
    return (torch.arange(length) < ends)[:, None, None, :].to(sizes.device)
