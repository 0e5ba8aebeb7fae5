"""Fused attention in Triton, for CUDA devices.

Shapes: B batch, H heads, Q queries, K keys, D width.
"""

import torch
from torch import Tensor

from nmt.ops.attention_call import AttentionCall, Past, split_heads
from nmt.ops.cuda import triton_refusal
from nmt.ops.seeds import draw_seed

LARGEST_HEAD = 128  # beyond it, a tile of keys and values does not fit into the registers
MOST_HYPOTHESES = 16  # whose keys and values one program appends to the past of a head
MOST_WEIGHTS = 1 << 31  # per head: dropout numbers them with 32 bits


def mapping_refusal(call: AttentionCall, head_dim: int, queries: int, keys: int) -> str | None:
    """Why a call of attention has no fused kernel, or None."""
    if call.mapping.row_map is None:
        return f"{call.mapping} has no kernel in Triton"
    if call.observer is not None:
        return "it never shows its weights to an observer"
    if head_dim > LARGEST_HEAD:
        return f"expected heads of width {LARGEST_HEAD} at most, got {head_dim}"
    return None if queries * keys < MOST_WEIGHTS else "there are too many weights of a head"


def refuses_attention(
    call: AttentionCall, projections: tuple[Tensor, ...], *_rest: object
) -> str | None:
    """Why fused attention cannot be taken, or None."""
    width = sum(projection.shape[-1] for projection in projections) // (3 * call.heads)
    queries, keys = projections[0].shape[1], projections[-1].shape[1]
    return mapping_refusal(call, width, queries, keys) or triton_refusal(*projections)


def row_map_number(call: AttentionCall) -> int:
    """The mapping as the kernels number it."""
    assert call.mapping.row_map is not None
    return int(call.mapping.row_map)


def attention(
    call: AttentionCall,
    projections: tuple[Tensor, ...],
    visible: Tensor | None,
    parameters: tuple[Tensor, ...],
) -> Tensor:
    """[B, Q, D]: no scores or weights in memory, forward or backward."""
    from nmt.ops.triton import operators

    query, *rest = projections  # keys and values may be a part of a wider matrix
    output: Tensor = operators.attention(
        [query.contiguous(), *(one if one.stride(-1) == 1 else one.contiguous() for one in rest)],
        None if call.causal else visible,
        parameters[0].float() if parameters else None,
        draw_seed(call.dropout, projections[0].device),
        call.heads,
        row_map_number(call),
        call.scale,
        call.mapping.row_parameter,
        call.dropout,
        call.causal,
    )[0]
    return output


def refuses_cached_attention(
    call: AttentionCall, query: Tensor, key: Tensor, value: Tensor, *_rest: object
) -> str | None:
    """Why fused attention cannot be taken while decoding, or None."""
    if torch.is_grad_enabled() or call.dropout > 0.0:
        return "while decoding it has neither gradients nor dropout"
    if key.stride() != value.stride():
        return "expected keys and values that lie alike"
    refusal = mapping_refusal(call, query.shape[3], query.shape[2], key.shape[2])
    return refusal or triton_refusal(query, key, value)


def cached_attention(
    call: AttentionCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None,
    parameters: tuple[Tensor, ...],
) -> Tensor:
    """[B, Q, D] in one launch."""
    from nmt.ops.triton import operators

    output: Tensor = operators.cached_attention(
        query,
        key,
        value,
        visible,
        parameters[0].float() if parameters else None,
        row_map_number(call),
        call.scale,
        call.mapping.row_parameter,
    )
    return output


def refuses_growing_attention(
    call: AttentionCall, query_key_value: Tensor, past: Past, *_rest: object
) -> str | None:
    """Why fused attention cannot append to the past, or None."""
    width = query_key_value.shape[1]
    if width > MOST_HYPOTHESES:
        return f"expected at most {MOST_HYPOTHESES} hypotheses, got {width}"
    if query_key_value.dtype != past.key_value.dtype:
        return f"expected one type, got {query_key_value.dtype} and {past.key_value.dtype}"
    query = split_heads((query_key_value,), call.heads)[0]
    return refuses_cached_attention(call, query, *past.key_value.unbind(0))


def growing_attention(
    call: AttentionCall, query_key_value: Tensor, past: Past, parameters: tuple[Tensor, ...]
) -> Tensor:
    """[B, W, D] in one launch, which also writes the new keys and values to the past."""
    from nmt.ops.triton import operators

    output: Tensor = operators.growing_attention(
        query_key_value,
        past.key_value,
        past.mask.visible,
        parameters[0].float() if parameters else None,
        past.first,
        call.heads,
        row_map_number(call),
        call.scale,
        call.mapping.row_parameter,
    )
    return output
