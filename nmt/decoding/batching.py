"""Batches: sentences of similar length, so that little is padding, and as many as memory allows."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from nmt.config.search_options import SearchOptions
from nmt.errors import is_out_of_memory

# Source lengths are padded to a multiple of this: attention over keys gives the same bits with more
# padding only then.
LENGTH_MULTIPLE = 16

Item = TypeVar("Item")
Result = TypeVar("Result")


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `number`."""
    return -(-number // multiple) * multiple


def length_multiple(options: SearchOptions) -> int:
    """The number of which padded source lengths are multiples."""
    return 1 if options.fast else LENGTH_MULTIPLE


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


def compute_by_halves(
    batch: Sequence[Item],
    compute: Callable[[Sequence[Item]], list[Result]],
    too_large: Callable[[Item], Result],
    on_halving: Callable[[int], object] = bool,
) -> list[Result]:
    """`compute` of a batch, or of its halves when memory does not suffice.

    An item that does not fit by itself has the result `too_large`. `on_halving` is told the size
    of a batch before it is halved.
    """
    try:
        return compute(batch)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    if len(batch) == 1:
        return [too_large(batch[0])]
    on_halving(len(batch))
    half = len(batch) // 2
    return [
        *compute_by_halves(batch[:half], compute, too_large, on_halving),
        *compute_by_halves(batch[half:], compute, too_large, on_halving),
    ]
