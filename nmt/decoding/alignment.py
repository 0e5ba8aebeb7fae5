"""The values of word alignments and attention: heads, weights and links; does not need torch.

Shapes: L decoder layers, H heads, T target positions, S source positions, both with the end token
last.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nmt.errors import DataError, UserError
from nmt.storage.manifest import open_regular, parse_json, read_small

if TYPE_CHECKING:
    from nmt.config.config import ModelConfig

WordLink = tuple[int, int]  # (source word, target word), counted from 0
Links = tuple[WordLink, ...]
Weights = npt.NDArray[np.floating]
Sources = npt.NDArray[np.int64]  # [..., W] the source word of each target word, or NO_LINK

NO_LINK = -1


@dataclass(frozen=True)
class AlignmentHead:
    """The layer and head whose weights make an alignment.

    Training chooses one on the validation set and keeps it in the model's state.json. Without it
    the mean of all heads in the middle layer is taken, "shifted": a word is aligned by the
    attention of the step that reads it, not of the step that predicts it.
    """

    layer: int | None = None  # from 0; None: the middle one (the lower, if there are two)
    head: int | None = None  # from 0; None: the mean of all heads
    shifted: bool = True


def recommended_head(directory: Path) -> AlignmentHead:
    """The `alignment_head` of a model's state.json, or the default if there is none."""
    path = directory / "state.json"
    if not path.exists():
        return AlignmentHead()
    with open_regular(path) as file:
        found = parse_json(read_small(path, file), str(path)).get("alignment_head")
    if found is None:
        return AlignmentHead()
    if isinstance(found, dict) and set(found) <= {"layer", "head", "shifted"}:
        chosen = AlignmentHead(**found)
        numbers = (chosen.layer, chosen.head)
        if type(chosen.shifted) is bool and {type(item) for item in numbers} <= {int, NoneType}:
            return chosen
    raise DataError(
        f"{path}: alignment_head: expected numbers or null as layer and head, and true or false "
        "as shifted; give --layer and --head"
    )


@dataclass(frozen=True)
class Attention:
    """The attention of one output by type, and the pieces it belongs to.

    The weights are [L, H, T, S] for `cross`, [L, H, S, S] for `encoder_self` and [L, H, T, T] for
    `decoder_self`, whose position i reads piece i - 1 of the target.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    weights: Mapping[str, npt.NDArray[np.float32]]

    @property
    def cross(self) -> npt.NDArray[np.float32]:
        """The cross-attention."""
        return self.weights["cross"]

    @classmethod
    def empty(cls, config: "ModelConfig", types: Iterable[str]) -> "Attention":
        """The attention of a line without an output."""
        layers = dict.fromkeys(types, config.decoder_layers)
        if "encoder_self" in layers:
            layers["encoder_self"] = config.encoder_layers
        shapes = {type_: (number, config.heads, 0, 0) for type_, number in layers.items()}
        return cls((), (), {type_: np.zeros(shape, np.float32) for type_, shape in shapes.items()})


def check_head(config: "ModelConfig", choice: AlignmentHead) -> None:
    """Raise for a layer or head that the model does not have."""
    for name, number, count in (
        ("layer", choice.layer, config.decoder_layers),
        ("head", choice.head, config.heads),
    ):
        if number is not None and not 0 <= number < count:
            raise UserError(f"--{name}: expected 0 to {count - 1} for this model, got {number}")


def merge_subwords(
    weights: Weights,
    *,
    source_words: Sequence[int],
    target_words: Sequence[int],
    num_source_words: int,
    num_target_words: int,
) -> Weights:
    """The weights [..., W, V] of words in float64, from those [..., T - 1, S - 1] of subwords.

    They are summed over the subwords of a source word and averaged over those of a target word. A
    word without subwords has weights of 0.
    """
    columns = np.zeros((len(source_words), num_source_words))
    columns[np.arange(len(source_words)), source_words] = 1.0
    rows = np.zeros((num_target_words, len(target_words)))
    rows[target_words, np.arange(len(target_words))] = 1.0
    rows /= np.maximum(rows.sum(axis=1, keepdims=True), 1.0)
    merged: Weights = rows @ (weights.astype(np.float64) @ columns)
    return merged


def strongest(weights: Weights) -> Sources:
    """The source word [..., W] of the largest weight in [..., W, V]; none if no weight is above 0.

    The first of several equal weights wins.
    """
    if weights.shape[-1] == 0:
        return np.full(weights.shape[:-1], NO_LINK, dtype=np.int64)
    return np.where(weights.max(axis=-1) > 0, weights.argmax(axis=-1), NO_LINK)


def links_of(words: Sources) -> Links:
    """The links of target words, words [W], that have a source word."""
    return tuple((int(word), target) for target, word in enumerate(words) if word != NO_LINK)
