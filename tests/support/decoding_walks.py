"""Random walks of a decoder, by the engine in C and by torch."""

import torch
from support.kernels import load
from support.transformers import SOURCE_SIZE, TARGET_SIZE
from torch import Tensor

from nmt.decoding.decoder import Decoder
from nmt.decoding.engine import Engine
from nmt.decoding.engine_step import EngineStep
from nmt.decoding.ensemble import Member, TorchStep
from nmt.decoding.pack_transformer import pack_transformer
from nmt.model.transformer import Transformer

BEAM, POSITIONS = 3, 20
LENGTHS = (5, 17, 1, 40)


def make_sources() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randint(4, SOURCE_SIZE, (length,), generator=generator).tolist() for length in LENGTHS
    ]


def walk(step: EngineStep | TorchStep) -> list[Tensor]:
    """All logits of a random walk that reorders hypotheses and lets sentences leave."""
    generator = torch.Generator().manual_seed(4)
    tokens = torch.full((len(LENGTHS), 1), 1)
    found = []
    for position in range(POSITIONS):
        found.append(step(tokens).clone())
        batch, width = tokens.shape
        parents = torch.randint(0, width, (batch, BEAM), generator=generator)
        step.reorder(parents)
        tokens = torch.randint(4, TARGET_SIZE, (batch, BEAM), generator=generator)
        if position == POSITIONS // 2:
            kept = torch.tensor([3, 1])
            step.select(kept)
            tokens = tokens[kept]
    return found


@torch.inference_mode()
def engine_walk(build: str, model: Transformer, *, int8: bool = False) -> list[Tensor]:
    engine = Engine(load(build), pack_transformer(model, int8=int8))
    return walk(EngineStep(engine, make_sources(), beam=BEAM, max_length=POSITIONS))


@torch.inference_mode()
def torch_walk(model: Transformer) -> list[Tensor]:
    member = Member(model, None, Decoder(model.logits))  # type: ignore[arg-type]
    return walk(
        TorchStep(
            member, make_sources(), beam=BEAM, max_length=POSITIONS, multiple=16, device="cpu"
        )
    )
