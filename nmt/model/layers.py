"""Encoder and decoder layers: attention and feed-forward sublayers with residuals and norms.

Shapes: B batch, T target positions, S source positions, D width.
"""

from collections.abc import Callable

from torch import Tensor, nn

from nmt.config.config import AttentionConfig, ModelConfig
from nmt.model.attention import CrossAttention, SelfAttention
from nmt.model.dropout import Dropout
from nmt.ops.half_linear import HalfPrecisionLayer
from nmt.ops.linear import feed_forward
from nmt.ops.residual import add_norm


class Residual(nn.Module):
    """A residual connection with its LayerNorm: after the sum (post), or before the sublayer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_pre = config.norm == "pre"
        self.norm = nn.LayerNorm(config.dim, eps=config.norm_epsilon)
        self.dropout = Dropout(config.dropout)

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
    """Two linear layers with an activation between."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = config.feed_forward_activation
        self.input = HalfPrecisionLayer(config.dim, config.feed_forward_dim)
        self.dropout = Dropout(config.feed_forward_dropout)
        self.output = HalfPrecisionLayer(config.feed_forward_dim, config.dim)

    def forward(self, x: Tensor) -> Tensor:
        return feed_forward(
            x,
            self.input,
            self.output,
            activation=self.activation,
            rate=self.dropout.active_rate,
            training=self.training,
        )


class EncoderLayer(nn.Module):
    """Self-attention, feed-forward."""

    def __init__(self, config: ModelConfig, self_attention: AttentionConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, self_attention)
        self.self_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

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
        self.self_attention = SelfAttention(config, self_attention)
        self.self_attention_residual = Residual(config)
        self.cross_attention = CrossAttention(config, cross)
        self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

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
