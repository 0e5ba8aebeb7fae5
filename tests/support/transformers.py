"""Small Transformers of every attention kind, for tests of the whole model."""

import torch
from support.attention_cases import CASES, IN_C, TRACEABLE
from torch import Tensor

from nmt.config.config import (
    AttentionConfig,
    AttentionTypesConfig,
    ModelConfig,
    SublayerAttentionConfig,
)
from nmt.model.transformer import Transformer

SOURCE_SIZE, TARGET_SIZE = 29, 31


def sublayer(
    case: AttentionConfig, layers: dict[int, AttentionConfig] | None = None
) -> SublayerAttentionConfig:
    """The configuration of a type of sublayer."""
    return SublayerAttentionConfig(case.kind, layers=layers, **case.given)


def everywhere(case: AttentionConfig) -> AttentionTypesConfig:
    """One kind in all three types of sublayer."""
    return AttentionTypesConfig(sublayer(case), sublayer(case), sublayer(case))


MIXED = AttentionTypesConfig(
    encoder_self=sublayer(CASES["rela-i"], {0: CASES["softmax"]}),
    decoder_self=sublayer(CASES["entmax learned"], {1: CASES["topk"]}),
    cross=sublayer(CASES["rela-g"], {0: CASES["entmax15"]}),
)
MODELS = {name: everywhere(case) for name, case in CASES.items()} | {"mixed": MIXED}
# The package does not repeat its bits when rows get longer.
OUR_MODELS = {name: everywhere(case) for name, case in TRACEABLE.items()} | {"mixed": MIXED}
MODELS_IN_C = {name: everywhere(case) for name, case in IN_C.items()} | {"mixed": MIXED}


def make_model(
    attention: AttentionTypesConfig, *, norm: str = "post", dim: int = 32
) -> Transformer:
    """Two layers per side, in evaluation mode."""
    torch.manual_seed(1)
    config = ModelConfig(
        dim=dim,
        heads=4,
        encoder_layers=2,
        decoder_layers=2,
        feed_forward_dim=64,
        norm=norm,  # type: ignore[arg-type]
        attention=attention,
    )
    model = Transformer(
        config, source_vocabulary_size=SOURCE_SIZE, target_vocabulary_size=TARGET_SIZE
    )
    return model.eval()


def make_source(*lengths: int, width: int) -> tuple[Tensor, Tensor]:
    """Random sentences of the given lengths: source [B, S] padded with 0, and what is visible."""
    generator = torch.Generator().manual_seed(sum(lengths))
    source = torch.randint(4, SOURCE_SIZE, (len(lengths), width), generator=generator)
    visible = torch.arange(width) < torch.tensor(lengths)[:, None]
    return source.masked_fill_(~visible, 0), visible


def make_target(batch: int, length: int) -> Tensor:
    """Random target input [B, T]."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(4, TARGET_SIZE, (batch, length), generator=generator)
