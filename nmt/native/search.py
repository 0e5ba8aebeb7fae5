"""The kernels of search: normalizing logits, and the best continuations of a beam."""

import ctypes
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from nmt.native.library import pointer


class _Candidates(ctypes.Structure):
    _fields_ = (("parents", c_void_p), ("tokens", c_void_p), ("scores", c_void_p))


def normalize(kernels: ctypes.CDLL, rows: Tensor) -> tuple[Tensor, int]:
    """The log of the sum of exponentials [R] of rows [R, V], and how many cannot be trusted."""
    normalizer = rows.new_empty(len(rows))
    beyond = kernels.normalize(
        pointer(rows),
        c_int64(rows.shape[0]),
        c_int64(rows.shape[1]),
        pointer(normalizer),
        c_int64(torch.get_num_threads()),
    )
    return normalizer, int(beyond)


def choose_beam(
    kernels: ctypes.CDLL, logits: Tensor, normalizer: Tensor, scores: Tensor, beam: int, end: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Parents, tokens and scores [B, beam] of the candidates that end, and of those that do not."""
    batch, width, vocabulary = logits.shape
    made = [
        (
            torch.empty(batch, beam, dtype=torch.int64),
            torch.empty(batch, beam, dtype=torch.int64),
            torch.empty(batch, beam, dtype=torch.float64),
        )
        for _ in range(2)
    ]
    finished, live = (_Candidates(*map(pointer, tensors)) for tensors in made)
    kernels.choose_beam(
        pointer(logits),
        pointer(normalizer),
        pointer(scores),
        c_int64(batch),
        c_int64(width),
        c_int64(vocabulary),
        c_int64(beam),
        c_int64(end),
        ctypes.byref(finished),
        ctypes.byref(live),
        c_int64(torch.get_num_threads()),
    )
    return made[0], made[1]
