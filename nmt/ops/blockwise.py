"""Attention on a CPU, block by block: scores become weights while they are in the cache.

A block is a few sentences, or a few heads of one, or a few queries of one head, small enough for
the cache. The derivative is written out by hand. Of short sentences it keeps the blocks; of long
ones nothing but its inputs, and makes the blocks again one by one, so that memory grows with the
length and not with its square.

Shapes: B batch, H heads, Q queries, K keys, D width, Dh = D / H, G matrices of a block.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nmt.ops.attention_call import AttentionCall, replayed_random_state, split_heads
from nmt.ops.dropout import dropout_factors
from nmt.ops.masking import InPlaceMask

# Elements of a block per thread: scores and rows of queries, keys, values, outputs. Measured:
# more falls out of the cache, less spends its time in calls. A map of many calls has a factor.
BLOCK_ELEMENTS = 800_000
# Queries of a block come in multiples of this, so that matrix products repeat their bits.
QUERY_STEP = 16
# Weights of up to this many keys are kept for the backward pass. Measured: beyond it another
# product costs little more than writing the weights to memory and reading them again.
MOST_KEYS_KEPT = 512


class Group(NamedTuple):
    """Matrices that are worked on at once, and the queries of each of their blocks."""

    sentences: slice
    heads: slice
    num_heads: int
    queries: list[slice]


def groups(shape: torch.Size, head_dim: int, block_factor: int) -> Iterator[Group]:
    """The groups of scores [B, H, Q, K]; each has one block, but for long sentences."""
    most = BLOCK_ELEMENTS * block_factor * torch.get_num_threads()
    batch, heads, queries, keys = shape
    elements = queries * keys + 2 * (queries + keys) * head_dim
    matrices = max(1, most // max(1, elements))
    sentences = max(1, matrices // heads)
    heads_at_once = heads if matrices >= heads else matrices
    step = max(1, queries)
    if elements > most:
        step = max(1, most // (keys + 2 * head_dim) // QUERY_STEP) * QUERY_STEP
    parts = [slice(first, min(first + step, queries)) for first in range(0, queries, step)]
    for first in range(0, batch, sentences):
        for head in range(0, heads, heads_at_once):
            some = slice(head, min(head + heads_at_once, heads))
            yield Group(slice(first, first + sentences), some, some.stop - some.start, parts)


def flat(x: Tensor, group: Group, queries: slice = slice(None)) -> Tensor:
    """A block of x [B, H, M, N] as matrices [G, M, N]."""
    return x[group.sentences, group.heads, queries].flatten(0, 1)


class Block(NamedTuple):
    """The queries of a group that are worked on at once."""

    group: Group
    queries: slice
    query: Tensor  # [G, Q, Dh]
    key: Tensor  # [G, K, Dh]
    value: Tensor  # [G, K, Dh]
    weights: Tensor  # [G, Q, K]
    factors: Tensor | None  # [G, Q, K], of dropout

    def dropped(self) -> Tensor:
        """The weights after dropout."""
        return self.weights if self.factors is None else self.weights * self.factors


def blocks(inputs: Sequence[Tensor], block_map: "BlockMap") -> Iterator[Block]:
    """The blocks of query, key and value, [B, H, T, Dh] each."""
    query, key, value = inputs
    call = block_map.call
    shape = torch.Size((*query.shape[:3], key.shape[2]))
    for group in groups(shape, query.shape[3], call.mapping.block_factor):
        k, v = flat(key, group), flat(value, group)
        for queries in group.queries:
            q = flat(query, group, queries)
            weights = block_map.weigh(q, k, group, queries)
            rate = call.dropout
            factors = dropout_factors(weights, rate) if rate > 0.0 else None
            yield Block(group, queries, q, k, v, weights, factors)


def attend_blockwise(
    inputs: Sequence[Tensor], block_map: "BlockMap", *, keep: bool
) -> tuple[Tensor, list[Block]]:
    """Concatenated heads [B, Q, D] for query, key and value [B, H, T, Dh]; the blocks to `keep`."""
    query, key, _ = inputs
    observer = block_map.call.observer
    batch, heads, queries, head_dim = query.shape
    observed = None
    if observer is not None:
        observed = query.new_empty(batch, heads, queries, key.shape[2])
    output = query.new_empty(batch, queries, heads, head_dim)
    places = output.transpose(1, 2)
    # Kept as they are: memory for all in one piece would be new, page by page, in every call.
    kept = []
    for block in blocks(inputs, block_map):
        if observed is not None:
            put(observed, block.group, block.queries, block.weights)
        if keep:
            kept.append(block)
        put(places, block.group, block.queries, torch.bmm(block.dropped(), block.value))
    if observer is not None and observed is not None:
        observer(observed)
    return output.flatten(2), kept


@dataclass(frozen=True)
class BlockMap:
    """The map from scores to weights, with what it takes for each block."""

    call: AttentionCall
    parameter: Tensor | None
    mask: InPlaceMask | None

    def weigh(self, query: Tensor, key: Tensor, group: Group, queries: slice) -> Tensor:
        """Weights [G, Q, K] of queries [G, Q, Dh] and keys [G, K, Dh]."""
        block = query.new_empty(*query.shape[:2], key.shape[1])
        set_product(block, query, key.transpose(1, 2), scale=self.call.scale)
        self.call.mapping.weights_(
            by_head(block, group),
            None if self.mask is None else self.mask.block(group.sentences, group.heads, queries),
            None if self.parameter is None else self.parameter[group.heads],
        )
        return block

    def backward_(self, weights: Tensor, gradient: Tensor, group: Group) -> Tensor | None:
        """Overwrite the weights' gradient by the scores'; returns the parameter's, [heads]."""
        return self.call.mapping.gradient_(
            by_head(weights, group),
            by_head(gradient, group),
            None if self.parameter is None else self.parameter[group.heads],
        )


