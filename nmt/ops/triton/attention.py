"""Attention by the fused kernels: tensors in, tensors out, with tile sizes chosen by shape.

Shapes: B batch, H heads, Q queries, K keys, D width, Dh = D / H.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor

from nmt.ops.cuda_device import tf32_is_on
from nmt.ops.triton import attention_backward_kernels as backward_kernels
from nmt.ops.triton import attention_kernels, tiles
from nmt.ops.triton.mappings import ENTMAX, TOP_K
from nmt.ops.triton.numerics import RANDOM_LEVELS

MOST_REGISTERS = 248
MOST_HELD = 8  # tiles of 64 keys of a row that fit into the registers


@dataclass(frozen=True)
class FusedCall:
    """The arguments of the kernels besides the projections."""

    heads: int
    map: int  # as mappings.py numbers them
    scale: float
    dropout: float
    learned: bool  # whether the parameters have a gradient
    visible: Tensor | None  # boolean, broadcastable to [B, H, Q, K]
    causal: bool  # a query sees the keys up to its own position; `visible` is None then
    parameters: Tensor | None  # [H]; None: all heads have the fixed one
    fixed: float
    seed: Tensor | None  # [1] int64, of dropout


@dataclass(frozen=True)
class Tiles:
    """Queries and keys of a tile, and how a program runs."""

    queries: int
    keys: int
    held: int  # how many tiles of keys, all of them, stay in registers; 0: none
    num_warps: int
    num_stages: int
    # Registers of a thread at most. Without a limit the assembler takes fewer for the sake of
    # occupancy, and spills the rest.
    maxnreg: int | None = None

    def settings(self) -> dict[str, int]:
        """The arguments of a kernel."""
        return {
            "M": self.queries,
            "N": self.keys,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            **({} if self.maxnreg is None else {"maxnreg": self.maxnreg}),
        }


def split(projections: Sequence[Tensor], heads: int) -> list[Tensor]:
    """Query, key and value, views [B, H, T, Dh] of projections that hold them side by side."""
    width = sum(projection.shape[-1] for projection in projections) // 3
    parts = [part for one in projections for part in torch.split(one, width, dim=-1)]
    return [part.view(*part.shape[:2], heads, -1).transpose(1, 2) for part in parts]


def power_of_two(size: int) -> int:
    """The tile that holds `size` rows: 16 or a larger power of two."""
    return max(16, 1 << (size - 1).bit_length())


def state_numbers(mapping: int) -> int:
    """The numbers that describe a row of weights; 0 of a mapping of single scores."""
    if mapping == TOP_K.value:
        return 3
    return 2 if mapping <= ENTMAX.value else 0


# Tiles are as large as they can be without a spilled register on sm_80, 89, 90, 100 and 120, with a
# key mask, a causal one or none; tests/unit/ops/test_triton_builds.py holds that.
def forward_tiles(queries: int, keys: int, width: int, mapping: int) -> Tiles:
    """Tiles of the forward pass."""
    if state_numbers(mapping) == 0:
        cols = min(power_of_two(keys), 64)
        rows = min(power_of_two(queries), 32 if cols > 32 or width > 128 else 64)
        num_warps = 4 if rows * cols >= 2048 else 2
        return Tiles(rows, cols, 0, num_warps, 2 if keys > cols else 1, MOST_REGISTERS)
    cols = min(power_of_two(keys), 64)
    held = triton.cdiv(keys, cols)
    rows = min(power_of_two(queries), 32 if held <= 5 else 16)
    num_warps = 4 if rows * cols >= 2048 else 2
    if held > MOST_HELD:
        return Tiles(rows, 32, 0, num_warps, 2)
    if held == 1:
        return Tiles(rows, cols, held, num_warps, 1, MOST_REGISTERS)
    return Tiles(rows, cols, held, 8, 1, MOST_REGISTERS)


def backward_tiles(queries: int, keys: int, width: int, mapping: int) -> tuple[Tiles, Tiles | None]:
    """Tiles of the backward pass by queries and by keys; None: a whole head is one tile."""
    if queries <= 32 and keys <= 32:
        return Tiles(power_of_two(queries), power_of_two(keys), 1, 4, 1, MOST_REGISTERS), None
    by_keys = Tiles(min(power_of_two(queries), 64 if width <= 64 else 32), 32, 0, 4, 2)
    held = triton.cdiv(keys, 64)
    if state_numbers(mapping) == 0:
        by_keys = replace(by_keys, maxnreg=MOST_REGISTERS)
        return by_keys, by_keys
    if held > MOST_HELD:
        return by_keys, by_keys
    rows = min(power_of_two(queries), 32 if held <= 2 else 16)
    return Tiles(rows, 64, held, 8, 1), by_keys


def arguments(
    call: FusedCall, query: Tensor, key: Tensor, output: Tensor
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers and constants that all kernels take; all tensors are [B, H, T, Dh]."""
    batch, heads, queries, head_dim = query.shape
    assert all(tensor.stride(3) == 1 for tensor in (query, key, output))
    dropped = round(call.dropout * RANDOM_LEVELS)
    numbers: dict[str, float] = {
        f"{name}_{axis}": tensor.stride(place)
        for name, tensor in (("query", query), ("key", key), ("output", output))
        for place, axis in enumerate(("batch", "head", "step"))
    }
    numbers |= mask_strides(call, batch, queries, key.shape[2])
    numbers |= {"queries": queries, "keys": key.shape[2]}
    numbers |= {"scale": call.scale, "fixed": call.fixed}
    numbers |= {"least_kept": dropped, "keep_scale": RANDOM_LEVELS / (RANDOM_LEVELS - dropped)}
    constants = {
        "HEADS": heads,
        "DIM": head_dim,
        "WIDTH": power_of_two(head_dim),
        "MAP": call.map,
        "PER_HEAD": call.parameters is not None,
        "MASK_FORM": mask_form(call),
        "DROPPED": dropped > 0,
        "IEEE": query.dtype == torch.float32 and not tf32_is_on(),
        "FAST": query.dtype != torch.float32,
        "STATES": state_numbers(call.map),
    }
    return numbers, constants


