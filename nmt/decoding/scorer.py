"""The log probability that models give to known translations: one pass, no search."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from nmt.config.search_options import DecodeConfig
from nmt.decoding.alignment import Attention, observed_attention
from nmt.decoding.batching import compute_by_halves, length_batches
from nmt.decoding.ensemble import (
    LENGTH_MULTIPLE,
    Ids,
    Member,
    target_log_probabilities,
)
from nmt.decoding.translation import Failure


@dataclass(frozen=True)
class PairScore:
    """The log probability of a target, given its source."""

    tokens: tuple[float, ...]  # log probability of each subword, the end token last
    num_dropped: int = 0  # subwords cut off at the end of an over-long source
    failure: Failure | None = None  # why the score is of no use
    attention: Attention | None = None  # when asked for

    @property
    def log_probability(self) -> float:
        """The log probability of the whole target."""
        return sum(self.tokens)

    def score(self, options: DecodeConfig) -> float:
        """The score that search would have reported with these options."""
        return self.log_probability / options.divisor(len(self.tokens))


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
            replace(pair, attention=Attention.of(codec, source, target, weights))
            for pair, source, target, weights in zip(scores, first, outputs, seen, strict=True)
        ]

    for batch in length_batches(lengths, batch_tokens=batch_tokens, multiple=LENGTH_MULTIPLE):
        found = compute_by_halves(
            batch, compute, lambda _pair: PairScore((), failure=Failure.OUT_OF_MEMORY)
        )
        results.update(zip(batch, found, strict=True))
    return [results[pair] for pair in range(len(targets))]


def pair_score(tokens: Sequence[float]) -> PairScore:
    """The score of a target whose subwords have these log probabilities."""
    finite = all(map(math.isfinite, tokens))
    return PairScore(tuple(tokens), failure=None if finite else Failure.NON_FINITE)
