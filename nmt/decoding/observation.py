"""Word alignments and attention of given outputs, observed while the model reads them once more.

Shapes: L decoder layers, H heads, T target positions, S source positions, both with the end token
last.
"""

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from nmt.config.config import AttentionTypesConfig
from nmt.data.codec import Codec
from nmt.decoding.alignment import (
    AlignmentHead,
    Attention,
    Links,
    links_of,
    merge_subwords,
    strongest,
)
from nmt.decoding.ensemble import Ids, Member, decoder_input, pad
from nmt.errors import UserError
from nmt.model.observe import Site, observe_attention


def observed_attention(
    member: Member,
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    *,
    types: Collection[str],
    multiple: int,
    device: torch.device | str,
) -> list[dict[str, Tensor]]:
    """By type the weights [L, H, Q, K] of each pair (both sides with EOS), without padding."""
    known = AttentionTypesConfig.shorthand
    if unknown := [one for one in types if one not in known]:
        raise UserError(f"attention: expected types of {', '.join(known)}, got {unknown[0]!r}")
    source, visible = pad(sources, multiple=multiple, device=device)
    output, _ = pad(targets, multiple=multiple, device=device)
    seen: dict[str, dict[int, Tensor]] = {type_: {} for type_ in types}

    def observer(site: Site, weights: Tensor, _visible: Tensor) -> None:
        if site.type in seen:
            seen[site.type][site.layer] = weights

    with observe_attention(member.model, observer):
        member.model(source, visible, decoder_input(output))
    stacked = {  # [B, L, H, Q, K]
        type_: torch.stack([layers[layer] for layer in sorted(layers)], dim=1)
        for type_, layers in seen.items()
    }
    results = []
    for row, (source_ids, target) in enumerate(zip(sources, targets, strict=True)):
        lengths = {
            "encoder_self": (len(source_ids), len(source_ids)),
            "decoder_self": (len(target), len(target)),
            "cross": (len(target), len(source_ids)),
        }
        results.append(
            {
                type_: weights[row, :, :, : lengths[type_][0], : lengths[type_][1]].float().cpu()
                for type_, weights in stacked.items()
            }
        )
    return results


def attention_of(
    codec: Codec, source: Ids, target: Ids, weights: Mapping[str, Tensor]
) -> Attention:
    """The observed weights of a pair of token ids, both with EOS."""
    return Attention(
        tuple(map(codec.source.vocabulary.piece, source)),
        tuple(map(codec.target.vocabulary.piece, target)),
        {type_: tensor.numpy() for type_, tensor in weights.items()},
    )


def link_words(
    weights: Tensor,
    choice: AlignmentHead,
    *,
    source_words: Sequence[int],
    target_words: Sequence[int],
) -> Links:
    """The links of one head, sorted by target word, from weights [L, H, T, S].

    `source_words` and `target_words` give the word of each subword, without the end token.
    """
    layer = (weights.shape[0] - 1) // 2 if choice.layer is None else choice.layer
    pieces = weights[layer].mean(dim=0) if choice.head is None else weights[layer, choice.head]
    pieces = pieces[1:] if choice.shifted else pieces[:-1]
    merged = merge_subwords(
        pieces[: len(target_words), : len(source_words)].numpy(),
        source_words=source_words,
        target_words=target_words,
        num_source_words=max(source_words, default=-1) + 1,
        num_target_words=max(target_words, default=-1) + 1,
    )
    return links_of(strongest(merged))
