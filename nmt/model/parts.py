"""The parts of a model by name, and freezing them (`train.freeze`)."""

import re
from collections.abc import Iterable

import torch

from nmt.config.config import ModelConfig
from nmt.errors import ConfigError
from nmt.model.transformer import Transformer

# The names of parameters that belong to a part; that of a sublayer includes its LayerNorm.
MODEL_PARTS = {
    "encoder": r"encoder(_norm)?\..*",
    "decoder": r"decoder(_norm)?\..*",
    "encoder_self": r"encoder\.\d+\.self_attention.*",
    "decoder_self": r"decoder\.\d+\.self_attention.*",
    "cross": r"decoder\.\d+\.cross_attention.*",
    "feed_forward": r"(encoder|decoder)\.\d+\.feed_forward.*",
}
# Tied tables are one part with several names.
TABLES = {
    "embeddings": ("source_embedding", "target_embedding"),
    "source_embedding": ("source_embedding",),
    "target_embedding": ("target_embedding",),
    "output": ("output_weight", "output_bias"),
}


def freeze(model: Transformer, parts: Iterable[str]) -> list[str]:
    """Exclude parts from training; returns the names of their parameters.

    A part has one of the names above, or is a module such as `encoder.0` or
    `decoder.1.cross_attention`. Raises ConfigError for others, and if nothing is left to train.
    """
    frozen = {name for part in parts for name in parameter_names(model, part)}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    if len(frozen) == len(dict(model.named_parameters())):
        raise ConfigError("train.freeze: nothing is left to train; leave a part of the model out")
    return sorted(frozen)


def parameter_names(model: Transformer, part: str) -> list[str]:
    """The names of the parameters of a part, at least one."""
    named = dict(model.named_parameters())
    if part in TABLES:
        tables = [getattr(model, table) for table in TABLES[part]]
        return [name for name, value in named.items() if any(value is table for table in tables)]
    pattern = re.compile(MODEL_PARTS.get(part) or rf"{re.escape(part)}(\..*)?")
    found = [name for name in named if pattern.fullmatch(name)]
    if not found:
        raise ConfigError(
            f"train.freeze: there is no part {part!r}; expected some of "
            f"{', '.join([*MODEL_PARTS, *TABLES])}, a layer ({layers(model.config)}), or one of "
            "its modules such as decoder.0.cross_attention"
        )
    return found


def layers(config: ModelConfig) -> str:
    """The names of the layers of both sides."""
    return ", ".join(
        f"{side}.0" if count == 1 else f"{side}.0 to {side}.{count - 1}"
        for side, count in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers))
    )


def check_parts(config: ModelConfig, parts: Iterable[str]) -> None:
    """Raise ConfigError for parts that a model of a config cannot freeze; no memory is taken."""
    with torch.device("meta"):
        freeze(Transformer(config, source_vocabulary_size=8, target_vocabulary_size=8), parts)
