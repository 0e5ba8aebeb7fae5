"""The addresses of torch's tensors, for the kernels."""

from collections.abc import Sequence

import torch
from torch import Tensor


def address(
    tensor: Tensor, shape: Sequence[int] | None = None, dtype: torch.dtype = torch.float32
) -> int:
    """The address of a tensor, after a check that it is what a kernel will take it for."""
    if tensor.dtype != dtype or not tensor.is_contiguous() or not tensor.is_cpu:
        raise ValueError(
            f"expected a contiguous tensor of {dtype} on the CPU, got one of {tensor.dtype} on "
            f"{tensor.device} with strides {tensor.stride()}"
        )
    if shape is not None and tensor.shape != shape:
        raise ValueError(f"expected a tensor of shape {tuple(shape)}, got {tuple(tensor.shape)}")
    return tensor.data_ptr()


def optional_address(
    tensor: Tensor | None, shape: Sequence[int] | None = None, dtype: torch.dtype = torch.float32
) -> int | None:
    """The address of a checked tensor, or None where there is no tensor."""
    return None if tensor is None else address(tensor, shape, dtype)
