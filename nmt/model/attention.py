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
from nmt.model.dropout import Dropout

# torch's fused attention loses to the plain form below about so many keys on a CPU.
FUSED_FROM_KEYS_ON_CPU = 64


class KeyValue(NamedTuple):
    """What queries attend to: key and value, both [B, H, K, Dh]."""

    key: Tensor
    value: Tensor

    def contiguous(self) -> "KeyValue":
        """The same, laid out for many small products."""
        return KeyValue(self.key.contiguous(), self.value.contiguous())


class AttentionCore(nn.Module):
    """From projected heads to the concatenated, normed heads; everything in which kinds differ."""

    def __init__(self, dim: int, heads: int, *, attention: AttentionConfig, dropout: float) -> None:
        super().__init__()
        kind = attention_kind(attention)
        self.scale = 1.0 / math.sqrt(dim // heads)
        self.weights = kind.weights(attention, heads)
        self.norm = kind.norm(attention, dim) if kind.norm is not None else None
        self.fused = kind.fused
        self.dropout = Dropout(dropout)
        self.observer: Callable[[Tensor, Tensor], None] | None = None

    def forward(self, query: Tensor, memory: KeyValue, visible: Tensor | None) -> Tensor:
        """[B, Q, D] for query [B, H, Q, Dh]; visible is broadcastable to [B, H, Q, K]."""
        if self.fused is not None and self.fused_wins(memory.key):
            rate = self.dropout.rate if self.training else 0.0
            heads = self.fused(query, memory.key, memory.value, visible, rate)
        else:
            weights = self.attend(query, memory.key, visible)
            heads = self.dropout(weights).to(memory.value.dtype) @ memory.value
        concatenated = heads.transpose(1, 2).flatten(2)
        return concatenated if self.norm is None else self.norm(concatenated)

    def fused_wins(self, key: Tensor) -> bool:
        """Whether the kind's fused form is the quicker one here, and allowed.

        On a CPU only in training: its bits depend on padding, and translations must not.
        """
        if self.observer is not None:
            return False
        return key.is_cuda or (self.training and key.shape[2] >= FUSED_FROM_KEYS_ON_CPU)

    def attend(self, query: Tensor, key: Tensor, visible: Tensor | None) -> Tensor:
        """Weights [B, H, Q, K] before dropout, in at least float32."""
        scores = (query * self.scale) @ key.transpose(-2, -1)
        if scores.dtype in (torch.float16, torch.bfloat16):
            # A product beyond float16's range counts as its limit: softmax of inf would be NaN.
            limit = torch.finfo(scores.dtype).max
            scores = scores.float().clamp_(-limit, limit)
        weights: Tensor = self.weights(scores, visible)
        if self.observer is not None:
            shown = weights.new_ones((), dtype=torch.bool) if visible is None else visible
            self.observer(weights.detach(), shown)
        return weights


def split_heads(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """`parts` tensors [B, H, T, Dh] from x [B, T, parts * D]."""
    batch, length, width = x.shape
    return (
        x.view(batch, length, parts, heads, width // (parts * heads))
        .permute(2, 0, 3, 1, 4)
        .unbind(0)
    )


class SelfAttention(nn.Module):
    """Attention of a sequence to itself: one projection for queries, keys and values."""

    def __init__(self, dim: int, heads: int, *, attention: AttentionConfig, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(dim, 3 * dim)
        self.core = AttentionCore(dim, heads, attention=attention, dropout=dropout)
        self.output = nn.Linear(dim, dim)

    def project(self, x: Tensor) -> tuple[Tensor, KeyValue]:
        """Queries [B, H, T, Dh], and keys and values, of x [B, T, D]."""
        query, key, value = split_heads(self.query_key_value(x), 3, self.heads)
        return query, KeyValue(key, value)

    def attend(self, query: Tensor, memory: KeyValue, visible: Tensor | None) -> Tensor:
        """[B, Q, D] for projected queries."""
        result: Tensor = self.output(self.core(query, memory, visible))
        return result

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        """[B, T, D] for x [B, T, D]."""
        return self.attend(*self.project(x), visible)


class CrossAttention(nn.Module):
    """Attention of one sequence to another, whose keys and values can be projected beforehand."""

    def __init__(self, dim: int, heads: int, *, attention: AttentionConfig, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.core = AttentionCore(dim, heads, attention=attention, dropout=dropout)
        self.output = nn.Linear(dim, dim)

    def project(self, memory: Tensor) -> KeyValue:
        """Keys and values of memory [B, K, D]."""
        return KeyValue(*split_heads(self.key_value(memory), 2, self.heads))

    def forward(self, x: Tensor, memory: KeyValue, visible: Tensor | None) -> Tensor:
        """[B, Q, D] for x [B, Q, D]."""
        (query,) = split_heads(self.query(x), 1, self.heads)
        result: Tensor = self.output(self.core(query, memory, visible))
        return result
