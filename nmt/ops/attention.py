"""Attention from projections to concatenated heads, for every mapping of scores to weights.

Shapes: B batch, H heads, Q queries, K keys, D width, Dh = D / H.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from nmt.ops import cuda_attention
from nmt.ops.attention_call import AttentionCall, Past, split_heads
from nmt.ops.backend import Call, Implementation, Operation
from nmt.ops.blockwise import BlockwiseAttention
from nmt.ops.dropout import dropout
from nmt.ops.half_product import HALF_PRECISION
from nmt.ops.kernels import native_refusal
from nmt.ops.masking import InPlaceMask
from nmt.ops.native_attention import TRAINED_MAPS, NativeAttention
from nmt.ops.score_mappings import Softmax

WHOLE = slice(None)
# From this many keys on torch's fused attention is faster than blocks on a CPU, as measured.
FUSED_KEYS_ON_CPU = 256
# Up to this many keys our kernels hold a row of scores in one tile, and need no bias for a mask.
FEW_KEYS_ON_GPU = 128

Projections = tuple[Tensor, ...]
Parameters = tuple[Tensor, ...]


def attend(
    call: AttentionCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None,
    parameters: Parameters,
) -> Tensor:
    """[B, Q, D] for query [B, H, Q, Dh], key and value [B, H, K, Dh]: the definition."""
    scores = score(query, key, call.scale)
    with torch.autocast(scores.device.type, enabled=False):
        weights = call.mapping.weights(scores, visible, *parameters)
    if call.observer is not None:
        call.observer(weights.detach())
    if call.dropout > 0.0:
        weights = dropout(weights, call.dropout)
    if value.dtype == torch.float16:
        weights = weights.clamp(max=torch.finfo(torch.float16).max)
    heads = weights.to(value.dtype) @ value
    return heads.transpose(1, 2).flatten(2)


def score(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """Scores [B, H, Q, K], in float32 or more.

    On a GPU the product itself is in float32, as in the fused kernels: a score that is rounded to
    half precision first can end up on the other side of a threshold.
    """
    if query.is_cuda and query.dtype in HALF_PRECISION:
        with torch.autocast("cuda", enabled=False):
            return (query.float() * scale) @ key.float().transpose(-2, -1)
    scores = (query * scale) @ key.transpose(-2, -1)
    if scores.dtype in HALF_PRECISION:
        # A product beyond float16's range counts as its limit: softmax of inf would be NaN.
        limit = torch.finfo(scores.dtype).max
        scores = scores.float().clamp(-limit, limit)
    return scores


def attention_reference(
    call: AttentionCall, projections: Projections, visible: Tensor | None, parameters: Parameters
) -> Tensor:
    """[B, Q, D] for projections that hold query, key and value side by side.

    That is (query_key_value [B, T, 3 D],) or (query [B, Q, D], key_value [B, K, 2 D]). `visible` is
    broadcastable to [B, H, Q, K]; the learned parameters of the heads are [H] each.
    """
    query, key, value = split_heads(projections, call.heads)
    return attend(call, query, key, value, visible, parameters)


def attention_fused(
    call: AttentionCall, projections: Projections, visible: Tensor | None, _parameters: Parameters
) -> Tensor:
    """Softmax by torch's kernel; rows without a visible key come out as 0."""
    query, key, value = split_heads(projections, call.heads)
    causal = call.causal and query.is_cuda  # without a mask there are faster kernels on a GPU
    heads = functional.scaled_dot_product_attention(
        query, key, value, None if causal else visible, call.dropout, causal
    )
    return heads.transpose(1, 2).flatten(2)


def handwritten(
    function: type[BlockwiseAttention | NativeAttention],
) -> Callable[[AttentionCall, Projections, Tensor | None, Parameters], Tensor]:
    """Attention by a function with a handwritten backward pass."""

    def attention(
        call: AttentionCall, projections: Projections, visible: Tensor | None, learned: Parameters
    ) -> Tensor:
        parameter = learned[0] if learned else None
        result: Tensor = function.apply(call, visible, parameter, *projections)  # type: ignore[no-untyped-call]
        return result

    return attention


