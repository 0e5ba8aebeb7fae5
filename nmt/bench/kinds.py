"""Models that differ in nothing but their attention."""

from dataclasses import replace

from nmt.config.config import (
    ATTENTION_OPTIONS,
    AttentionTypesConfig,
    ModelConfig,
    SublayerAttentionConfig,
)

REFERENCE = "softmax"
LEARNED = "entmax-learned"
KINDS = (*ATTENTION_OPTIONS, LEARNED)


def with_attention(model: ModelConfig, kind: str) -> ModelConfig:
    """The same model with one kind of attention everywhere."""
    sublayer = (
        SublayerAttentionConfig("entmax", alpha="learned")
        if kind == LEARNED
        else SublayerAttentionConfig(kind)
    )
    return replace(model, attention=AttentionTypesConfig(sublayer, sublayer, sublayer))
