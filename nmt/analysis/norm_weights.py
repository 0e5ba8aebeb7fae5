"""Cross-attention weighted by the size of what is attended to (Kobayashi et al. 2020).

A large weight on a vector that is almost zero moves nothing. The norm-based weight of a key is the
length of what it adds to the output of the sublayer: weight times |value W_O|, where the gain of
the norm on the joined heads, if the kind has one, belongs to W_O. The gate of ReLA-g, which depends
on the query, is left out. The layer attention is the mean of the heads, as for plain weights; the
authors take the length of the sum of all heads there.

Shapes: B sentences, H heads, S source positions, D width, Dh = D / H.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from nmt.analysis.pairs import PairAttention, PairBatch
from nmt.model.attention import CrossAttention
from nmt.model.observe import Site
from nmt.model.transformer import Transformer

Weighting = Literal["attention", "norm"]


def value_norms(model: Transformer, batch: PairBatch) -> dict[Site, Tensor]:
    """The lengths [B, H, S] of the transformed values of each layer of cross-attention."""
    with torch.inference_mode():
        memory = model.encode(batch.source, batch.source_visible)
        return {
            site: transformed_norms(attention, memory)
            for site, attention in model.attentions().items()
            if isinstance(attention, CrossAttention)
        }


def transformed_norms(attention: CrossAttention, memory: Tensor) -> Tensor:
    """The lengths [B, H, S] of the values of a memory [B, S, D], after the output projection."""
    value = attention.project(memory).value.float()  # [B, H, S, Dh]
    heads, dim = attention.core.heads, memory.shape[-1]
    output = attention.output.weight.float().view(dim, heads, dim // heads)
    norm = attention.core.norm
    if norm is not None and norm.gain is not None:
        output = output * norm.gain.float().view(heads, dim // heads)
    norms: Tensor = torch.einsum("bhsi,ohi->bhso", value, output).norm(dim=-1)
    return norms


def weight_by_norm(
    model: Transformer, batch: PairBatch, attentions: Sequence[PairAttention]
) -> list[PairAttention]:
    """The cross-attention of all pairs of a batch, times the lengths of the values."""
    norms = {site: values.cpu().numpy() for site, values in value_norms(model, batch).items()}
    return [
        replace(
            attention,
            weights={
                site: weights * norms[site][row, :, None, : weights.shape[-1]]
                for site, weights in attention.weights.items()
            },
        )
        for row, attention in enumerate(attentions)
    ]
