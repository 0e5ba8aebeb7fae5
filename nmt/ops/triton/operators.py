"""The kernels as operators of torch, each with a fake implementation and a backward pass.

So they are traced by torch.compile, checked by `torch.library.opcheck` and run on fake tensors.
Shapes: B batch, H heads, Q queries, K keys, N rows, D width, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nmt.ops.triton import attention as fused
from nmt.ops.triton import rows


def make_call(
    visible: Tensor | None,
    parameters: Tensor | None,
    seed: Tensor | None,
    heads: int,
    mapping: int,
    scale: float,
    fixed: float,
    dropout: float,
    *,
    causal: bool = False,
    learned: bool = False,
) -> fused.FusedCall:
    """A call of the fused kernels, in the order of the operators' arguments."""
    return fused.FusedCall(
        heads=heads,
        map=mapping,
        scale=scale,
        dropout=dropout,
        learned=learned,
        visible=visible,
        causal=causal,
        parameters=parameters,
        fixed=fixed,
        seed=seed,
    )


@torch.library.custom_op("nmt::attention", mutates_args=())
def attention(
    projections: Sequence[Tensor],
    visible: Tensor | None,
    parameters: Tensor | None,
    seed: Tensor | None,
    heads: int,
    mapping: int,
    scale: float,
    fixed: float,
    dropout: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Output [B, Q, D] of projections, and the state of its rows of weights.

    `projections` hold query, key and value side by side: [B, T, 3 D], or [B, Q, D] and
    [B, K, 2 D]. `visible` is broadcastable to [B, H, Q, K]; it is None where a query sees the keys
    up to its own position (`causal`). `parameters` are [H], the `seed` of dropout is [1].
    """
    call = make_call(
        visible, parameters, seed, heads, mapping, scale, fixed, dropout, causal=causal
    )
    return fused.attend(call, *fused.split(projections, heads))


@attention.register_fake
def _(  # type: ignore[no-untyped-def]
    projections, visible, parameters, seed, heads, mapping, scale, fixed, dropout, causal
):
    query = projections[0]
    batch, queries, _ = query.shape
    width = sum(projection.shape[-1] for projection in projections) // 3
    state = fused.make_state(query, heads, queries, mapping)
    return query.new_empty(batch, queries, width), state


@torch.library.custom_op("nmt::cached_attention", mutates_args=())
def cached_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: Tensor | None,
    parameters: Tensor | None,
    mapping: int,
    scale: float,
    fixed: float,
) -> Tensor:
    """[B, Q, D] for query [B, H, Q, Dh], key and value [B, H, K, Dh], without a backward pass."""
    heads = query.shape[1]
    call = make_call(visible, parameters, None, heads, mapping, scale, fixed, 0.0)
    return fused.attend(call, query, key, value)[0]


@cached_attention.register_fake
def _(query, key, value, visible, parameters, mapping, scale, fixed):  # type: ignore[no-untyped-def]
    return query.new_empty(query.shape[0], query.shape[2], query.shape[1] * query.shape[3])


@torch.library.custom_op("nmt::growing_attention", mutates_args=("past",))
def growing_attention(
    query_key_value: Tensor,
    past: Tensor,
    visible: Tensor | None,
    parameters: Tensor | None,
    first: int,
    heads: int,
    mapping: int,
    scale: float,
    fixed: float,
) -> Tensor:
    """[B, W, D] for projections [B, W, 3 D], without a backward pass.

    Their keys and values are written to the past [2, B, H, P, Dh] from slot `first` on, with
    finite numbers in place of others.
    """
    query = fused.split([query_key_value.contiguous()], heads)[0]
    call = make_call(visible, parameters, None, heads, mapping, scale, fixed, 0.0)
    return fused.attend(call, query, past[0], past[1], first_slot=first)[0]


@growing_attention.register_fake
def _(query_key_value, past, visible, parameters, first, heads, mapping, scale, fixed):  # type: ignore[no-untyped-def]
    batch, width, total = query_key_value.shape
    return query_key_value.new_empty(batch, width, total // 3)


@torch.library.custom_op("nmt::attention_backward", mutates_args=())
def attention_backward(
    grad_output: Tensor,
    projections: Sequence[Tensor],
    state: Tensor,
    visible: Tensor | None,
    parameters: Tensor | None,
    seed: Tensor | None,
    heads: int,
    mapping: int,
    scale: float,
    fixed: float,
    dropout: float,
    causal: bool,
    learned: bool,
) -> list[Tensor]:
    """Gradients of the projections, and of the parameters [H] where they are learned."""
    call = make_call(
        *(visible, parameters, seed, heads, mapping, scale, fixed, dropout),
        causal=causal,
        learned=learned,
    )
    grads, grad_parameters = fused.attend_backward(call, projections, state, grad_output)
    return grads if grad_parameters is None else [*grads, grad_parameters]


@attention_backward.register_fake
def _(  # type: ignore[no-untyped-def]
    grad_output, projections, state, visible, parameters, seed, heads, mapping, scale,
    fixed, dropout, causal, learned,
):  # fmt: skip
    grads = [torch.empty_like(part) for part in projections]
    return [*grads, torch.empty_like(parameters)] if learned else grads


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    projections, visible, parameters, seed, *ctx.numbers = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1], visible, parameters, seed, *projections)
    ctx.mark_non_differentiable(output[1])


def _attention_gradients(ctx: Any, grad: Tensor, _grad_state: Tensor) -> tuple[Any, ...]:
    state, visible, parameters, seed, *projections = ctx.saved_tensors
    learned = ctx.needs_input_grad[2]
    grads = attention_backward(
        grad.contiguous(), projections, state, visible, parameters, seed, *ctx.numbers, learned
    )
    grad_parameters = grads.pop() if learned else None
    return (grads, None, grad_parameters, None, *([None] * 6))


attention.register_autograd(_attention_gradients, setup_context=_save_attention)


@torch.library.custom_op("nmt::gated_norm", mutates_args=())
def gated_norm(
    z: Tensor, gain: Tensor, gate: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor]:
    """sigmoid(gate z) gain z / rms(z) for z [N, D], and 1 / rms(z) [N]."""
    output, scale = rows.gated_norm(z, gain, gate, epsilon)
    return output, scale


@gated_norm.register_fake
def _(z, gain, gate, epsilon):  # type: ignore[no-untyped-def]
    return torch.empty_like(z), z.new_empty(z.shape[0], dtype=torch.float32)


@torch.library.custom_op("nmt::gated_norm_backward", mutates_args=())
def gated_norm_backward(
    grad: Tensor, z: Tensor, gain: Tensor, gate: Tensor | None, scale: Tensor
) -> list[Tensor]:
    """Gradients of z [N, D], and of gain and gate [2, PARTS, D], or of the gain alone [1, ...]."""
    return list(rows.gated_norm_backward(z, gain, gate, scale, grad))


@gated_norm_backward.register_fake
def _(grad, z, gain, gate, scale):  # type: ignore[no-untyped-def]
    learned = z.new_empty(1 if gate is None else 2, rows.PARTS, z.shape[1], dtype=torch.float32)
    return [torch.empty_like(z), learned]


def _save_gated_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    z, gain, gate, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(z, gain, gate, output[1])
    ctx.mark_non_differentiable(output[1])


def _gated_norm_gradients(ctx: Any, grad: Tensor, _grad_scale: Tensor) -> tuple[Any, ...]:
    z, gain, gate, scale = ctx.saved_tensors
    grad_z, parts = gated_norm_backward(grad.contiguous(), z, gain, gate, scale)
    learned = join_parts(parts, gain)
    return (grad_z, learned[0], None if gate is None else learned[1], None)


gated_norm.register_autograd(_gated_norm_gradients, setup_context=_save_gated_norm)


@torch.library.custom_op("nmt::add_norm", mutates_args=())
def add_norm(
    residual: Tensor,
    x: Tensor,
    gain: Tensor,
    bias: Tensor,
    x_bias: Tensor | None,
    seed: Tensor | None,
    dropout: float,
    epsilon: float,
) -> list[Tensor]:
    """LayerNorm(residual + dropout(x + x_bias)) for x [N, D], as `rows.AddNormResult`."""
    kept = None if seed is None else rows.RowDropout(dropout, seed)
    return list(rows.add_norm(residual, x, gain, bias, x_bias, kept, epsilon))


@add_norm.register_fake
def _(residual, x, gain, bias, x_bias, seed, dropout, epsilon):  # type: ignore[no-untyped-def]
    sums, output, rounded = rows.make_normed(residual, x)
    numbers = (x.new_empty(x.shape[0], dtype=torch.float32) for _ in range(2))
    return [output, rounded, sums, *numbers]


@torch.library.custom_op("nmt::add_norm_backward", mutates_args=())
def add_norm_backward(
    grad: Tensor | None,
    grad_rounded: Tensor | None,
    sums: Tensor,
    means: Tensor,
    scales: Tensor,
    gain: Tensor,
    seed: Tensor | None,
    dropout: float,
    dtype: torch.dtype,
    biased: bool,
) -> list[Tensor]:
    """Gradients of residual, x (in `dtype`), and of gain, bias and x_bias [3 or 2, PARTS, D]."""
    kept = None if seed is None else rows.RowDropout(dropout, seed)
    normed = rows.AddNormResult(sums, sums, sums, means, scales)
    grads = (grad, grad_rounded)
    return list(rows.add_norm_backward(normed, gain, kept, grads, dtype, biased=biased))


@add_norm_backward.register_fake
def _(  # type: ignore[no-untyped-def]
    grad, grad_rounded, sums, means, scales, gain, seed, dropout, dtype, biased
):
    grad_x = torch.empty_like(sums, dtype=dtype)
    learned = sums.new_empty(3 if biased else 2, rows.PARTS, sums.shape[1], dtype=torch.float32)
    return [torch.empty_like(sums), grad_x, learned]


def _save_add_norm(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    residual, x, gain, _, x_bias, seed, ctx.dropout, _ = inputs
    ctx.dtype, ctx.biased = x.dtype, x_bias is not None
    ctx.outputs = 1 if x.dtype == residual.dtype else 2
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[2:], gain, seed)


def _add_norm_gradients(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    grads = [None if grad is None else grad.contiguous() for grad in grads[: ctx.outputs]]
    exact, rounded = grads[0], grads[-1] if ctx.outputs == 2 else None
    grad_residual, grad_x, parts = add_norm_backward(
        exact, rounded, *ctx.saved_tensors, ctx.dropout, ctx.dtype, ctx.biased
    )
    learned = join_parts(parts, ctx.saved_tensors[-2])
    grad_x_bias = learned[2] if ctx.biased else None
    return (grad_residual, grad_x, learned[0], learned[1], grad_x_bias, None, None, None)


add_norm.register_autograd(_add_norm_gradients, setup_context=_save_add_norm)


@torch.library.custom_op("nmt::relu_backward", mutates_args=())
def relu_backward(grad: Tensor, output: Tensor) -> list[Tensor]:
    """The gradient [N, D] before a ReLU with this output, and its sums over rows [PARTS, D]."""
    return list(rows.relu_backward(grad, output))


@relu_backward.register_fake
def _(grad, output):  # type: ignore[no-untyped-def]
    return [torch.empty_like(grad), grad.new_empty(rows.PARTS, grad.shape[1], dtype=torch.float32)]


@torch.library.custom_op("nmt::sum_parts", mutates_args=())
def sum_parts(parts: Sequence[Tensor]) -> Tensor:
    """The sums [n, D] over the rows of n matrices [PARTS, D]."""
    return rows.sum_parts(parts)


@sum_parts.register_fake
def _(parts):  # type: ignore[no-untyped-def]
    return parts[0].new_empty(len(parts), parts[0].shape[1])


def join_parts(parts: Tensor, vector: Tensor) -> Tensor:
    """Gradients [..., PARTS, D] of vectors that are views of shared ones; else their sums."""
    return parts if vector.dim() == 2 else parts.sum(-2).to(vector.dtype)


@torch.library.custom_op("nmt::entmax_rows", mutates_args=())
def entmax_rows(scores: Tensor, beta: Tensor, mapping: int) -> Tensor:
    """Weights of scores [B, H, Q, K] with -inf at hidden keys; beta [H] = alpha - 1."""
    return rows.entmax(scores, beta, mapping)


@entmax_rows.register_fake
def _(scores, beta, mapping):  # type: ignore[no-untyped-def]
    return torch.empty_like(scores)


@torch.library.custom_op("nmt::entmax_rows_backward", mutates_args=())
def entmax_rows_backward(
    grad: Tensor, weights: Tensor, beta: Tensor, learned: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of the scores and of beta (zeros unless it is learned)."""
    found, grad_beta = rows.entmax_backward(weights, beta, grad, learned=learned)
    return found, torch.zeros_like(beta) if grad_beta is None else grad_beta


@entmax_rows_backward.register_fake
def _(grad, weights, beta, learned):  # type: ignore[no-untyped-def]
    return torch.empty_like(weights), torch.empty_like(beta)


def _save_entmax(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, inputs[1])


def _entmax_gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    learned = ctx.needs_input_grad[1]
    found, grad_beta = entmax_rows_backward(grad.contiguous(), *ctx.saved_tensors, learned)
    return found, grad_beta if learned else None, None


entmax_rows.register_autograd(_entmax_gradients, setup_context=_save_entmax)


@torch.library.custom_op("nmt::cross_entropy_", mutates_args=("logits", "losses"))
def cross_entropy_(
    logits: Tensor,
    gold: Tensor,
    losses: Tensor,
    smoothing: float,
    factor: float,
    needs_gradient: bool,
) -> None:
    """Write smoothed losses and negative log-likelihoods of logits [N, V] to `losses` [2, N].

    With `needs_gradient` the logits are overwritten by their gradient times `factor`.
    """
    rows.cross_entropy_(
        logits, gold, losses, smoothing=smoothing, factor=factor, needs_gradient=needs_gradient
    )


@cross_entropy_.register_fake
def _(logits, gold, losses, smoothing, factor, needs_gradient):  # type: ignore[no-untyped-def]
    return None
