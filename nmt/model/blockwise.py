"""Attention on a CPU, block by block: scores become weights while they are in the cache.

A block is a few sentences (or a few heads of a long one), small enough for the second-level
cache. The derivative is written out by hand, so nothing is allocated or kept but the weights.

Shapes: B batch, H heads, Q queries, K keys, D width, Dh = D / H.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nmt.model.activations import ScoreMap
from nmt.model.dropout import dropout_factors
from nmt.model.masking import InPlaceMask

# Elements a block works on: scores, and rows of queries, keys, values, outputs. Measured: more
# falls out of the cache, less spends its time in calls.
BLOCK_ELEMENTS = 400_000


@dataclass(frozen=True)
class Settings:
    """What a call has besides tensors."""

    map: ScoreMap
    heads: int
    scale: float
    dropout: float
    observer: Callable[[Tensor], None] | None


def split_heads(projections: Sequence[Tensor], heads: int) -> list[Tensor]:
    """The parts of the projections, each a view [B, H, T, Dh].

    A projection [B, T, n D] holds n parts side by side; D is its share of all three parts.
    """
    width = sum(projection.shape[-1] for projection in projections) // 3
    parts: list[Tensor] = []
    for projection in projections:
        batch, length, total = projection.shape
        shape = (batch, length, total // width, heads, width // heads)
        parts.extend(projection.view(shape).permute(2, 0, 3, 1, 4).unbind(0))
    return parts


def blocks(shape: torch.Size, head_dim: int) -> Iterator[tuple[slice, slice]]:
    """(sentences, heads) of each block of scores [B, H, Q, K]."""
    batch, heads, queries, keys = shape
    elements = queries * keys + 2 * (queries + keys) * head_dim
    matrices = max(1, BLOCK_ELEMENTS // max(1, elements))
    sentences = max(1, matrices // heads)
    heads_at_once = heads if matrices >= heads else matrices
    for first in range(0, batch, sentences):
        for head in range(0, heads, heads_at_once):
            yield slice(first, first + sentences), slice(head, head + heads_at_once)


def flat(x: Tensor, batch: slice, heads: slice) -> Tensor:
    """A block of x [B, H, M, N] as contiguous matrices [G, M, N]."""
    return x[batch, heads].flatten(0, 1)


def attend_blockwise(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    visible: Tensor | None,
    parameter: Tensor | None,
    settings: Settings,
    keep: bool,
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """Concatenated heads [B, Q, D], and to `keep`: weights [B, H, Q, K], dropout of each block."""
    batch, heads, queries, head_dim = query.shape
    shape = torch.Size((batch, heads, queries, key.shape[2]))
    weights = query.new_empty(shape) if keep or settings.observer is not None else None
    output = query.new_empty(batch, queries, heads, head_dim)
    mask = InPlaceMask.of(visible, query.dtype)
    factors: list[Tensor] = []
    for rows, some in blocks(shape, head_dim):
        q, k, v = flat(query, rows, some), flat(key, rows, some), flat(value, rows, some)
        block = q.new_empty(len(q), *shape[2:]) if weights is None else flat(weights, rows, some)
        torch.baddbmm(block, q, k.transpose(1, 2), beta=0, alpha=settings.scale, out=block)
        settings.map.weights_(
            block.view(-1, q_heads(some, heads), *shape[2:]),
            None if mask is None else mask.block(rows, some),
            None if parameter is None else parameter[some],
        )
        if settings.dropout > 0.0:
            factors.append(dropout_factors(block, settings.dropout))
            block = block * factors[-1]
        result = torch.bmm(block, v).view(-1, q_heads(some, heads), queries, head_dim)
        output[rows, :, some].copy_(result.transpose(1, 2))
    if settings.observer is not None and weights is not None:
        settings.observer(weights)
    return output.flatten(2), weights, factors


def q_heads(some: slice, heads: int) -> int:
    """How many heads a block has."""
    return len(range(*some.indices(heads)))


class BlockwiseAttention(torch.autograd.Function):
    """`attend_blockwise` from packed projections, with its derivative."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: Settings,
        visible: Tensor | None,
        parameter: Tensor | None,
        *projections: Tensor,
    ) -> Tensor:
        query, key, value = split_heads(projections, settings.heads)
        keep = any(ctx.needs_input_grad)
        output, weights, factors = attend_blockwise(
            query,
            key,
            value,
            visible=visible,
            parameter=parameter,
            settings=settings,
            keep=keep,
        )
        if keep:
            ctx.settings = settings
            ctx.count = len(projections)
            ctx.save_for_backward(*projections, weights, parameter, *factors)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        settings: Settings = ctx.settings
        projections = ctx.saved_tensors[: ctx.count]
        weights, parameter, *factors = ctx.saved_tensors[ctx.count :]
        heads, scale = settings.heads, settings.scale
        results = [torch.empty_like(projection) for projection in projections]
        query, key, value = split_heads(projections, heads)
        targets = split_heads(results, heads)
        outer = gradients[0].view(*gradients[0].shape[:2], heads, -1).transpose(1, 2)
        parameter_gradient = None if parameter is None else torch.zeros_like(parameter)
        for number, (rows, some) in enumerate(blocks(weights.shape, query.shape[3])):
            q, k, v = flat(query, rows, some), flat(key, rows, some), flat(value, rows, some)
            block, out = flat(weights, rows, some), flat(outer, rows, some)
            inner = torch.bmm(out, v.transpose(1, 2))
            dropped = block
            if factors:
                inner.mul_(factors[number])
                dropped = block * factors[number]
            value_gradient = torch.bmm(dropped.transpose(1, 2), out)
            shape = (-1, q_heads(some, heads), *weights.shape[2:])
            found = settings.map.gradient_(
                block.view(shape),
                inner.view(shape),
                None if parameter is None else parameter[some],
            )
            if parameter_gradient is not None and found is not None:
                parameter_gradient[some] += found
            block_gradients = (
                torch.baddbmm(q, inner, k, beta=0, alpha=scale),
                torch.baddbmm(k, inner.transpose(1, 2), q, beta=0, alpha=scale),
                value_gradient,
            )
            for target, part in zip(targets, block_gradients, strict=True):
                place = target[rows, some]
                place.copy_(part.view(place.shape))
        return None, None, parameter_gradient, *results
