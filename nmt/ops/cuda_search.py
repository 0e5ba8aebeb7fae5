"""The operations of a search step in Triton, for CUDA devices. B, K, V as in beam.py."""

import torch
from torch import Tensor

from nmt.ops.cuda import triton_refusal

MOST_CANDIDATES = 4096  # of a sentence, that one program holds


def refuses_logits(logits: Tensor) -> str | None:
    """Why the kernels cannot take logits [B, K, V], or None."""
    if logits.dtype is not torch.float32 or not logits.is_contiguous():
        return f"expected contiguous logits in float32, got {logits.dtype}"
    return triton_refusal(logits)


def normalize(logits: Tensor) -> Tensor:
    """The normalizers [B, K] in one pass over the logits."""
    from nmt.ops.triton import search

    normalizer: Tensor = search.normalize_(logits.flatten(0, 1))
    return normalizer.view(logits.shape[:2])


def refuses_beam(logits: Tensor, *_scores: Tensor, beam: int, **_options: int) -> str | None:
    """Why the kernels cannot choose a beam, or None."""
    candidates = logits.shape[1] * (beam + 1)
    if candidates > MOST_CANDIDATES:
        return f"expected at most {MOST_CANDIDATES} candidates of a sentence, got {candidates}"
    return refuses_logits(logits)


def choose_beam(
    logits: Tensor, normalizer: Tensor, scores: Tensor, *, beam: int, end: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Parents, tokens and scores [B, beam] of what ends and of what lives on, in two launches."""
    from nmt.ops.triton import search

    parts = search.choose_beam(logits, normalizer.contiguous(), scores.contiguous(), beam, end)
    finished, live = zip(*(part.unbind(0) for part in parts), strict=True)
    return finished, live
