"""Turns a Transformer into the named arrays that the engine in C is made of."""

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from nmt.decoding.packed_model import NUM_POSITIONS, PackedModel, PackedSettings, quantize
from nmt.model.attention import AttentionCore, CrossAttention, SelfAttention
from nmt.model.layers import DecoderLayer, EncoderLayer
from nmt.model.transformer import Transformer

Named = Iterator[tuple[str, npt.NDArray[Any]]]


def pack_transformer(model: Transformer, *, int8: bool) -> PackedModel:
    """The packed form of a model in float32 on the CPU; float32 arrays share its memory."""
    config = model.config
    sublayers = dict(attention_sublayers(model))
    settings = PackedSettings(
        dim=config.dim,
        heads=config.heads,
        hidden_dim=config.feed_forward_dim,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        pre_norm=config.norm == "pre",
        activation=config.feed_forward_activation,
        norm_epsilon=config.norm_epsilon,
        embedding_scale=model.target_input.scale,
        position_wavelengths=config.position_wavelengths,
        int8=int8,
        score_maps={name: score_map(one.core) for name, one in sublayers.items()},
        head_norms={
            name: one.core.norm.norm if one.core.norm is not None else "none"
            for name, one in sublayers.items()
        },
    )
    return PackedModel(settings, dict(arrays(model, int8=int8)))


def score_map(core: AttentionCore) -> str:
    """The name of the score mapping of a sublayer, which the kernels must have."""
    row_map = core.mapping.row_map
    assert row_map is not None, "expected a mapping that the kernels have"
    return row_map.name.lower()


def attention_sublayers(model: Transformer) -> Iterator[tuple[str, SelfAttention | CrossAttention]]:
    """Every attention sublayer with its name in a packed model."""
    for site, module in model.attentions().items():
        side = "encoder" if site.type == "encoder_self" else "decoder"
        yield f"{side}.{site.layer}.{'cross' if site.type == 'cross' else 'self'}", module


def arrays(model: Transformer, *, int8: bool) -> Named:
    """All arrays of a model by name."""
    yield "target_embedding", to_array(model.target_embedding)
    if model.own_source_embedding is not None:
        yield "source_embedding", to_array(model.own_source_embedding)
    yield "positions", to_array(model.target_input.positions(NUM_POSITIONS))
    if int8 or model.own_output_weight is not None:
        yield from weight("output", model.output_weight, int8=int8)
    if model.output_bias is not None:
        yield "output.bias", to_array(model.output_bias)
    for name, module in attention_sublayers(model):
        yield from attention(name, module, int8=int8)
    for side, layers, final in (
        ("encoder", model.encoder, model.encoder_norm),
        ("decoder", model.decoder, model.decoder_norm),
    ):
        for index, layer in enumerate(layers):
            assert isinstance(layer, EncoderLayer | DecoderLayer)
            name = f"{side}.{index}"
            yield from norm(f"{name}.self", layer.self_attention_residual.norm)
            if isinstance(layer, DecoderLayer):
                yield from norm(f"{name}.cross", layer.cross_attention_residual.norm)
            feed_forward = f"{name}.feed_forward"
            yield from norm(feed_forward, layer.feed_forward_residual.norm)
            yield from linear(f"{feed_forward}.input", layer.feed_forward.input, int8=int8)
            yield from linear(f"{feed_forward}.output", layer.feed_forward.output, int8=int8)
        if isinstance(final, nn.LayerNorm):
            yield from norm(side, final)


def to_array(tensor: Tensor) -> npt.NDArray[Any]:
    """The numbers of a tensor, in the same memory where that is contiguous."""
    made: npt.NDArray[Any] = tensor.detach().contiguous().numpy()
    return made


def weight(name: str, tensor: Tensor, *, int8: bool) -> Named:
    """The weight of a linear layer, and its scales if it has 8 bits."""
    if not int8:
        yield f"{name}.weight", to_array(tensor)
        return
    quantized, scales = quantize(to_array(tensor))
    yield f"{name}.weight", quantized
    yield f"{name}.scales", scales


def linear(name: str, module: nn.Linear, *, int8: bool) -> Named:
    """A linear layer."""
    yield from weight(name, module.weight, int8=int8)
    yield f"{name}.bias", to_array(module.bias)


def norm(name: str, module: nn.LayerNorm) -> Named:
    """A LayerNorm."""
    yield f"{name}.norm.gain", to_array(module.weight)
    yield f"{name}.norm.bias", to_array(module.bias)


def attention(name: str, module: SelfAttention | CrossAttention, *, int8: bool) -> Named:
    """An attention sublayer: its linear layers, and what its kind has."""
    if isinstance(module, SelfAttention):
        yield from linear(f"{name}.input", module.query_key_value, int8=int8)
    else:
        yield from linear(f"{name}.input", module.query, int8=int8)
        yield from linear(f"{name}.key_value", module.key_value, int8=int8)
    yield from linear(f"{name}.output", module.output, int8=int8)
    core = module.core
    parameters = torch.full((core.heads,), core.mapping.row_parameter)
    for learned in core.weights.values():
        parameters = core.mapping.decoding_parameters(learned)
    yield f"{name}.parameters", to_array(parameters)
    if core.norm is not None:
        for part, values in (("gain", core.norm.gain), ("gate", core.norm.gate)):
            if values is not None:
                yield f"{name}.{part}", to_array(values)
