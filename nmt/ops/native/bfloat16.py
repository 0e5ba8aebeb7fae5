"""Products of matrices in bfloat16 on processors with AVX512_BF16; all sums are in float32.

N rows, K inner side, M columns. Tensors are on the CPU and contiguous.
"""

import ctypes
from functools import cache

import torch
from torch import Tensor

from nmt.ops.dropout import DropoutMask
from nmt.ops.native import library
from nmt.ops.native.interface import RoundedResult
from nmt.ops.native.library import kernels
from nmt.ops.native.tensors import address, optional_address
from nmt.ops.native.training import dropout_fields

BFLOAT16 = torch.bfloat16
INSTRUCTIONS = "avx512_bf16"  # in the words of Linux


@cache
def has_instructions() -> bool:
    """Whether the processor multiplies in bfloat16."""
    return INSTRUCTIONS in library.processor_flags()


@cache
def missing_products() -> str | None:
    """Why there are no products in bfloat16 in this process, or None."""
    if not has_instructions():
        return "the processor has no AVX512_BF16"
    found = library.load()
    if found is None or not found.has_bfloat16_products():
        return "the kernels in C for AVX-512 are not there"
    return None


def round_rows(x: Tensor) -> Tensor:
    """x [N, K] in bfloat16."""
    if x.dtype == BFLOAT16:
        return x
    rounded = torch.empty(x.shape, dtype=BFLOAT16)
    kernels().round_to_bfloat16(
        address(x), x.numel(), address(rounded, dtype=BFLOAT16), torch.get_num_threads()
    )
    return rounded


def work_space(inner: int, columns: int) -> Tensor:
    """Memory for a product to work in."""
    size = kernels().pairs_size(inner, columns, torch.get_num_threads())
    return torch.empty(size, dtype=BFLOAT16)


def multiply(
    left: Tensor,
    right: Tensor,
    *,
    transposed: bool = False,
    rounded: bool = False,
    out: Tensor | None = None,
    scale: float = 1.0,
    relu: bool = False,
    bias: Tensor | None = None,
    where: Tensor | None = None,
    mask: DropoutMask | None = None,
) -> Tensor:
    """left [N, K] times right [K, M], or `transposed` [M, K]; then scale, bias, ReLU, dropout.

    The result is in float32, or `rounded` to bfloat16. It is 0 where `where` [N, M] is not above 0.
    """
    rows, inner = left.shape
    columns = right.shape[0 if transposed else 1]
    dtype = BFLOAT16 if rounded else torch.float32
    result = torch.empty(rows, columns, dtype=dtype) if out is None else out
    place = address(result, (rows, columns), dtype)
    fields = RoundedResult(
        *((None, place) if rounded else (place, None)),
        columns,
        scale,
        *(False, relu),
        optional_address(bias, (columns,)),
        optional_address(where, (rows, columns), BFLOAT16),
        *dropout_fields(mask, rows * columns),
    )
    space = work_space(inner, columns)
    kernels().multiply_bfloat16(
        address(left, dtype=BFLOAT16),
        address(right, (columns, inner) if transposed else (inner, columns), BFLOAT16),
        int(transposed),
        *(rows, inner),
        ctypes.byref(fields),
        address(space, dtype=BFLOAT16),
        torch.get_num_threads(),
    )
    return result


def weight_gradient(
    grad_output: Tensor, x: Tensor, *, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """grad_output^T x [M, K] for grad_output [N, M] and x [N, K], and the sums [M] over N.

    These are the gradients of the weight and the bias of a layer, in float32. The first is added
    to `out` where that is given.
    """
    rows, columns = grad_output.shape
    width = x.shape[1]
    result = torch.empty(columns, width) if out is None else out
    sums = torch.empty(columns)
    fields = RoundedResult(
        address(result, (columns, width)),
        None,
        width,
        1.0,
        *(out is not None, False),
        *(None, None),
        *dropout_fields(None, 0),
    )
    space = work_space(rows, width)
    kernels().multiply_transposed_bfloat16(
        address(grad_output, dtype=BFLOAT16),
        address(x, (rows, width), BFLOAT16),
        *(columns, rows),
        ctypes.byref(fields),
        address(sums),
        address(space, dtype=BFLOAT16),
        torch.get_num_threads(),
    )
    return result, sums