attention_native = handwritten(NativeAttention)
attention_blockwise = handwritten(BlockwiseAttention)


def refuses_native(call: AttentionCall, projections: Projections, *_rest: object) -> str | None:
    """Why the kernels cannot be taken, or None."""
    if call.mapping.row_map not in TRAINED_MAPS:
        return f"{call.mapping} has no forward and backward pass in C"
    return native_refusal(*projections)


def too_few_heads(call: AttentionCall, projections: Projections, *_rest: object) -> str | None:
    """The kernels share out heads of sentences to threads; None: there are enough."""
    if torch.compiler.is_compiling():
        return "torch.compile cannot see into C"
    enough = projections[0].shape[0] * call.heads >= torch.get_num_threads()
    return None if enough else "there are more threads than heads of sentences"


def refuses_fused(call: AttentionCall, *_rest: object) -> str | None:
    """Why torch's fused attention cannot be taken, or None."""
    if not call.mapping.is_softmax:
        return f"expected softmax, got {call.mapping}"
    return None if call.observer is None else "it never shows its weights to an observer"


def slower_fused(call: AttentionCall, projections: Projections, *_rest: object) -> str | None:
    """Why another implementation is better than torch's fused attention, or None."""
    if projections[0].is_cuda:
        return None
    if torch.compiler.is_compiling():
        return "on a CPU a compiled model has its own"
    if not call.training:
        return "on a CPU its bits depend on padding, which those of translations must not"
    if call.dropout > 0.0:
        return "on a CPU it is slow with dropout"
    few = projections[-1].shape[1] < FUSED_KEYS_ON_CPU
    return f"on a CPU it is slower below {FUSED_KEYS_ON_CPU} keys" if few else None


def slower_triton(
    call: AttentionCall, projections: Projections, _visible: Tensor | None, _parameters: Parameters
) -> str | None:
    """Why torch's fused attention is better than ours, or None; by counted bytes and launches."""
    if not call.mapping.is_softmax:
        return None
    if torch.compiler.is_compiling():
        return "torch.compile makes the bias of scaled_dot_product_attention once for all layers"
    few = projections[-1].shape[1] <= FEW_KEYS_ON_GPU
    return None if few else f"scaled_dot_product_attention is for over {FEW_KEYS_ON_GPU} keys"


def refuses_in_place(call: AttentionCall, x: Tensor) -> str | None:
    """Why the mapping cannot overwrite scores in place here, or None."""
    if not call.mapping.in_place:
        return f"{call.mapping} has no handwritten backward pass"
    if not x.is_cpu or x.dtype not in (torch.float32, torch.float64):
        return f"expected float32 or float64 on a CPU, got {x.dtype} on {x.device}"
    if torch.compiler.is_compiling():
        return "torch.compile cannot trace it"
    return "autocast computes in half precision" if torch.is_autocast_enabled("cpu") else None


def attention_example(device: torch.device) -> Call:
    """Softmax of a sentence of 4 tokens in training."""
    call = AttentionCall(Softmax(), heads=2, scale=1.0, dropout=0.1, training=True)
    return (call, (torch.ones(1, 4, 24, device=device),), None, ()), {}


attention = Operation(
    "attention",
    attention_reference,
    [
        Implementation(
            "triton",
            "fused kernels in Triton",
            cuda_attention.attention,
            accepts=cuda_attention.refuses_attention,
            prefers=slower_triton,
        ),
        Implementation(
            "native", "C kernels", attention_native, accepts=refuses_native, prefers=too_few_heads
        ),
        Implementation(
            "torch",
            "scaled_dot_product_attention",
            attention_fused,
            accepts=refuses_fused,
            prefers=slower_fused,
        ),
        Implementation(
            "torch",
            "blockwise",
            attention_blockwise,
            accepts=lambda call, projections, *_rest: refuses_in_place(call, projections[0]),
        ),
    ],
    example=attention_example,
)


