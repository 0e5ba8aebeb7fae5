"""Chooses the implementation that computes decoding steps: the engine in C, or torch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.config.config import ModelConfig
from nmt.decoding.engine import Engine
from nmt.decoding.pack_transformer import pack_transformer
from nmt.decoding.packing import can_pack, pack
from nmt.errors import UserError
from nmt.model.transformer import Transformer
from nmt.ops.backend import Call, Costly, Implementation, Operation
from nmt.ops.kernels import missing_kernels
from nmt.ops.native import library


@dataclass(frozen=True)
class Decoder:
    """A model made ready to translate."""

    logits: Callable[[Tensor], Tensor]  # the output layer, [..., D] to [..., V]
    packed: bool = False  # whether a row has the same bits whatever the number of rows
    engine: Engine | None = None  # searches in place of the model


def by_model(model: Transformer, *, int8: bool, keep_model: bool) -> Decoder:  # noqa: ARG001
    """The model as it is."""
    if int8:
        raise UserError("8-bit weights are for the CPU, by the kernels in C or packed layers")
    return Decoder(model.logits)


def by_packed_layers(model: Transformer, *, int8: bool, keep_model: bool) -> Decoder:  # noqa: ARG001
    """The model with its linear layers replaced."""
    return Decoder(pack(model, int8=int8), packed=True)


def by_engine(model: Transformer, *, int8: bool, keep_model: bool) -> Decoder:  # noqa: ARG001
    """The engine; with 8 bits the model is packed, too, to score with the same weights."""
    kernels = library.load()
    assert kernels is not None
    engine = Engine(kernels, pack_transformer(model, int8=int8))
    return Decoder(pack(model, int8=True) if int8 else model.logits, packed=True, engine=engine)


def refuses_engine(model: Transformer, *, int8: bool, keep_model: bool) -> str | None:  # noqa: ARG001
    """Why the engine cannot take a model, or None."""
    weight = model.target_embedding
    if not weight.is_cpu:
        return f"expected a model on the CPU, got {weight.device}"
    if weight.dtype != torch.float32:
        return Costly(
            f"the engine in C decodes in float32 and is faster than torch in {weight.dtype}"
        )
    if reason := refuses_mapping(model):
        return Costly(f"{reason}, without which decoding takes several times as long")
    return missing_kernels()


def refuses_mapping(model: Transformer) -> str | None:
    """Which attention kind of a model the engine does not have, or None."""
    for site, attention in model.attentions().items():
        mapping = attention.core.mapping
        if mapping.row_map is None:
            return f"{mapping} ({site.type} of layer {site.layer}) has no mapping in C"
    return None


def refuses_packing(model: Transformer, *, int8: bool, keep_model: bool) -> str | None:
    """Why layers cannot be packed, or None."""
    if not model.target_embedding.is_cpu:
        return f"expected a model on the CPU, got {model.target_embedding.device}"
    if model.target_embedding.dtype != torch.float32:
        return f"expected float32, got {model.target_embedding.dtype}"
    if keep_model:
        return "the model is still needed as it is"
    return None if int8 or can_pack() else "this build of torch has no oneDNN"


def example(device: torch.device) -> Call:
    """A tiny model, still needed as it is."""
    config = ModelConfig(dim=8, heads=2, encoder_layers=1, decoder_layers=1, feed_forward_dim=8)
    model = Transformer(config, source_vocabulary_size=8, target_vocabulary_size=8).to(device)
    return (model,), {"int8": False, "keep_model": False}


make_decoder = Operation(
    "steps of a translation",
    by_model,
    [
        Implementation("native", "engine in C", by_engine, accepts=refuses_engine),
        Implementation("torch", "packed layers", by_packed_layers, accepts=refuses_packing),
    ],
    example=example,
    gradients=False,
)