def mask_form(call: FusedCall) -> int:
    """The layout of the mask, as the kernels number them."""
    if call.causal:
        assert call.visible is None
        return int(tiles.CAUSAL.value)
    if call.visible is None:
        return int(tiles.NO_MASK.value)
    per_key = all(size == 1 for size in call.visible.shape[-3:-1])
    return int((tiles.KEY_MASK if per_key else tiles.ANY_MASK).value)


def mask_strides(call: FusedCall, batch: int, queries: int, keys: int) -> dict[str, int]:
    """Distances of the mask's elements; 0 along a dimension that is broadcast."""
    names = ("mask_batch", "mask_head", "mask_query", "mask_key")
    if call.visible is None:
        return dict.fromkeys(names, 0)
    return dict(
        zip(names, call.visible.expand(batch, call.heads, queries, keys).stride(), strict=True)
    )


def extras(call: FusedCall, any_tensor: Tensor) -> list[Tensor]:
    """Mask, parameters and seed; some tensor stands in for what is absent and never read."""
    visible = None if call.visible is None else call.visible.view(torch.uint8)
    found = (visible, call.parameters, call.seed)
    return [any_tensor if one is None else one for one in found]


def make_state(query: Tensor, heads: int, queries: int, mapping: int) -> Tensor:
    """Room for the state [B, H, Q, numbers] of rows."""
    numbers = state_numbers(mapping)
    return query.new_empty(query.shape[0], heads, queries, numbers, dtype=torch.float32)


def attend(
    call: FusedCall, query: Tensor, key: Tensor, value: Tensor, *, first_slot: int | None = None
) -> tuple[Tensor, Tensor]:
    """Output [B, Q, D] of query [B, H, Q, Dh], key and value [B, H, K, Dh], which lie alike.

    Also the state of the rows of weights. With `first_slot` the queries are a part of projections
    that hold keys and values behind them; these are written to `key` and `value` from there on.
    """
    batch, heads, queries, head_dim = query.shape
    output = query.new_empty(batch, queries, heads, head_dim)
    state = make_state(query, heads, queries, call.map)
    numbers, constants = arguments(call, query, key, output.transpose(1, 2))
    chosen = forward_tiles(queries, key.shape[2], constants["WIDTH"], call.map)
    assert first_slot is None or queries <= chosen.queries
    blocks = triton.cdiv(queries, chosen.queries)
    attention_kernels.forward_kernel[(blocks * batch * heads,)](
        *(query, key, value, output, state),
        *extras(call, state),
        **numbers,
        **constants,
        **chosen.settings(),
        first_slot=first_slot or 0,
        TILES=chosen.held,
        APPENDED=first_slot is not None,
        LIMIT=torch.finfo(key.dtype).max,
    )
    return output.flatten(2), state


def attend_backward(
    call: FusedCall, projections: Sequence[Tensor], state: Tensor, grad_output: Tensor
) -> tuple[list[Tensor], Tensor | None]:
    """Gradients of the projections, and of the parameters [H] where they are learned."""
    assert projections[0].is_contiguous(), "the gradient of the query lies like the query"
    query, key, value = split(projections, call.heads)
    grads = [torch.empty_like(projection) for projection in projections]
    grad_query, grad_key, grad_value = split(grads, call.heads)
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    grad = grad_output.view(batch, queries, heads, -1).transpose(1, 2)
    numbers, constants = arguments(call, query, key, grad)
    by_queries, by_keys = backward_tiles(queries, keys, constants["WIDTH"], call.map)
    blocks = triton.cdiv(queries, by_queries.queries)
    grad_parameters = query.new_empty(batch, heads, blocks, dtype=torch.float32)
    inputs = (query, key, value, grad, state)
    settings = {**numbers, **constants}
    # Keys and values may be a part of a wider matrix, their gradients are not.
    apart = {"grad_batch": grad_key.stride(0), "grad_step": grad_key.stride(2)}
    if by_keys is None:
        backward_kernels.backward_short_kernel[(batch * heads,)](
            *inputs,
            *extras(call, state),
            *(grad_query, grad_key, grad_value, grad_parameters),
            **settings,
            **apart,
            **by_queries.settings(),
            LEARNED=call.learned,
        )
    else:
        mean = query.new_empty(batch, heads, queries, dtype=torch.float32)
        backward_kernels.backward_queries_kernel[(blocks * batch * heads,)](
            *inputs,
            mean,
            *extras(call, state),
            *(grad_query, grad_parameters),
            **settings,
            **by_queries.settings(),
            LEARNED=call.learned,
            TILES=by_queries.held,
        )
        key_blocks = triton.cdiv(keys, by_keys.keys)
        backward_kernels.backward_keys_kernel[(key_blocks * batch * heads,)](
            *inputs,
            mean,
            *extras(call, state),
            *(grad_key, grad_value),
            **settings,
            **apart,
            **by_keys.settings(),
        )
    return grads, grad_parameters.sum((0, 2)) if call.learned else None
