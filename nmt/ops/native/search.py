"""The kernels of search: normalizing logits, and the best continuations of a beam."""

import ctypes

import torch
from torch import Tensor

from nmt.ops.native import interface
from nmt.ops.native.tensors import address


def normalize(kernels: ctypes.CDLL, logits: Tensor) -> Tensor:
    """The log of the sum of exponentials [B, K] of logits [B, K, V].

    Numbers that are not finite may be overwritten by -inf.
    """
    normalizer = logits.new_empty(logits.shape[:2])
    kernels.normalize(
        address(logits),
        logits.shape[0] * logits.shape[1],
        logits.shape[2],
        address(normalizer),
        torch.get_num_threads(),
    )
    return normalizer


def choose_beam(
    kernels: ctypes.CDLL, logits: Tensor, normalizer: Tensor, scores: Tensor, beam: int, end: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Parents, tokens and scores [B, beam] of the candidates that end, and of those that do not."""
    batch, width, vocabulary = logits.shape
    if not 1 <= beam <= kernels.most_beam():
        raise ValueError(f"expected a beam from 1 to {kernels.most_beam()}, got {beam}")
    made = [
        (
            torch.empty(batch, beam, dtype=torch.int64),
            torch.empty(batch, beam, dtype=torch.int64),
            torch.empty(batch, beam, dtype=torch.float64),
        )
        for _ in range(2)
    ]
    finished, live = (
        interface.CandidateArrays(*(tensor.data_ptr() for tensor in tensors)) for tensors in made
    )
    kernels.choose_beam(
        address(logits),
        address(normalizer, (batch, width)),
        address(scores, (batch, width), torch.float64),
        *(batch, width, vocabulary, beam, end),
        ctypes.byref(finished),
        ctypes.byref(live),
        torch.get_num_threads(),
    )
    return made[0], made[1]
