"""The attention kinds that benchmarks compare."""

from dataclasses import replace

from nmt.config.attention_kinds import ATTENTION_KINDS
from nmt.config.config import AttentionTypesConfig, ModelConfig, SublayerAttentionConfig

REFERENCE_KIND = "softmax"
LEARNED_ENTMAX = "entmax-learned"


def all_kinds() -> tuple[str, ...]:
    """The kinds of the table, and entmax with a learned alpha."""
    return (*ATTENTION_KINDS, LEARNED_ENTMAX)


def with_attention(model: ModelConfig, kind: str) -> ModelConfig:
    """The same model with one attention kind in all sublayers."""
    sublayer = (
        SublayerAttentionConfig("entmax", alpha="learned")
        if kind == LEARNED_ENTMAX
        else SublayerAttentionConfig(kind)
    )
    return replace(model, attention=AttentionTypesConfig(sublayer, sublayer, sublayer))
