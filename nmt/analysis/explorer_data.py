"""The data that the explorer of heads reads, on the report page and on the page of nmt-serve."""

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.analysis.pairs import PairAttention
from nmt.analysis.plotting import COLOURS
from nmt.analysis.results import ATTENTION_TYPES, ModelResult, diversity, learned_names
from nmt.data.codec import Codec, Segmentation, SideCodec
from nmt.model.observe import Site

WEIGHT_LEVELS = 127  # levels of the absolute value of a weight, in a signed byte
EXPLORED_MEASURES = ("sparsity", "entropy")
NULL_MEASURES = ("null_rate", "shuffled_null_rate")


def model_data(
    number: int,
    model: ModelResult,
    codec: Codec,
    seen: Sequence[PairAttention | None],
    translations: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """The measures of one model, and all its heads on every sentence (None if it is too long).

    `translations` are the model's own, by the indices of the pairs.
    """
    return {
        "name": model.name,
        "colour": COLOURS[number % len(COLOURS)],
        "attention": model.attention,
        "nullable": model.nullable,
        "layers": {type_: len(model.layers(type_)) for type_ in ATTENTION_TYPES},
        "heads": model.num_heads,
        "measures": {type_: layer_measures(model, type_) for type_ in ATTENTION_TYPES},
        "sentences": [
            None if one is None else sentence_data(codec, one, translations) for one in seen
        ],
    }


def layer_measures(model: ModelResult, type_: str) -> list[dict[str, list[float | None]]]:
    """By layer and measure one number per head, and one for the whole layer at the end.

    Measures that cannot be other than 0 are left out.
    """
    result = []
    for number, layer in enumerate(model.layers(type_)):
        measures: dict[str, list[float | None]] = {
            "diversity": [*[None] * model.num_heads, diversity(layer)]  # of all heads of the layer
        }
        names = (*(NULL_MEASURES if model.nullable[type_] else ()), *EXPLORED_MEASURES)
        for key in (*names, *learned_names([model])):
            values = layer["heads"].get(key)
            if values:
                whole = layer[key] if key in layer else float(np.mean(values))
                measures[key] = [*values, whole]
        if model.aer is not None and type_ == "cross":
            for step in ("normal", "shifted"):
                rates = model.aer[step]["layers"][number]
                measures[f"aer_{step}"] = [*rates["heads"], rates["layer_attention"]]
        result.append(
            {
                key: [None if value is None else round(value, 5) for value in values]
                for key, values in measures.items()
            }
        )
    return result


def sentence_data(
    codec: Codec, seen: PairAttention, translations: Mapping[int, str] | None = None
) -> dict[str, Any]:
    """The words of a pair, the weights of all heads, and the model's translation if it is given."""
    packed = base64.b64encode(zlib.compress(quantised(seen), level=9))
    data = {
        "source": side_data(codec.source, seen.pair.source),
        "target": side_data(codec.target, seen.pair.target),
        "weights": packed.decode(),
    }
    if translations is not None:
        data["translation"] = translations[seen.pair.index]
    return data


def side_data(codec: SideCodec, side: Segmentation) -> dict[str, Any]:
    """The words, the subwords without the end token, and the word of each subword."""
    pieces = [codec.vocabulary.piece(number) for number in side.ids[:-1]]
    return {"words": side.words, "pieces": pieces, "word_of_piece": side.word_of_piece}


def quantised(seen: PairAttention) -> bytes:
    """The largest weight of every head as float32, then one signed byte per weight.

    Heads are ordered by type, layer and index. A byte n stands for the largest weight times
    (n / WEIGHT_LEVELS)^2, with the sign of n; it is 0 only for weights that are exactly 0.
    """
    order = {type_: number for number, type_ in enumerate(ATTENTION_TYPES)}
    sites: list[Site] = sorted(seen.weights, key=lambda site: (order[site.type], site.layer))
    scales, levels = [], []
    for site in sites:
        largest, bytes_ = quantise(seen.weights[site])
        scales.append(largest.astype("<f4").tobytes())
        levels.append(bytes_.tobytes())
    return b"".join([*scales, *levels])


def quantise(
    weights: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int8]]:
    """The largest absolute weight [H] and the levels [H, Q, K] of weights [H, Q, K]."""
    largest = np.abs(weights).max(axis=(1, 2))
    sizes = np.abs(weights) / np.maximum(largest, np.finfo(np.float32).tiny)[:, None, None]
    levels = np.maximum(np.rint(WEIGHT_LEVELS * np.sqrt(sizes)), weights != 0)
    return largest, (np.sign(weights) * levels).astype(np.int8)
