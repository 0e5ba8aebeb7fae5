"""Random cases for the kernels: odd sizes, few sentences and many, numbers that are not finite."""

import math
import random
from dataclasses import dataclass

import torch
from support.attention_cases import IN_C
from support.transformers import sublayer

from nmt.config.config import AttentionTypesConfig, ModelConfig
from nmt.model.transformer import Transformer

SIZES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40)
ODD_NUMBERS = (math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45, 1e30)


@dataclass(frozen=True)
class EngineCase:
    """A model, its sources, and how far and how wide to decode."""

    model: Transformer
    vocabulary: int
    sources: list[list[int]]
    beam: int
    steps: int
    poisoned: bool  # some weights are not finite, or too large to stay so


def random_tensor(chance: random.Random, *shape: int, odd: float = 0.0) -> torch.Tensor:
    """Normal numbers, of which a share is not."""
    generator = torch.Generator().manual_seed(chance.getrandbits(32))
    numbers = chance.choice((0.1, 1.0, 5.0)) * torch.randn(shape, generator=generator)
    for place in range(numbers.numel()):
        if chance.random() < odd:
            numbers.view(-1)[place] = chance.choice(ODD_NUMBERS)
    return numbers


def engine_case(chance: random.Random) -> EngineCase:
    """A small model of any kinds and widths."""
    heads = chance.choice((1, 1, 2, 3, 4))
    head_dim = chance.choice((1, 2, 3, 5, 8, 13, 17, 32))
    if heads * head_dim % 2:
        head_dim += 1
    kinds = [sublayer(chance.choice(list(IN_C.values()))) for _ in range(3)]
    vocabulary = chance.choice((4, 5, 6, 17, 40, 100))
    torch.manual_seed(chance.getrandbits(32))
    model = Transformer(
        ModelConfig(
            dim=heads * head_dim,
            heads=heads,
            encoder_layers=chance.choice((1, 1, 2)),
            decoder_layers=chance.choice((1, 1, 2)),
            feed_forward_dim=chance.choice(SIZES),
            norm=chance.choice(("pre", "post")),
            attention=AttentionTypesConfig(*kinds),
        ),
        source_vocabulary_size=vocabulary,
        target_vocabulary_size=vocabulary,
    ).eval()
    poisoned = chance.random() < 0.25
    if poisoned:
        weights = chance.choice(list(model.parameters()))
        with torch.no_grad():
            weights.view(-1)[chance.randrange(weights.numel())] = chance.choice(ODD_NUMBERS)
    sources = [
        [chance.randrange(vocabulary) for _ in range(chance.choice(SIZES))]
        for _ in range(chance.choice((1, 1, 2, 3, 6)))
    ]
    beam, steps = chance.choice((1, 2, 3, 4, 7, 12)), chance.choice((1, 2, 15, 17, 34))
    return EngineCase(model, vocabulary, sources, beam, steps, poisoned)
