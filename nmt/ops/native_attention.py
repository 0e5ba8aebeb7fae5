"""Attention on a CPU by the kernels in C: the same function as in blockwise.py, in one call.

Shapes: B batch, H heads, Q queries, K keys, D width.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from nmt.ops.attention_call import AttentionCall, replayed_random_state
from nmt.ops.dropout import draw_bits
from nmt.ops.native.interface import RowMap
from nmt.ops.native.training import AttentionInput, attend, attend_backward

# Random bits of this many weights are drawn at once, and kept for the backward pass if that is all.
BITS_AT_ONCE = 1 << 24
TRAINED_MAPS = (RowMap.SOFTMAX, RowMap.SPARSEMAX, RowMap.ENTMAX15, RowMap.ENTMAX, RowMap.RELU)


@dataclass(frozen=True)
class RandomBits:
    """Some of the B H heads of sentences, with the bits for the dropout of their weights."""

    heads: slice
    bits: Tensor | None  # [heads, Q, K]; None: no dropout


def draw_parts(heads: int, queries: int, keys: int, rate: float) -> Iterator[RandomBits]:
    """All heads, in as many parts as it takes to hold the bits of one at a time."""
    if rate == 0.0:
        yield RandomBits(slice(0, heads), None)
        return
    step = max(1, BITS_AT_ONCE // max(1, queries * keys))
    for first in range(0, heads, step):
        some = slice(first, min(first + step, heads))
        yield RandomBits(some, draw_bits((some.stop - first) * queries * keys, torch.device("cpu")))


class NativeAttention(torch.autograd.Function):
    """Concatenated heads [B, Q, D] from packed projections, with their backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        call: AttentionCall,
        visible: Tensor | None,
        parameter: Tensor | None,
        *projections: Tensor,
    ) -> Tensor:
        first, last = projections[0], projections[-1]
        batch, queries, keys = first.shape[0], first.shape[1], last.shape[1]
        inputs = make_input(call, visible, parameter, projections)
        width = sum(projection.shape[-1] for projection in projections) // 3
        output = first.new_empty(batch, queries, width)
        observed = None
        if call.observer is not None:
            observed = first.new_empty(batch, call.heads, queries, keys)
        state = torch.get_rng_state() if call.dropout > 0.0 else None
        parts = []
        for part in draw_parts(batch * call.heads, queries, keys, call.dropout):
            attend(inputs, part.heads, part.bits, output=output, observed=observed)
            parts = [part] if part.heads.start == 0 else []
        if call.observer is not None and observed is not None:
            call.observer(observed)
        if any(ctx.needs_input_grad):
            ctx.call = call
            ctx.random_state = None if parts else state
            kept = parts[0].bits if parts else None
            ctx.save_for_backward(inputs.states, kept, visible, parameter, *inputs.projections)
        return output

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        call: AttentionCall = ctx.call
        states, bits, visible, parameter, *projections = ctx.saved_tensors
        inputs = make_input(call, visible, parameter, projections, states)
        batch, heads, queries, _ = states.shape
        grad_parameter = None if parameter is None else torch.zeros(batch, heads)
        results = [torch.empty_like(projection) for projection in projections]
        grad_output = grad_outputs[0].contiguous()
        with replayed_random_state(ctx.random_state):
            parts = iter([RandomBits(slice(0, batch * heads), bits)])
            if ctx.random_state is not None:
                parts = draw_parts(batch * heads, queries, projections[-1].shape[1], call.dropout)
            for part in parts:
                attend_backward(
                    inputs,
                    part.heads,
                    part.bits,
                    grad_output=grad_output,
                    gradients=results,
                    parameters=grad_parameter,
                )
        return None, None, None if grad_parameter is None else grad_parameter.sum(0), *results


def make_input(
    call: AttentionCall,
    visible: Tensor | None,
    parameter: Tensor | None,
    projections: tuple[Tensor, ...],
    states: Tensor | None = None,
) -> AttentionInput:
    """The input of the kernels; `states` is allocated unless a forward pass gives it."""
    first, keys = projections[0], projections[-1].shape[1]
    if visible is not None and (visible.shape[-1] != keys or visible.stride(-1) != 1):
        visible = visible.expand(*visible.shape[:-1], keys).contiguous()
    if states is None:
        states = first.new_empty(first.shape[0], call.heads, first.shape[1], 2)
    if parameter is None:
        parameters = fixed_parameters(call.heads, call.mapping.row_parameter)
    else:
        parameters = parameter.detach().float().contiguous()
    return AttentionInput(
        call,
        projections=[projection.contiguous() for projection in projections],
        visible=visible,
        parameters=parameters,
        states=states,
    )


@cache
def fixed_parameters(heads: int, value: float) -> Tensor:
    """The same parameter for all heads, [H], made once."""
    with torch.inference_mode(False):
        return torch.full((heads,), value)
