"""The log probability that models give to known translations: one pass, no search."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from nmt.decoding.batching import LENGTH_MULTIPLE, compute_by_halves, length_batches
from nmt.decoding.devices import release_memory
from nmt.decoding.ensemble import (
    Ids,
    Member,
    target_log_probabilities,
)
from nmt.decoding.observation import attention_of, observed_attention
from nmt.decoding.translation import Failure, PairScore


@torch.inference_mode()
def score(
    members: Sequence[Member],
    sources: Sequence[Sequence[Ids]],
    targets: Sequence[Ids],
    *,
    batch_tokens: int,
    attention: Sequence[str] = (),
    device: torch.device | str = "cpu",
) -> list[PairScore]:
    """Scores in the order of the pairs; sources[i] holds pair i for each member, all with EOS.

    `attention` names types of the first member's attention, which is observed in a second pass, so
    that it changes no score. The models have to be in evaluation mode.
    """
    lengths = [
        max(len(target), *map(len, source)) for source, target in zip(sources, targets, strict=True)
    ]
    results: dict[int, PairScore] = {}

    def compute(batch: Sequence[int]) -> list[PairScore]:
        rows = target_log_probabilities(
            members,
            [[sources[pair][index] for pair in batch] for index in range(len(members))],
            [targets[pair] for pair in batch],
            multiple=LENGTH_MULTIPLE,
            device=device,
        ).tolist()
        scores = [
            pair_score(row[: len(targets[pair])]) for pair, row in zip(batch, rows, strict=True)
        ]
        if not attention:
            return scores
        first = [sources[pair][0] for pair in batch]
        outputs = [targets[pair] for pair in batch]
        seen = observed_attention(
            members[0], first, outputs, types=attention, multiple=LENGTH_MULTIPLE, device=device
        )
        codec = members[0].codec
        return [
            replace(pair, attention=attention_of(codec, source, target, weights))
            for pair, source, target, weights in zip(scores, first, outputs, seen, strict=True)
        ]

    for batch in length_batches(lengths, batch_tokens=batch_tokens, multiple=LENGTH_MULTIPLE):
        found = compute_by_halves(
            batch,
            compute,
            lambda _pair: PairScore((), failure=Failure.OUT_OF_MEMORY),
            release_memory,
        )
        results.update(zip(batch, found, strict=True))
    return [results[pair] for pair in range(len(targets))]


def pair_score(tokens: Sequence[float]) -> PairScore:
    """The score of a target whose subwords have these log probabilities."""
    finite = all(map(math.isfinite, tokens))
    return PairScore(tuple(tokens), failure=None if finite else Failure.NON_FINITE)
