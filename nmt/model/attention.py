"""Multi-head attention of any kind, with itself or with a memory.

Shapes: B batch, H heads, Q queries, K keys, D width, Dh = D / H.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nmt.config.config import AttentionConfig
from nmt.model.attention_kinds import attention_kind
from nmt.model.blockwise import BlockwiseAttention, Settings, split_heads
from nmt.model.dropout import Dropout
from nmt.model.linear import Linear
from nmt.model.masking import InPlaceMask
from nmt.model.native_attention import NativeAttention, goes_natively

HALF = (torch.float16, torch.bfloat16)
WHOLE = slice(None)


class KeyValue(NamedTuple):
    """What queries attend to: key and value, both [B, H, K, Dh]."""

    key: Tensor
    value: Tensor


class AttentionCore(nn.Module):
    """From projections to the concatenated, normed heads; everything in which kinds differ.

    Four ways lead there. The plain one (`attend_plainly`) works everywhere. On CPUs the
    blockwise one is quicker, for maps that have it, and the kernels' own is the quickest, where
    there are kernels. Where a kind has a fused form that wins, that is taken in training, unless
    somebody observes: it never shows its weights.
    """

    def __init__(self, dim: int, heads: int, *, attention: AttentionConfig, dropout: float) -> None:
        super().__init__()
        kind = attention_kind(attention)
        self.heads = heads
        self.scale = 1.0 / math.sqrt(dim // heads)
        self.weights = kind.weights(attention, heads)
        self.norm = kind.norm(attention, dim) if kind.norm is not None else None
        self.fused = kind.fused
        self.dropout = Dropout(dropout)
        self.observer: Callable[[Tensor, Tensor], None] | None = None

    def forward(self, projections: tuple[Tensor, ...], visible: Tensor | None) -> Tensor:
        """[B, Q, D] for projections that hold query, key and value side by side.

        That is (query_key_value [B, T, 3 D],) or (query [B, Q, D], key_value [B, K, 2 D]).
        visible is broadcastable to [B, H, Q, K].
        """
        rate = self.dropout.active_rate
        settings = self.settings(visible) if self.goes_blockwise(projections[0]) else None
        natively = settings is not None and goes_natively(settings, *projections)
        if self.fused is not None and self.observer is None and not natively:
            query, key, value = split_heads(projections, self.heads)
            if self.fused.wins(key, training=self.training, dropout=rate):
                heads = self.fused.attend(query, key, value, visible, rate)
                return self.finish(heads.transpose(1, 2).flatten(2))
        if settings is not None:
            parameter = self.weights.parameter()
            form = NativeAttention if natively else BlockwiseAttention
            return self.finish(form.apply(settings, visible, parameter, *projections))  # type: ignore[no-untyped-call]
        query, key, value = split_heads(projections, self.heads)
        return self.finish(self.attend_plainly(query, KeyValue(key, value), visible))

    def attend(self, query: Tensor, memory: KeyValue, mask: InPlaceMask | None) -> Tensor:
        """[B, Q, D] for queries [B, H, Q, Dh] and a memory projected before: while decoding.

        The mask's `visible` is broadcastable to [B, H, Q, K]. There are few queries, so all scores
        fit into the cache at once.
        """
        quick = self.goes_blockwise(query) and self.observer is None
        if torch.is_grad_enabled() or self.dropout.active_rate > 0.0 or not quick:
            visible = None if mask is None else mask.visible
            return self.finish(self.attend_plainly(query, memory, visible))
        batch, heads, queries, _ = query.shape
        key, value = memory.key.flatten(0, 1), memory.value.flatten(0, 1)
        scores = query.new_empty(batch * heads, queries, key.shape[1])
        torch.baddbmm(
            scores,
            query.flatten(0, 1),
            key.transpose(1, 2),
            beta=0,
            alpha=self.scale,
            out=scores,
        )
        self.weights.weights_(
            scores.view(batch, heads, queries, -1),
            None if mask is None else mask.block(WHOLE, WHOLE, WHOLE),
            self.weights.parameter(),
        )
        result = torch.bmm(scores, value).view(batch, heads, queries, -1)
        return self.finish(result.transpose(1, 2).flatten(2))

    def goes_blockwise(self, x: Tensor) -> bool:
        """Whether the blockwise form can and should be taken."""
        return (
            self.weights.in_place
            and not x.is_cuda
            and x.dtype in (torch.float32, torch.float64)
            and not torch.compiler.is_compiling()
            and not torch.is_autocast_enabled(x.device.type)
        )

    def settings(self, visible: Tensor | None) -> Settings:
        """What the blockwise form needs besides tensors."""
        observer = None if self.observer is None else lambda weights: self.show(weights, visible)
        return Settings(self.weights, self.heads, self.scale, self.dropout.active_rate, observer)

    def attend_plainly(self, query: Tensor, memory: KeyValue, visible: Tensor | None) -> Tensor:
        """[B, Q, D] before the norm, by ordinary operations on all scores at once."""
        scores = (query * self.scale) @ memory.key.transpose(-2, -1)
        if scores.dtype in HALF:
            # A product beyond float16's range counts as its limit: softmax of inf would be NaN.
            limit = torch.finfo(scores.dtype).max
            scores = scores.float().clamp(-limit, limit)
        with torch.autocast(scores.device.type, enabled=False):
            weights: Tensor = self.weights(scores, visible)
        self.show(weights, visible)
        weights = self.dropout(weights)
        if memory.value.dtype == torch.float16:
            weights = weights.clamp(max=torch.finfo(torch.float16).max)
        heads = weights.to(memory.value.dtype) @ memory.value
        return heads.transpose(1, 2).flatten(2)

    def show(self, weights: Tensor, visible: Tensor | None) -> None:
        """Hand the weights to the observer, if there is one."""
        if self.observer is not None:
            if visible is None:
                visible = torch.ones(1, dtype=torch.bool, device=weights.device)
            self.observer(weights.detach(), visible)

    def finish(self, concatenated: Tensor) -> Tensor:
        """[B, Q, D] after the kind's norm."""
        if self.norm is None:
            return concatenated
        result: Tensor = self.norm(concatenated)
        return result


