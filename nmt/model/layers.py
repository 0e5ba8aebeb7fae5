"""Encoder and decoder layers: attention and feed-forward sublayers with residuals and norms.

Shapes: B batch, T target positions, S source positions, D width.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nmt.config.config import AttentionConfig, ModelConfig
from nmt.model.attention import CrossAttention, SelfAttention
from nmt.model.dropout import Dropout, draw_dropping, keep_scale, least_kept
from nmt.model.linear import feed_forward
from nmt.native.training import Dropping, NormedSum, add_norm, add_norm_backward, kernels_suit

LAYER_NORM_EPSILON = 1e-6


class AddNormFunction(torch.autograd.Function):
    """LayerNorm(residual + dropout(x)) by the kernels, with its derivative."""

    @staticmethod
    def forward(
        ctx: Any, rate: float, residual: Tensor, x: Tensor, gain: Tensor, bias: Tensor
    ) -> Tensor:
        ctx.rate = rate
        dropping = draw_dropping(x.numel(), rate)
        residual, x = residual.contiguous(), x.contiguous()
        output, left = add_norm(
            residual, x, gain, bias, dropping=dropping, epsilon=LAYER_NORM_EPSILON
        )
        draws = None if dropping is None else dropping.draws
        ctx.save_for_backward(gain, draws, left.sums, left.means, left.scales)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gain, draws, *left = ctx.saved_tensors
        dropping = None
        if draws is not None:
            dropping = Dropping(draws, least_kept(ctx.rate), keep_scale(ctx.rate))
        outer = gradients[0].contiguous()
        return None, *add_norm_backward(NormedSum(*left), gain, outer, dropping=dropping)


class Residual(nn.Module):
    """A residual connection with its LayerNorm: after the sum (post), or before the sublayer."""

    def __init__(self, dim: int, *, norm: Literal["post", "pre"], dropout: float) -> None:
        super().__init__()
        self.is_pre = norm == "pre"
        self.norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPSILON)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        result: Tensor
        if self.is_pre:
            result = self.dropout.add(x, sublayer(self.norm(x)))
        else:
            result = self.add_and_norm(x, sublayer(x))
        return result

    def add_and_norm(self, residual: Tensor, x: Tensor) -> Tensor:
        """The norm of the residual plus x after dropout."""
        result: Tensor
        if self.training and kernels_suit(residual, x):
            result = AddNormFunction.apply(  # type: ignore[no-untyped-call]
                self.dropout.active_rate, residual, x, self.norm.weight, self.norm.bias
            )
        else:
            result = self.norm(self.dropout.add(residual, x))
        return result


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between."""

    def __init__(self, dim: int, hidden_dim: int, *, dropout: float) -> None:
        super().__init__()
        self.input = nn.Linear(dim, hidden_dim)
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(hidden_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and kernels_suit(x, self.input.weight):
            return feed_forward(x, self.input, self.output, self.dropout.active_rate)
        result: Tensor = self.output(self.dropout(self.input(x).relu()))
        return result


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
