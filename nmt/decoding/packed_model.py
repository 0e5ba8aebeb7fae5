"""A model as named arrays and a few settings: what the engine in C is made of. Imports no torch.

Linear layers are [outputs, inputs], in float32 or in 8 bits with one scale per output; the engine
lays them out for the processor that it runs on, so that a file serves all processors.

Names of arrays: `source_embedding` (absent if it is the target's), `target_embedding`, `positions`
(the first of them), `output.*`, `SIDE.LAYER.SUBLAYER.*` and `SIDE.norm.*`. SIDE is `encoder` or
`decoder`, SUBLAYER `self`, `cross` or `feed_forward`. A linear layer has `weight`, `scales` (8 bits
only) and perhaps `bias`; `output.weight` is absent if it is the target embedding in float32. A
LayerNorm has `norm.gain` and `norm.bias`. Attention has `parameters`, one per head, and
perhaps `gain` and `gate` of the norm on the concatenated heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from nmt.config.limits import Heads, InnerWidth, Layers, NonNegativeFloat, Scale, Width
from nmt.config.scalars import Names
from nmt.ops.native.interface import RowMap

Array = npt.NDArray[Any]
ScoreMap = Annotated[str, Names([one.name.lower() for one in RowMap], {})]

NUM_POSITIONS = 512  # position vectors that are stored; the engine computes those beyond
SMALLEST_WEIGHT = 1e-30
LARGEST_INT8 = 127  # the largest 8-bit number used; -128 is left out to be symmetric


@dataclass(frozen=True)
class PackedSettings:
    """The numbers and names that describe a packed model."""

    dim: Width
    heads: Heads
    hidden_dim: InnerWidth
    encoder_layers: Layers
    decoder_layers: Layers
    pre_norm: bool
    activation: Literal["relu", "gelu", "swish"]
    norm_epsilon: NonNegativeFloat
    embedding_scale: Scale
    position_wavelengths: Literal["inclusive", "exclusive"]
    int8: bool
    # By sublayer, such as `decoder.0.cross`: the name of its score mapping (`RowMap`), and of the
    # norm on its concatenated heads.
    score_maps: dict[str, ScoreMap]
    head_norms: dict[str, Literal["none", "rms", "layer"]]


@dataclass(frozen=True)
class PackedModel:
    """The settings and arrays of a model."""

    settings: PackedSettings
    arrays: Mapping[str, Array]


def quantize(weight: Array) -> tuple[Array, Array]:
    """A weight [outputs, inputs] in 8 bits, and the scale [outputs] of each row."""
    largest = np.maximum(np.abs(weight).max(axis=1, initial=0.0), np.float32(SMALLEST_WEIGHT))
    with np.errstate(invalid="ignore", over="ignore"):  # of weights that are not finite
        factors = np.float32(LARGEST_INT8) * (np.float32(1.0) / largest)  # in these two roundings
        quantized = np.rint(weight * factors[:, None]).astype(np.int8)
    return quantized, largest / np.float32(LARGEST_INT8)


def sinusoids(first: int, end: int, settings: PackedSettings) -> Array:
    """[P, D] for positions from first on: sines in the first half of the width, then cosines.

    The same as nmt/model/embeddings.py.
    """
    dim = settings.dim
    half = (dim + 1) // 2
    steps = half - 1 if settings.position_wavelengths == "inclusive" else half
    rates = np.exp(np.arange(half) * (-np.log(10000.0) / max(steps, 1)))
    angles = np.arange(first, end)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)[:, :dim].astype(np.float32)