def by_head(block: Tensor, group: Group) -> Tensor:
    """[sentences, heads, M, N] for matrices [G, M, N] of a group."""
    return block.view(-1, group.num_heads, *block.shape[1:])


def put(places: Tensor, group: Group, rows: slice, block: Tensor) -> None:
    """Copy matrices [G, M, N] to their places in [B, H, T, N]."""
    places[group.sentences, group.heads, rows].copy_(by_head(block, group))


class BlockwiseAttention(torch.autograd.Function):
    """`attend_blockwise` from packed projections, with its backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        call: AttentionCall,
        visible: Tensor | None,
        parameter: Tensor | None,
        *projections: Tensor,
    ) -> Tensor:
        inputs = split_heads(projections, call.heads)
        query, key, _ = inputs
        needed = any(ctx.needs_input_grad)
        keep = needed and key.shape[2] <= MOST_KEYS_KEPT
        replays = needed and not keep and call.dropout > 0.0
        ctx.random_state = torch.get_rng_state() if replays else None
        block_map = BlockMap(call, parameter, InPlaceMask.of(visible, query.dtype))
        output, kept = attend_blockwise(inputs, block_map, keep=keep)
        if needed:
            ctx.call = call
            ctx.shapes = [projection.shape for projection in projections]
            ctx.places = [block[:2] for block in kept]
            saved = [tensor for block in kept for tensor in block[2:]]
            ctx.save_for_backward(parameter, *(saved or [visible, *projections]))
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        call: AttentionCall = ctx.call
        parameter, *saved = ctx.saved_tensors
        grad_heads = (
            grad_outputs[0].view(*grad_outputs[0].shape[:2], call.heads, -1).transpose(1, 2)
        )
        results = [grad_heads.new_empty(shape) for shape in ctx.shapes]
        some: Iterable[Block]
        if ctx.places:
            # Hidden keys have weight 0 and so no gradient: the mask is needed no more.
            block_map = BlockMap(call, parameter, None)
            size = len(saved) // len(ctx.places)
            some = (
                Block(*place, *saved[size * index : size * (index + 1)])
                for index, place in enumerate(ctx.places)
            )
        else:
            visible, *projections = saved
            block_map = BlockMap(call, parameter, InPlaceMask.of(visible, grad_heads.dtype))
            some = blocks(split_heads(projections, call.heads), block_map)
        with replayed_random_state(ctx.random_state):
            grad_parameter = backward_blocks(
                some, grad_heads, block_map=block_map, results=split_heads(results, call.heads)
            )
        return None, None, grad_parameter, *results


def backward_blocks(
    some: Iterable[Block], grad_heads: Tensor, *, block_map: BlockMap, results: Sequence[Tensor]
) -> Tensor | None:
    """Write the gradients of query, key and value to results; returns that of the parameter.

    All are [B, H, T, Dh], as is `grad_heads`.
    """
    parameter, scale = block_map.parameter, block_map.call.scale
    grad_parameter = None if parameter is None else torch.zeros_like(parameter)
    grad_key = grad_value = grad_heads.new_empty(0)
    for block in some:
        group, queries, q, k, v, weights, factors = block
        more = queries.start > 0  # of a group that was begun
        if not more:
            grad_key, grad_value = k.new_empty(k.shape), v.new_empty(v.shape)
        out = flat(grad_heads, group, queries)
        grad_weights = torch.bmm(out, v.transpose(1, 2))
        if factors is not None:
            grad_weights.mul_(factors)
        set_product(grad_value, block.dropped().transpose(1, 2), out, more=more)
        found = block_map.backward_(weights, grad_weights, group)
        if grad_parameter is not None and found is not None:
            grad_parameter[group.heads] += found
        grad_query = q.new_empty(q.shape)
        set_product(grad_query, grad_weights, k, scale=scale)
        set_product(grad_key, grad_weights.transpose(1, 2), q, scale=scale, more=more)
        put(results[0], group, queries, grad_query)
        if queries == group.queries[-1]:
            put(results[1], group, slice(None), grad_key)
            put(results[2], group, slice(None), grad_value)
    return grad_parameter


def set_product(
    result: Tensor, left: Tensor, right: Tensor, *, scale: float = 1.0, more: bool = False
) -> None:
    """result = scale left @ right of matrices [G, M, N], or `more`: added to it."""
    torch.baddbmm(result, left, right, beta=float(more), alpha=scale, out=result)
