"""Multi-head attention of any kind, with itself or with a memory.

Shapes: B batch, H heads, Q queries, K keys, D width, Dh = D / H.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from nmt.config.attention_kinds import HeadParameter
from nmt.config.config import AttentionConfig, ModelConfig
from nmt.model.dropout import Dropout
from nmt.model.linear import Linear
from nmt.model.norms import HeadNorm
from nmt.ops.attention import attention, cached_attention, growing_attention
from nmt.ops.attention_call import AttentionCall, Past
from nmt.ops.half_linear import LastLayer, SublayerOutput, end_sublayer, leaves_layer
from nmt.ops.masking import InPlaceMask


@dataclass(frozen=True)
class Site:
    """One attention sublayer of a model; layers count from 0."""

    type: Literal["encoder_self", "decoder_self", "cross"]
    layer: int


class KeyValue(NamedTuple):
    """Key and value that queries attend to, both [B, H, K, Dh]."""

    key: Tensor
    value: Tensor


class HeadParameters(nn.Module):
    """The learned parameters of a sublayer's heads, as the row of its attention kind lists them."""

    def __init__(self, parameters: Sequence[HeadParameter], heads: int) -> None:
        super().__init__()
        self.described = tuple(parameters)
        self.held: tuple[Tensor, ...] | None = None  # values, computed for the current pass
        for described in self.described:
            self.register_parameter(described.name, nn.Parameter(torch.empty(heads)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the parameters as the row of the attention kind says."""
        with torch.no_grad():
            for described in self.described:
                described.initialize(self.get_parameter(described.name))

    def values(self) -> tuple[Tensor, ...]:
        """The parameters of the score mapping, [H] each."""
        if self.held is not None:
            return self.held
        return tuple(
            described.value(self._parameters[described.name])  # type: ignore[arg-type]
            for described in self.described
        )

    def report(self) -> dict[str, Tensor]:
        """The values that metrics and analysis show, [H] each, by reported name."""
        return {
            described.reported_as: described.report(self.get_parameter(described.name).detach())
            for described in self.described
        }


HeadValues = Mapping[HeadParameters, tuple[Tensor, ...]]


def head_values(sublayers: Sequence[HeadParameters]) -> HeadValues:
    """The values of the parameters of sublayers that have one; those of a kind in one go."""
    groups: dict[HeadParameter, list[HeadParameters]] = {}
    for one in sublayers:
        if len(one.described) == 1:
            groups.setdefault(one.described[0], []).append(one)
    found = {}
    for described, group in groups.items():
        raw = torch.stack([one.get_parameter(described.name) for one in group])
        for one, value in zip(group, described.value(raw).unbind(0), strict=True):
            found[one] = (value,)
    return found


@contextmanager
def holding(values: HeadValues) -> Iterator[None]:
    """A context in which sublayers have these values of their parameters, computed before."""
    try:
        for one, value in values.items():
            one.held = value
        yield
    finally:
        for one in values:
            one.held = None


class AttentionCore(nn.Module):
    """From projections to the concatenated, normed heads; everything in which kinds differ."""

    def __init__(self, dim: int, heads: int, *, attention: AttentionConfig, dropout: float) -> None:
        super().__init__()
        kind, options = attention.row, attention.values
        self.kind = kind
        self.heads = heads
        self.scale = 1.0 / math.sqrt(dim // heads)
        self.mapping = kind.mapping(options)
        self.weights = HeadParameters(kind.parameters(options), heads)
        self.norm = None if kind.norm is None else HeadNorm(dim, kind.norm(options))
        self.dropout = Dropout(dropout)
        self.observer: Callable[[Tensor, Tensor], None] | None = None

    @classmethod
    def of(cls, config: ModelConfig, attention: AttentionConfig) -> Self:
        """The core of a sublayer of a model."""
        rate = config.attention_dropout
        return cls(config.dim, config.heads, attention=attention, dropout=rate)

    def forward(
        self, projections: tuple[Tensor, ...], visible: Tensor | None, *, causal: bool = False
    ) -> Tensor:
        """[B, Q, D] for projections that hold query, key and value side by side.

        That is (query_key_value [B, T, 3 D],) or (query [B, Q, D], key_value [B, K, 2 D]).
        visible is broadcastable to [B, H, Q, K].
        """
        call = self.call(visible, causal=causal)
        return self.finish(attention(call, projections, visible, self.weights.values()))

    def attend_past(self, query_key_value: Tensor, past: Past) -> Tensor:
        """[B, W, D] for projections [B, W, 3 D] of a new position, which join the past.

        `end` norms the heads.
        """
        call = self.call(past.mask.visible)
        return growing_attention(call, query_key_value, past, self.weights.values())

    def attend(self, query: Tensor, memory: KeyValue, mask: InPlaceMask | None) -> Tensor:
        """[B, Q, D] for queries [B, H, Q, Dh] and a memory projected before: while decoding.

        The mask's `visible` is broadcastable to [B, H, Q, K]. `end` norms the heads.
        """
        call = self.call(None if mask is None else mask.visible)
        return cached_attention(call, query, memory.key, memory.value, mask, self.weights.values())

    def end(self, layer: nn.Module, concatenated: Tensor) -> SublayerOutput:
        """The end of a sublayer while decoding: the kind's norm and the last layer."""
        if self.training or not leaves_layer(layer, concatenated):
            return end_sublayer(layer, self.finish(concatenated))
        norm = None if self.norm is None else self.norm.arguments
        return SublayerOutput(concatenated, None, LastLayer(layer, norm))

    def call(self, visible: Tensor | None, *, causal: bool = False) -> AttentionCall:
        """The arguments of the attention operation that are not tensors."""
        return AttentionCall(
            mapping=self.mapping,
            heads=self.heads,
            scale=self.scale,
            dropout=self.dropout.active_rate,
            training=self.training,
            causal=causal,
            observer=None if self.observer is None else partial(self.show, visible),
        )

    def show(self, visible: Tensor | None, weights: Tensor) -> None:
        """Pass the attention weights to the observer."""
        assert self.observer is not None
        if visible is None:
            visible = torch.ones(1, dtype=torch.bool, device=weights.device)
        self.observer(weights, visible)

    def finish(self, concatenated: Tensor) -> Tensor:
        """[B, Q, D] after the kind's norm."""
        if self.norm is None:
            return concatenated
        result: Tensor = self.norm(concatenated)
        return result


class SelfAttention(nn.Module):
    """Attention of a sequence to itself: one projection for queries, keys and values."""

    def __init__(self, config: ModelConfig, attention: AttentionConfig) -> None:
        super().__init__()
        self.query_key_value = Linear(config.dim, 3 * config.dim)
        self.core = AttentionCore.of(config, attention)
        self.output = Linear(config.dim, config.dim)

    def scale_scores_(self, factor: float) -> None:
        """Multiply all scores, through the weights of the queries."""
        self.query_key_value.weight.detach()[: self.output.in_features].mul_(factor)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries [B, H, T, Dh], and keys and values [2, B, H, T, Dh], of x [B, T, D]."""
        batch, length, dim = x.shape
        shape = (batch, length, 3, self.core.heads, dim // self.core.heads)
        parts = self.query_key_value(x).view(shape).permute(2, 0, 3, 1, 4)
        return parts[0], parts[1:]

    def attend(self, query: Tensor, memory: KeyValue, mask: InPlaceMask | None) -> SublayerOutput:
        """[B, Q, D] for queries and a memory that are projected."""
        return self.core.end(self.output, self.core.attend(query, memory, mask))

    def attend_past(self, x: Tensor, past: Past) -> SublayerOutput:
        """[B, W, D] for the newest position x [B, W, D], which attends to all so far."""
        return self.core.end(self.output, self.core.attend_past(self.query_key_value(x), past))

    def forward(self, x: Tensor, visible: Tensor | None, *, causal: bool = False) -> SublayerOutput:
        """[B, T, D] for x [B, T, D]; `causal` says that `visible` hides only later positions."""
        projections = (self.query_key_value(x),)
        return end_sublayer(self.output, self.core(projections, visible, causal=causal))


class CrossAttention(nn.Module):
    """Attention of one sequence to another, whose keys and values can be projected beforehand."""

    def __init__(self, config: ModelConfig, attention: AttentionConfig) -> None:
        super().__init__()
        self.query = Linear(config.dim, config.dim)
        self.key_value = Linear(config.dim, 2 * config.dim)
        self.core = AttentionCore.of(config, attention)
        self.output = Linear(config.dim, config.dim)

    def scale_scores_(self, factor: float) -> None:
        """Multiply all scores, through the weights of the queries."""
        self.query.weight.detach().mul_(factor)

    def project(self, memory: Tensor) -> KeyValue:
        """Keys and values of memory [B, K, D], laid out for many small products."""
        batch, length, dim = memory.shape
        shape = (batch, length, 2, self.core.heads, dim // self.core.heads)
        parts = self.key_value(memory).view(shape).permute(2, 0, 3, 1, 4)
        return KeyValue(parts[0].contiguous(), parts[1].contiguous())

    def attend(self, x: Tensor, memory: KeyValue, mask: InPlaceMask | None) -> SublayerOutput:
        """[B, Q, D] for x [B, Q, D] and a memory that is projected."""
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, self.core.heads, -1).transpose(1, 2)
        return self.core.end(self.output, self.core.attend(query, memory, mask))

    def forward(self, x: Tensor, key_value: Tensor, visible: Tensor | None) -> SublayerOutput:
        """[B, Q, D] for x [B, Q, D] and the keys and values [B, K, 2 D] of a memory."""
        return end_sublayer(self.output, self.core((self.query(x), key_value), visible))
