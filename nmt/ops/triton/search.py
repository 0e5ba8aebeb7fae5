"""The operations of a search step by kernels, as operators of torch.

Shapes: B sentences, K hypotheses of a sentence, V vocabulary, R = B K rows.
"""

import torch
import triton
from torch import Tensor

from nmt.ops.triton import search_kernels as kernels
from nmt.ops.triton.rows import LOGITS_PER_TILE

SLOTS = 1024  # into which the tokens of a vocabulary are dealt out


@torch.library.custom_op("nmt::normalize_logits_", mutates_args=("logits",))
def normalize_(logits: Tensor) -> Tensor:
    """The log of the sum of exponentials [R] of logits [R, V]; NaN and infinity become -inf."""
    rows, vocabulary = logits.shape
    normalizer = torch.empty(rows, dtype=torch.float32, device=logits.device)
    size = min(LOGITS_PER_TILE, triton.next_power_of_2(vocabulary))
    kernels.normalize_kernel[(rows,)](logits, normalizer, vocabulary, N=size, num_warps=8)
    return normalizer


@normalize_.register_fake
def _(logits):  # type: ignore[no-untyped-def]
    return logits.new_empty(logits.shape[0])


@torch.library.custom_op("nmt::choose_beam", mutates_args=())
def choose_beam(
    logits: Tensor, normalizer: Tensor, scores: Tensor, beam: int, end: int
) -> list[Tensor]:
    """Parents, tokens and scores [2, B, beam] of candidates that end, and of those that live on.

    Logits are [B, K, V], normalizer and scores [B, K].
    """
    sentences, width, vocabulary = logits.shape
    count = min(beam + 1, vocabulary)  # at most one token of a hypothesis ends it
    slots = min(SLOTS, triton.next_power_of_2(vocabulary))
    depth = triton.next_power_of_2(triton.cdiv(vocabulary, slots))
    values = logits.new_empty(sentences, width, count)
    tokens = torch.empty_like(values, dtype=torch.int64)
    kernels.best_tokens_kernel[(sentences * width,)](
        *(logits, values, tokens, vocabulary), COUNT=count, SLOTS=slots, DEPTH=depth, num_warps=4
    )
    chosen = [logits.new_empty(2, sentences, beam, dtype=torch.int64) for _ in range(2)]
    totals = logits.new_empty(2, sentences, beam, dtype=torch.float64)
    kernels.choose_beam_kernel[(sentences,)](
        *(values, tokens, normalizer, scores, *chosen, totals, end),
        WIDTH=width,
        COUNT=count,
        BEAM=beam,
        N=triton.next_power_of_2(width * count),
        num_warps=1,
    )
    return [*chosen, totals]


@choose_beam.register_fake
def _(logits, normalizer, scores, beam, end):  # type: ignore[no-untyped-def]
    chosen = [logits.new_empty(2, logits.shape[0], beam, dtype=torch.int64) for _ in range(2)]
    return [*chosen, logits.new_empty(2, logits.shape[0], beam, dtype=torch.float64)]
