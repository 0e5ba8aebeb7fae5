"""Encoder and decoder layers: attention and feed-forward sublayers with residuals and norms.

Shapes: B batch, T target positions, S source positions, D width.
"""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from nmt.config.config import AttentionConfig, ModelConfig
from nmt.model.attention import CrossAttention, SelfAttention
from nmt.model.dropout import Dropout
from nmt.ops.linear import feed_forward
from nmt.ops.residual import add_norm

LAYER_NORM_EPSILON = 1e-6


class Residual(nn.Module):
    """A residual connection with its LayerNorm: after the sum (post), or before the sublayer."""

    def __init__(self, dim: int, *, norm: Literal["post", "pre"], dropout: float) -> None:
        super().__init__()
        self.is_pre = norm == "pre"
        self.norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPSILON)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.is_pre:
            return self.dropout.add(x, sublayer(self.norm(x)))
        return self.add_and_norm(x, sublayer(x))

    def add_and_norm(self, residual: Tensor, x: Tensor) -> Tensor:
        """The norm of the residual plus x after dropout."""
        return add_norm(
            residual,
            x,
            self.norm.weight,
            self.norm.bias,
            rate=self.dropout.active_rate,
            epsilon=self.norm.eps,
            training=self.training,
        )


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between."""

    def __init__(self, dim: int, hidden_dim: int, *, dropout: float) -> None:
        super().__init__()
        self.input = nn.Linear(dim, hidden_dim)
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return feed_forward(
            x, self.input, self.output, rate=self.dropout.active_rate, training=self.training
        )


class EncoderLayer(nn.Module):
    """Self-attention, feed-forward."""

    def __init__(self, config: ModelConfig, self_attention: AttentionConfig) -> None:
        super().__init__()
        dim, rate = config.dim, config.dropout
        self.self_attention = SelfAttention(
            dim, config.heads, attention=self_attention, dropout=config.attention_dropout
        )
        self.self_attention_residual = Residual(dim, norm=config.norm, dropout=rate)
        self.feed_forward = FeedForward(
            dim, config.feed_forward_dim, dropout=config.feed_forward_dropout
        )
        self.feed_forward_residual = Residual(dim, norm=config.norm, dropout=rate)

    def forward(self, x: Tensor, visible: Tensor | None) -> Tensor:
        """[B, S, D] for x [B, S, D]."""
        x = self.self_attention_residual(x, lambda x: self.self_attention(x, visible))
        result: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return result


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention, feed-forward."""

    def __init__(
        self, config: ModelConfig, self_attention: AttentionConfig, cross: AttentionConfig
    ) -> None:
        super().__init__()
        dim, rate = config.dim, config.dropout
        self.self_attention = SelfAttention(
            dim, config.heads, attention=self_attention, dropout=config.attention_dropout
        )
        self.self_attention_residual = Residual(dim, norm=config.norm, dropout=rate)
        self.cross_attention = CrossAttention(
            dim, config.heads, attention=cross, dropout=config.attention_dropout
        )
        self.cross_attention_residual = Residual(dim, norm=config.norm, dropout=rate)
        self.feed_forward = FeedForward(
            dim, config.feed_forward_dim, dropout=config.feed_forward_dropout
        )
        self.feed_forward_residual = Residual(dim, norm=config.norm, dropout=rate)

    def forward(
        self,
        x: Tensor,
        attend_self: Callable[[Tensor], Tensor],
        attend_memory: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """[B, T, D] for x [B, T, D]; how each attention attends (cached or not) is given."""
        x = self.self_attention_residual(x, attend_self)
        x = self.cross_attention_residual(x, attend_memory)
        result: Tensor = self.feed_forward_residual(x, self.feed_forward)
        return result
