"""Our weights in the layers of toolkits that took fairseq's names: fairseq itself and MarianMT."""

from collections.abc import Sequence
from typing import Any

import torch
from task import DecodingData
from torch import nn


def load_layers(layers: Sequence[Any], data: DecodingData, side: str, *, epsilon: float) -> None:
    """The layers of the encoder or of the decoder, and the epsilon of their norms."""
    for number, layer in enumerate(layers):
        ours = f"{side}.{number}"
        load_self_attention(layer.self_attn, data, f"{ours}.self_attention")
        load_norm(layer.self_attn_layer_norm, data, f"{ours}.self_attention_residual")
        if side == "decoder":
            load_cross_attention(layer.encoder_attn, data, f"{ours}.cross_attention")
            load_norm(layer.encoder_attn_layer_norm, data, f"{ours}.cross_attention_residual")
        load_linear(layer.fc1, data, f"{ours}.feed_forward.input")
        load_linear(layer.fc2, data, f"{ours}.feed_forward.output")
        load_norm(layer.final_layer_norm, data, f"{ours}.feed_forward_residual")
        for module in layer.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = epsilon


def load_self_attention(attention: Any, data: DecodingData, name: str) -> None:
    """Queries, keys and values are one matrix with us."""
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    load_parts(parts, data, f"{name}.query_key_value")
    load_linear(attention.out_proj, data, f"{name}.output")


def load_cross_attention(attention: Any, data: DecodingData, name: str) -> None:
    """Keys and values are one matrix with us."""
    load_linear(attention.q_proj, data, f"{name}.query")
    load_parts((attention.k_proj, attention.v_proj), data, f"{name}.key_value")
    load_linear(attention.out_proj, data, f"{name}.output")


def load_parts(parts: tuple[nn.Linear, ...], data: DecodingData, name: str) -> None:
    """Linear layers that are one matrix with us."""
    weights = torch.from_numpy(data.weight(f"{name}.weight")).chunk(len(parts))
    biases = torch.from_numpy(data.weight(f"{name}.bias")).chunk(len(parts))
    for part, weight, bias in zip(parts, weights, biases, strict=True):
        part.weight.copy_(weight)
        part.bias.copy_(bias)


def load_linear(linear: nn.Linear, data: DecodingData, name: str) -> None:
    """A linear layer."""
    load_parts((linear,), data, name)


def load_norm(norm: nn.LayerNorm, data: DecodingData, name: str) -> None:
    """A layer norm of ours."""
    norm.weight.copy_(torch.from_numpy(data.weight(f"{name}.norm.weight")))
    norm.bias.copy_(torch.from_numpy(data.weight(f"{name}.norm.bias")))