class SelfAttention(nn.Module):
    """Attention of a sequence to itself: one projection for queries, keys and values."""

    def __init__(self, dim: int, heads: int, *, attention: AttentionConfig, dropout: float) -> None:
        super().__init__()
        self.query_key_value = Linear(dim, 3 * dim)
        self.core = AttentionCore(dim, heads, attention=attention, dropout=dropout)
        self.output = Linear(dim, dim)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries [B, H, T, Dh], and keys and values [2, B, H, T, Dh], of x [B, T, D]."""
        batch, length, dim = x.shape
        shape = (batch, length, 3, self.core.heads, dim // self.core.heads)
        parts = self.query_key_value(x).view(shape).permute(2, 0, 3, 1, 4)
        return parts[0], parts[1:]

    def attend(self, query: Tensor, memory: KeyValue, mask: InPlaceMask | None) -> Tensor:
        """[B, Q, D] for queries and a memory that are projected."""
        result: Tensor = self.output(self.core.attend(query, memory, mask))
        return result

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        """[B, T, D] for x [B, T, D]."""
        result: Tensor = self.output(self.core((self.query_key_value(x),), visible))
        return result


class CrossAttention(nn.Module):
    """Attention of one sequence to another, whose keys and values can be projected beforehand."""

    def __init__(self, dim: int, heads: int, *, attention: AttentionConfig, dropout: float) -> None:
        super().__init__()
        self.query = Linear(dim, dim)
        self.key_value = Linear(dim, 2 * dim)
        self.core = AttentionCore(dim, heads, attention=attention, dropout=dropout)
        self.output = Linear(dim, dim)

    def project(self, memory: Tensor) -> KeyValue:
        """Keys and values of memory [B, K, D], laid out for many small products."""
        batch, length, dim = memory.shape
        shape = (batch, length, 2, self.core.heads, dim // self.core.heads)
        parts = self.key_value(memory).view(shape).permute(2, 0, 3, 1, 4)
        return KeyValue(parts[0].contiguous(), parts[1].contiguous())

    def attend(self, x: Tensor, memory: KeyValue, mask: InPlaceMask | None) -> Tensor:
        """[B, Q, D] for x [B, Q, D] and a memory that is projected."""
        batch, length, _ = x.shape
        query = self.query(x).view(batch, length, self.core.heads, -1).transpose(1, 2)
        result: Tensor = self.output(self.core.attend(query, memory, mask))
        return result

    def forward(self, x: Tensor, memory: Tensor, visible: Tensor | None) -> Tensor:
        """[B, Q, D] for x [B, Q, D] and memory [B, K, D]."""
        result: Tensor = self.output(self.core((self.query(x), self.key_value(memory)), visible))
        return result
