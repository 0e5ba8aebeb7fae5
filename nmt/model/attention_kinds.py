"""The table of attention kinds: what each makes of scores, and its norm on concatenated heads.

To add a kind: one class in activations.py (or norms.py), one row here, one line in
`nmt.config.config.ATTENTION_OPTIONS`. The layers and the tests know the kinds by this table only.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from nmt.config.config import AttentionConfig
from nmt.errors import ConfigError
from nmt.model.activations import Entmax, Pointwise, ScoreMap, Softmax, TopK
from nmt.model.norms import HeadNorm


@dataclass(frozen=True)
class FusedAttention:
    """A form that never writes its weights out, and when it is the one to take."""

    # (query, key, value, visible, dropout rate) -> [B, H, Q, Dh]
    attend: Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor]
    keys_on_cpu: int  # from so many keys it is quicker than blocks on a CPU, as measured

    def wins(self, key: Tensor, *, training: bool, dropout: float) -> bool:
        """Whether to take it for key [B, H, K, Dh].

        On a CPU only in training, since its bits depend on padding and those of translations must
        not; and only without dropout, for which it has no fast form there.
        """
        if key.is_cuda or torch.compiler.is_compiling():
            return key.is_cuda
        return training and dropout == 0.0 and key.shape[2] >= self.keys_on_cpu


@dataclass(frozen=True)
class AttentionKind:
    """A row of the table; both makers take the options as configured (None: the default)."""

    weights: Callable[[AttentionConfig, int], ScoreMap]  # config, heads -> scores to weights
    norm: Callable[[AttentionConfig, int], nn.Module] | None = None  # config, dim -> norm
    fused: FusedAttention | None = None


def fused_softmax(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, dropout: float
) -> Tensor:
    """torch's own kernel; rows without a visible key come out as 0."""
    return functional.scaled_dot_product_attention(query, key, value, visible, dropout)


def pointwise(config: AttentionConfig, heads: int) -> ScoreMap:
    """ReLA's weights: an activation of each score."""
    threshold = 0.0 if config.threshold is None else config.threshold
    return Pointwise(heads, config.activation or "relu", threshold)


def rela_i_norm(config: AttentionConfig, dim: int) -> nn.Module:
    """RMSNorm whose gain starts small."""
    gain_init = "uniform" if config.gain_init is None else config.gain_init
    return HeadNorm(dim, norm=config.norm or "rms", gate=bool(config.gate), gain_init=gain_init)


def rela_g_norm(config: AttentionConfig, dim: int) -> nn.Module:
    """Gated RMSNorm."""
    gain_init = 1.0 if config.gain_init is None else config.gain_init
    return HeadNorm(
        dim, norm=config.norm or "rms", gate=config.gate is not False, gain_init=gain_init
    )


ATTENTION_KINDS: dict[str, AttentionKind] = {
    "softmax": AttentionKind(
        lambda _config, _heads: Softmax(), fused=FusedAttention(fused_softmax, 256)
    ),
    "sparsemax": AttentionKind(
        lambda config, heads: Entmax(heads, 2.0, config.backend or "solver")
    ),
    "entmax15": AttentionKind(lambda config, heads: Entmax(heads, 1.5, config.backend or "solver")),
    "entmax": AttentionKind(
        lambda config, heads: Entmax(heads, config.alpha or 1.5, config.backend or "solver")
    ),
    "rela-i": AttentionKind(pointwise, norm=rela_i_norm),
    "rela-g": AttentionKind(pointwise, norm=rela_g_norm),
    "topk": AttentionKind(lambda config, _heads: TopK(config.k or 8)),
}


def attention_kind(config: AttentionConfig) -> AttentionKind:
    """The row that a configuration names."""
    kind = ATTENTION_KINDS.get(config.kind)
    if kind is None:
        known = ", ".join(ATTENTION_KINDS)
        raise ConfigError(f"attention kind: expected one of {known}, got {config.kind!r}")
    return kind
