"""Word alignments and attention of given outputs, from the cross-attention of the model.

The weights are observed while the model reads the finished output once more. Shapes: L decoder
layers, H heads, T target positions, S source positions, both with the end token last.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nmt.data.vocabulary import BOS
from nmt.decoding.ensemble import Ids, Member, pad
from nmt.errors import UserError
from nmt.model.observe import Site, observe_attention

Links = tuple[tuple[int, int], ...]  # (source word, target word), counted from 0


@dataclass(frozen=True)
class AlignmentHead:
    """Which weights make an alignment.

    Training chooses one on the validation set and keeps it in the model's state.json. Without it
    the mean of all heads in the middle layer is taken, "shifted": a word is aligned by the
    attention of the step that reads it, not of the step that predicts it.
    """

    layer: int | None = None  # from 0; None: the middle one (the lower, if there are two)
    head: int | None = None  # from 0; None: the mean of all heads
    shifted: bool = True


def recommended_head(directory: Path) -> AlignmentHead:
    """What `alignment_head` (layer, head, shifted) in a model's state.json says, or the default."""
    try:
        state = json.loads((directory / "state.json").read_bytes())
    except (FileNotFoundError, ValueError):
        return AlignmentHead()
    found = state.get("alignment_head") if isinstance(state, dict) else None
    if not isinstance(found, dict):
        return AlignmentHead()
    return AlignmentHead(found.get("layer"), found.get("head"), bool(found.get("shifted", True)))


@dataclass(frozen=True)
class Attention:
    """The cross-attention of one output: weights [L, H, T, S] and the pieces they belong to."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    cross: npt.NDArray[np.float32]


def check_head(member: Member, choice: AlignmentHead) -> None:
    """Complain of a layer or head that the model does not have."""
    config = member.model.config
    for name, number, count in (
        ("layer", choice.layer, config.decoder_layers),
        ("head", choice.head, config.heads),
    ):
        if number is not None and not 0 <= number < count:
            raise UserError(f"--{name}: expected 0 to {count - 1} for this model, got {number}")


def cross_attention(
    member: Member,
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    *,
    multiple: int,
    device: torch.device | str,
) -> list[Tensor]:
    """Weights [L, H, T, S] of each pair (both sides with EOS), without padding."""
    source, visible = pad(sources, multiple=multiple, device=device)
    output, _ = pad(targets, multiple=multiple, device=device)
    start = output.new_full((len(targets), 1), BOS)
    seen: dict[int, Tensor] = {}

    def observer(site: Site, weights: Tensor, _visible: Tensor) -> None:
        if site.type == "cross":
            seen[site.layer] = weights

    with observe_attention(member.model, observer):
        member.model(source, visible, torch.cat([start, output[:, :-1]], dim=1))
    layers = torch.stack([seen[layer] for layer in sorted(seen)], dim=1)  # [B, L, H, T, S]
    return [
        layers[row, :, :, : len(target), : len(source_ids)].float().cpu()
        for row, (source_ids, target) in enumerate(zip(sources, targets, strict=True))
    ]


def link_words(
    weights: Tensor,
    choice: AlignmentHead,
    *,
    source_words: Sequence[int],
    target_words: Sequence[int],
) -> Links:
    """Each target word with the source word of most weight; none where all weights are 0.

    `weights` is [L, H, T, S]; the words of the pieces, without end token, are given. The weight of
    a source word is the sum over its pieces, that of a target word the mean over its pieces.
    """
    if not source_words or not target_words:
        return ()
    layer = (weights.shape[0] - 1) // 2 if choice.layer is None else choice.layer
    pieces = weights[layer].mean(dim=0) if choice.head is None else weights[layer, choice.head]
    pieces = pieces[1:] if choice.shifted else pieces[:-1]
    pieces = pieces[: len(target_words), : len(source_words)]
    # Links compare sums of weights, so the order of additions should not matter: float64.
    by_source = pieces.new_zeros(len(target_words), max(source_words) + 1, dtype=torch.float64)
    by_source.index_add_(1, torch.tensor(source_words), pieces.double())
    by_word = by_source.new_zeros(max(target_words) + 1, by_source.shape[1])
    by_word.index_add_(0, torch.tensor(target_words), by_source)
    by_word /= torch.tensor(target_words).bincount()[:, None].clamp(min=1)
    most, word = by_word.max(dim=1)
    return tuple(
        (source, target)
        for target, (source, weight) in enumerate(zip(word.tolist(), most.tolist(), strict=True))
        if weight > 0.0
    )
