"""The attention kinds that benchmarks compare."""

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
    """The same model with one attention kind in all sublayers."""
    sublayer = (
        SublayerAttentionConfig("entmax", alpha="learned")
        if kind == LEARNED
        else SublayerAttentionConfig(kind)
    )
    return replace(model, attention=AttentionTypesConfig(sublayer, sublayer, sublayer))
