"""Attention on a CPU by the kernels in C: the same function as in blockwise.py, in one call.

Shapes: B batch, H heads, Q queries, K keys, D width.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nmt.model.blockwise import Settings, drawing_again
from nmt.model.dropout import draw_bits, keep_scale, least_kept
from nmt.native.interface import RowMap
from nmt.native.training import AttentionInput, attend, attend_backward, kernels_suit

# Random bits of so many weights are drawn at once, and kept for the derivative if that is all.
DRAWS_AT_ONCE = 1 << 24
MAPS = (RowMap.SOFTMAX, RowMap.SPARSEMAX, RowMap.ENTMAX15, RowMap.ENTMAX, RowMap.RELU)


def goes_natively(settings: Settings, *projections: Tensor) -> bool:
    """Whether the kernels can and should be taken: they share out heads of sentences to threads."""
    found = settings.map.row_map()
    enough = projections[0].shape[0] * settings.heads >= torch.get_num_threads()
    return enough and found is not None and found[0] in MAPS and kernels_suit(*projections)


@dataclass(frozen=True)
class Drawn:
    """Some of the B H heads of sentences, with the bits for the dropout of their weights."""

    heads: slice
    draws: Tensor | None  # [heads, Q, K]


def draw(heads: int, queries: int, keys: int, rate: float) -> Iterator[Drawn]:
    """All heads, in as many parts as it takes to hold the bits of one at a time."""
    if rate == 0.0:
        yield Drawn(slice(0, heads), None)
        return
    step = max(1, DRAWS_AT_ONCE // max(1, queries * keys))
    for first in range(0, heads, step):
        some = slice(first, min(first + step, heads))
        yield Drawn(some, draw_bits((some.stop - first) * queries * keys, torch.device("cpu")))


class NativeAttention(torch.autograd.Function):
    """Concatenated heads [B, Q, D] from packed projections, with their derivative."""

    @staticmethod
    def forward(
        ctx: Any,
        settings: Settings,
        visible: Tensor | None,
        parameter: Tensor | None,
        *projections: Tensor,
    ) -> Tensor:
        first, last = projections[0], projections[-1]
        batch, queries, keys = first.shape[0], first.shape[1], last.shape[1]
        inputs = make_input(settings, visible, parameter, projections)
        width = sum(projection.shape[-1] for projection in projections) // 3
        output = first.new_empty(batch, queries, width)
        observed = None
        if settings.observer is not None:
            observed = first.new_empty(batch, settings.heads, queries, keys)
        state = torch.get_rng_state() if settings.dropout > 0.0 else None
        parts = []
        for part in draw(batch * settings.heads, queries, keys, settings.dropout):
            attend(inputs, part.heads, part.draws, output=output, observed=observed)
            parts = [part] if part.heads.start == 0 else []
        if settings.observer is not None and observed is not None:
            settings.observer(observed)
        if any(ctx.needs_input_grad):
            ctx.settings = settings
            ctx.random_state = None if parts else state
            kept = parts[0].draws if parts else None
            ctx.save_for_backward(inputs.states, kept, visible, parameter, *inputs.projections)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        settings: Settings = ctx.settings
        states, draws, visible, parameter, *projections = ctx.saved_tensors
        inputs = make_input(settings, visible, parameter, projections, states)
        batch, heads, queries, _ = states.shape
        found = None if parameter is None else torch.zeros(batch, heads)
        results = [torch.empty_like(projection) for projection in projections]
        outer = gradients[0].contiguous()
        with drawing_again(ctx.random_state):
            parts = iter([Drawn(slice(0, batch * heads), draws)])
            if ctx.random_state is not None:
                parts = draw(batch * heads, queries, projections[-1].shape[1], settings.dropout)
            for part in parts:
                attend_backward(
                    inputs,
                    part.heads,
                    part.draws,
                    outer=outer,
                    gradients=results,
                    parameters=found,
                )
        return None, None, None if found is None else found.sum(0), *results


def make_input(
    settings: Settings,
    visible: Tensor | None,
    parameter: Tensor | None,
    projections: tuple[Tensor, ...],
    states: Tensor | None = None,
) -> AttentionInput:
    """What the kernels take; without the states of a forward pass there is room for them."""
    found = settings.map.row_map()
    assert found is not None
    row_map, fixed = found
    first, keys = projections[0], projections[-1].shape[1]
    if visible is not None and (visible.shape[-1] != keys or visible.stride(-1) != 1):
        visible = visible.expand(*visible.shape[:-1], keys).contiguous()
    if states is None:
        states = first.new_empty(first.shape[0], settings.heads, first.shape[1], 2)
    if parameter is None:
        assert isinstance(fixed, float)
        parameter = first.new_full((settings.heads,), fixed)
    return AttentionInput(
        projections=[projection.contiguous() for projection in projections],
        heads=settings.heads,
        visible=visible,
        map=row_map,
        parameters=parameter.detach().float().contiguous(),
        scale=settings.scale,
        least_kept=least_kept(settings.dropout),
        keep_scale=keep_scale(settings.dropout),
        states=states,
    )
