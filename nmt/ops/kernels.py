"""Why the kernels in C cannot compute a call."""

from functools import cache

import torch
from torch import Tensor

from nmt.ops.backend import Costly
from nmt.ops.native import library


@cache
def missing_kernels() -> Costly | None:
    """Why there are no kernels in this process, or None."""
    if library.load() is not None:
        return None
    return Costly(
        "the kernels in C cannot be used: they were not built, or not for this processor. torch "
        "computes instead, which takes 1.5 to 2 times as long in training and longer in "
        "translation. On Linux on x86-64 with AVX2, install the wheel for manylinux; there and "
        "on aarch64, you can install gcc and then this package again"
    )


def native_refusal(*tensors: Tensor | None) -> str | None:
    """Why the kernels cannot compute with these tensors here, or None."""
    if torch.compiler.is_compiling():
        return "torch.compile cannot see into C"
    for tensor in tensors:
        if tensor is not None and (tensor.dtype is not torch.float32 or not tensor.is_cpu):
            return f"expected float32 on a CPU, got {tensor.dtype} on {tensor.device}"
    if torch.is_autocast_enabled("cpu"):
        return "autocast computes in half precision"
    return missing_kernels()
