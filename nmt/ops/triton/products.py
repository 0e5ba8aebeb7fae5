"""The last product of a sublayer with the norms around it, as an operator of torch.

Shapes: N rows, K inputs and D outputs of a layer.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from nmt.ops.cuda_device import tf32_is_on
from nmt.ops.triton import product_kernels as kernels
from nmt.ops.triton.attention import MOST_REGISTERS, power_of_two

ENOUGH_PROGRAMS = 108  # one for each multiprocessor of an A100
COLUMNS = 64  # of a tile
LEAST_PART = 256  # inputs that a program multiplies, if the inputs are divided
MOST_SUMMED = 128  # rows times parts that the last program adds up by itself
STEP_BYTES = 128  # of a row of a tile that are loaded at a time
NORMED_AT_ONCE = 1 << 13  # numbers of whole rows in the registers of a program, in up to 4 parts
HEAD_EPSILON = 1e-8  # as in head_norm.py
RUN = {"num_warps": 8, "num_stages": 4, "maxnreg": MOST_REGISTERS}


class ProductTiles(NamedTuple):
    """How a product is divided among programs."""

    rows: int
    columns: int
    parts: int  # into which the inputs are divided


def choose_tiles(rows: int, inputs: int, outputs: int) -> ProductTiles:
    """Tiles that give all multiprocessors something to do, also where rows are few."""
    tile = 16 if rows <= 16 else 32 if rows <= 128 else 64
    columns = min(COLUMNS, power_of_two(outputs))
    programs, parts = triton.cdiv(rows, tile) * triton.cdiv(outputs, columns), 1
    while (
        programs * parts < ENOUGH_PROGRAMS
        and 2 * parts * tile <= MOST_SUMMED
        and 2 * parts * LEAST_PART <= inputs
    ):
        parts *= 2
    return ProductTiles(tile, columns, parts)


def kernel_constants(rows: int, inputs: int, outputs: int, element_size: int) -> dict[str, int]:
    """The sizes that the kernel is built for."""
    tiles, width = choose_tiles(rows, inputs, outputs), power_of_two(outputs)
    normed = NORMED_AT_ONCE // (width * max(1, tiles.parts // 4))
    return {
        "K": inputs,
        "D": outputs,
        "W": width,
        "M": tiles.rows,
        "N": tiles.columns,
        "DEPTH": STEP_BYTES // element_size,
        "PARTS": tiles.parts,
        "R": min(tiles.rows, normed),
    }


def cache_bytes(rows: int, inputs: int, outputs: int, element_size: int) -> int:
    """Bytes through the L2 cache: tiles are read by many programs, sums are written and read."""
    tiles = choose_tiles(rows, inputs, outputs)
    read = triton.cdiv(rows, tiles.rows) * outputs + triton.cdiv(outputs, tiles.columns) * rows
    sums = 2 * tiles.parts * rows * outputs * 4
    return int(read) * inputs * element_size + sums


@cache
def counters(device: torch.device, _stream: int, count: int) -> Tensor:
    """Counters [count] that every launch leaves at 0, for one stream of a device."""
    return torch.zeros(count, dtype=torch.int32, device=device)


def current_stream(device: torch.device) -> int:
    """The stream that kernels are launched on; 0 on a CPU."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


@torch.library.custom_op("nmt::product_norm", mutates_args=())
def product_norm(
    x: Tensor,
    weight: Tensor,
    x_bias: Tensor,
    residual: Tensor,
    gain: Tensor,
    bias: Tensor,
    head_gain: Tensor | None,
    head_gate: Tensor | None,
    epsilon: float,
) -> Tensor:
    """LayerNorm(residual + z weight^T + x_bias) for x [N, K] and residual [N, D].

    z is sigmoid(head_gate x) head_gain x / rms(x), or x without a head_gain.
    """
    (rows, inputs), outputs = x.shape, len(weight)
    tiles = choose_tiles(rows, inputs, outputs)
    blocks = triton.cdiv(rows, tiles.rows)
    sums = torch.empty(tiles.parts, rows, outputs, dtype=torch.float32, device=x.device)
    squares = sums.new_empty(tiles.parts, rows)
    arrived = counters(x.device, current_stream(x.device), power_of_two(blocks))
    output = torch.empty_like(residual)
    kernels.product_norm_kernel[(blocks, triton.cdiv(outputs, tiles.columns), tiles.parts)](
        *(x, weight, x_bias, residual, gain, bias),
        *(gain if head_gain is None else head_gain, gain if head_gate is None else head_gate),
        *(sums, squares, arrived, output, rows, epsilon, HEAD_EPSILON),
        **kernel_constants(rows, inputs, outputs, x.element_size()),
        NORMED=head_gain is not None,
        GATED=head_gate is not None,
        IEEE=x.dtype == torch.float32 and not tf32_is_on(),
        **RUN,
    )
    return output


@product_norm.register_fake
def _(x, weight, x_bias, residual, gain, bias, head_gain, head_gate, epsilon):  # type: ignore[no-untyped-def]
    return torch.empty_like(residual)
