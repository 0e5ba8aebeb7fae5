"""Encoder and decoder layers: attention and feed-forward sublayers with residuals and norms.

Shapes: B batch, T target positions, S source positions, D width.
"""

from collections.abc import Callable

from torch import Tensor, nn

from nmt.config.config import AttentionConfig, ModelConfig
from nmt.model.attention import CrossAttention, SelfAttention
from nmt.model.dropout import Dropout
from nmt.ops.half_linear import (
    HalfPrecisionLayer,
    LastLayer,
    SublayerOutput,
    leaves_bias,
    leaves_layer,
)
from nmt.ops.linear import feed_forward
from nmt.ops.residual import ResidualStream, add_norm
from nmt.ops.sublayer_end import apply_last, layer_norm_end


class Residual(nn.Module):
    """A residual connection with its LayerNorm: after the sum (post), or before the sublayer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_pre = config.norm == "pre"
        self.norm = nn.LayerNorm(config.dim, eps=config.norm_epsilon)
        self.dropout = Dropout(config.dropout)

    def forward(
        self, stream: ResidualStream, sublayer: Callable[[Tensor], SublayerOutput]
    ) -> ResidualStream:
        if not self.is_pre:
            return self.add_and_norm(stream.exact, sublayer(stream.rounded))
        output = sublayer(self.norm(stream.exact))
        x = output.x if output.last is None else apply_last(output.x, output.last)
        x = x if output.bias is None else x + output.bias
        return ResidualStream.of(self.dropout.add(stream.exact, x))

    def add_and_norm(self, residual: Tensor, output: SublayerOutput) -> ResidualStream:
        """The norm of the residual plus a sublayer's output after dropout."""
        if output.last is not None:
            assert self.dropout.active_rate == 0.0
            return layer_norm_end(residual, output.x, output.last, self.norm)
        return add_norm(
            residual,
            output.x,
            self.norm.weight,
            self.norm.bias,
            output.bias,
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

    def forward(self, x: Tensor) -> SublayerOutput:
        bias_is_left, layer_is_left = leaves_bias(self.output, x), self.leaves_output(x)
        last: Callable[[Tensor], Tensor] = self.output
        if layer_is_left:
            last = nn.Identity()
        elif bias_is_left:
            last = self.output.multiply
        output = feed_forward(
            x,
            self.input,
            last,
            activation=self.activation,
            rate=self.dropout.active_rate,
            training=self.training,
        )
        if layer_is_left:
            return SublayerOutput(output, None, LastLayer(self.output, None))
        return SublayerOutput(output, self.output.bias if bias_is_left else None)

    def leaves_output(self, x: Tensor) -> bool:
        """Whether the second layer is left to the residual connection."""
        return not self.training and leaves_layer(self.output, x)


class EncoderLayer(nn.Module):
    """Self-attention, feed-forward."""

    def __init__(self, config: ModelConfig, self_attention: AttentionConfig) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, self_attention)
        self.self_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def forward(self, x: ResidualStream, visible: Tensor | None) -> ResidualStream:
        """[B, S, D] for x [B, S, D]."""
        x = self.self_attention_residual(x, lambda x: self.self_attention(x, visible))
        result: ResidualStream = self.feed_forward_residual(x, self.feed_forward)
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
        x: ResidualStream,
        attend_self: Callable[[Tensor], SublayerOutput],
        attend_memory: Callable[[Tensor], SublayerOutput],
    ) -> ResidualStream:
        """[B, T, D] for x [B, T, D]; how each attention attends (cached or not) is given."""
        x = self.self_attention_residual(x, attend_self)
        x = self.cross_attention_residual(x, attend_memory)
        result: ResidualStream = self.feed_forward_residual(x, self.feed_forward)
        return result
