"""Sentences of similar length go together, so that little of a batch is padding."""

from collections.abc import Sequence

from nmt.decoding.ensemble import round_up


def length_batches(lengths: Sequence[int], *, batch_tokens: int, multiple: int) -> list[list[int]]:
    """Positions of sentences, longest first, in batches.

    Sentences times the longest (rounded up to a multiple) are at most `batch_tokens`; a sentence
    that is longer by itself is a batch of its own.
    """
    order = sorted(range(len(lengths)), key=lambda position: (-lengths[position], position))
    batches: list[list[int]] = []
    longest = 0
    for position in order:
        if not batches or (len(batches[-1]) + 1) * longest > batch_tokens:
            batches.append([])
            longest = round_up(lengths[position], multiple)
        batches[-1].append(position)
    return batches