def cached_attention_reference(
    call: AttentionCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: InPlaceMask | None,
    parameters: Parameters,
) -> Tensor:
    """[B, Q, D] for queries [B, H, Q, Dh] and keys and values [B, H, K, Dh] projected before.

    The mask's `visible` is broadcastable to [B, H, Q, K].
    """
    visible = None if mask is None else mask.visible
    return attend(call, query, key, value, visible, parameters)


def cached_attention_in_place(
    call: AttentionCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: InPlaceMask | None,
    parameters: Parameters,
) -> Tensor:
    """Cached attention without gradients: few queries, so all scores fit into the cache."""
    batch, heads, queries, _ = query.shape
    key, value = key.flatten(0, 1), value.flatten(0, 1)
    scores = query.new_empty(batch * heads, queries, key.shape[1])
    torch.baddbmm(
        scores, query.flatten(0, 1), key.transpose(1, 2), beta=0, alpha=call.scale, out=scores
    )
    call.mapping.weights_(
        scores.view(batch, heads, queries, -1),
        None if mask is None else mask.block(WHOLE, WHOLE, WHOLE),
        parameters[0] if parameters else None,
    )
    result = torch.bmm(scores, value).view(batch, heads, queries, -1)
    return result.transpose(1, 2).flatten(2)


def refuses_cached_in_place(call: AttentionCall, query: Tensor, *_rest: object) -> str | None:
    """Why scores cannot be overwritten, or None."""
    if call.observer is not None:
        return "an observer wants to see the weights"
    if torch.is_grad_enabled() or call.dropout > 0.0:
        return "it has neither gradients nor dropout"
    return refuses_in_place(call, query)


def cached_attention_example(device: torch.device) -> Call:
    """Softmax of one query and 4 keys."""
    call = AttentionCall(Softmax(), heads=2, scale=1.0, dropout=0.0, training=False)
    tokens = torch.ones(1, 2, 4, 4, device=device)
    return (call, tokens[:, :, :1], tokens, tokens, None, ()), {}


cached_attention = Operation(
    "attention while decoding",
    cached_attention_reference,
    [
        Implementation(
            "triton",
            "fused kernel in Triton",
            lambda call, query, key, value, mask, parameters: cuda_attention.cached_attention(
                call, query, key, value, None if mask is None else mask.visible, parameters
            ),
            accepts=cuda_attention.refuses_cached_attention,
        ),
        Implementation(
            "torch", "in place", cached_attention_in_place, accepts=refuses_cached_in_place
        ),
    ],
    example=cached_attention_example,
    gradients=False,
)


def growing_attention_reference(
    call: AttentionCall, query_key_value: Tensor, past: Past, parameters: Parameters
) -> Tensor:
    """[B, W, D] for projections [B, W, 3 D] of a new position, whose keys and values join the past.

    Each of the W hypotheses attends to the slots of the past that its mask shows.
    """
    batch, width, total = query_key_value.shape
    shape = (batch, width, 3, call.heads, total // (3 * call.heads))
    parts = query_key_value.view(shape).permute(2, 0, 3, 1, 4)
    past.append(parts[1:])
    key, value = past.key_value.unbind(0)
    return cached_attention(call, parts[0], key, value, past.mask, parameters)


def growing_attention_example(device: torch.device) -> Call:
    """Softmax of one new position and three old ones."""
    call = AttentionCall(Softmax(), heads=2, scale=1.0, dropout=0.0, training=False)
    visible = torch.ones(1, 1, 1, 4, dtype=torch.bool, device=device)
    mask = InPlaceMask(visible, torch.float32, has_empty_rows=False)
    past = Past(torch.ones(2, 1, 2, 4, 4, device=device), 3, mask)
    return (call, torch.ones(1, 1, 24, device=device), past, ()), {}


growing_attention = Operation(
    "attention to a growing past",
    growing_attention_reference,
    [
        Implementation(
            "triton",
            "fused kernel in Triton",
            cuda_attention.growing_attention,
            accepts=cuda_attention.refuses_growing_attention,
        )
    ],
    example=growing_attention_example,
    gradients=False,
)
