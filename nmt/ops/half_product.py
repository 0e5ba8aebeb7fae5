"""The product of two matrices in half precision, by torch."""

import torch
from torch import Tensor

HALF_PRECISION = (torch.float16, torch.bfloat16)
HALF_PRECISION_SCALE = 1024.0  # keeps small gradients of the logits representable in float16


def product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """left right in `dtype`, summed in float32, for matrices in half precision."""
    if not left.is_cuda:
        return torch.mm(left.float(), right.float()).to(dtype)
    if dtype == left.dtype:
        return torch.mm(left, right)
    return torch.mm(left, right, out_dtype=dtype)


def add_product_(total: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Add left right to `total`, which is in their type or, if they are halves, in float32."""
    if total.dtype == left.dtype:
        return total.addmm_(left, right)
    if not left.is_cuda:
        return total.add_(product(left, right, total.dtype))
    return torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
