"""The last product of a sublayer with the norms around it in one launch, for decoding."""

import triton
import triton.language as tl

from nmt.ops.triton.numerics import product


@triton.jit
def load_matrix(base, rows, columns, row_count, WIDTH: tl.constexpr, FULL: tl.constexpr):
    """Elements [M, N] of a matrix [row_count, WIDTH]; 0 outside. FULL: all columns are inside."""
    inside = (rows < row_count)[:, None]
    if not FULL:
        inside = inside & (columns < WIDTH)[None, :]
    place = rows[:, None].to(tl.int64) * WIDTH + columns[None, :]
    return tl.load(base + place, inside, other=0.0)


@triton.jit
def load_vector(base, columns, WIDTH: tl.constexpr):
    """Elements [N] of a vector in float32; 0 beyond WIDTH."""
    return tl.load(base + columns, columns < WIDTH, other=0.0).to(tl.float32)


@triton.jit
def multiply_part(
    X, WEIGHT, HEAD_GAIN, HEAD_GATE, rows, columns, row_count, part,
    K: tl.constexpr, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr, DEPTH: tl.constexpr,
    PARTS: tl.constexpr, NORMED: tl.constexpr, GATED: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """A part of x weight^T [M, N] along K, and of the sum of squares of x [M].

    With NORMED, x is taken times the gain and the sigmoid of its norm; 1 / rms(x) is a factor of a
    whole row and comes after the product.
    """
    total, squares = tl.zeros([M, N], tl.float32), tl.zeros([M], tl.float32)
    LENGTH: tl.constexpr = (K + PARTS * DEPTH - 1) // (PARTS * DEPTH) * DEPTH
    FULL: tl.constexpr = K % (PARTS * DEPTH) == 0
    for first in range(0, LENGTH, DEPTH):
        inner = part * LENGTH + first + tl.arange(0, DEPTH)
        x = load_matrix(X, rows, inner, row_count, K, FULL)
        weight = load_matrix(WEIGHT, columns, inner, D, K, FULL)
        if NORMED:
            z = x.to(tl.float32)
            squares += tl.sum(z * z, 1)
            y = z * load_vector(HEAD_GAIN, inner, K)[None, :]
            if GATED:
                y *= tl.sigmoid(z * load_vector(HEAD_GATE, inner, K)[None, :])
            x = y.to(x.dtype)
        total += product(x, tl.trans(weight), IEEE)
    return total, squares


@triton.jit
def norm_rows(
    SUMS, SQUARES, X_BIAS, RESIDUAL, GAIN, BIAS, Y, rows, row_count, epsilon, head_epsilon,
    K: tl.constexpr, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr, PARTS: tl.constexpr,
    NORMED: tl.constexpr,
):  # fmt: skip
    """y = LayerNorm(residual + bias + the sum of all parts of a product) for rows [R]."""
    columns = tl.arange(0, W)
    total, squares = tl.zeros([R, W], tl.float32), tl.zeros([R], tl.float32)
    for part in tl.static_range(PARTS):
        first = tl.cast(part, tl.int64) * row_count
        total += load_matrix(SUMS + first * D, rows, columns, row_count, D, W == D)
        if NORMED:
            squares += tl.load(SQUARES + first + rows, rows < row_count, other=0.0)
    if NORMED:
        total *= (1.0 / tl.sqrt(squares / K + head_epsilon))[:, None]
    total += load_vector(X_BIAS, columns, D)[None, :]
    total += load_matrix(RESIDUAL, rows, columns, row_count, D, W == D).to(tl.float32)
    mean = tl.sum(total, 1) / D
    centred = tl.where((columns < D)[None, :], total - mean[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / D + epsilon)
    y = centred * scale[:, None] * load_vector(GAIN, columns, D)[None, :]
    y += load_vector(BIAS, columns, D)[None, :]
    inside = (rows < row_count)[:, None] & (columns < D)[None, :]
    place = rows[:, None].to(tl.int64) * D + columns[None, :]
    tl.store(Y + place, y.to(Y.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["row_count"])
def product_norm_kernel(
    X, WEIGHT, X_BIAS, RESIDUAL, GAIN, BIAS, HEAD_GAIN, HEAD_GATE, SUMS, SQUARES, ARRIVED, Y,
    row_count, epsilon, head_epsilon,
    K: tl.constexpr, D: tl.constexpr, W: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    DEPTH: tl.constexpr, PARTS: tl.constexpr, R: tl.constexpr,
    NORMED: tl.constexpr, GATED: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """y = LayerNorm(residual + norm(x) weight^T + bias) for x [rows, K] and weight [D, K].

    A program multiplies M rows with N columns along a part of K and leaves its sums in memory. The
    last one to arrive at a counter of these rows finds all of their sums there and norms the rows.
    No program waits for another, so that the order in which they run does not matter.
    """
    block, part = tl.program_id(0), tl.program_id(2)
    rows = block * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    total, squares = multiply_part(
        X, WEIGHT, HEAD_GAIN, HEAD_GATE, rows, columns, row_count, part,
        K, D, M, N, DEPTH, PARTS, NORMED, GATED, IEEE,
    )  # fmt: skip
    first = part.to(tl.int64) * row_count
    inside = (rows < row_count)[:, None] & (columns < D)[None, :]
    tl.store(SUMS + (first + rows)[:, None] * D + columns[None, :], total, inside)
    if NORMED:
        is_first = tl.program_id(1) == 0
        tl.store(SQUARES + first + rows, squares, (rows < row_count) & is_first)
    tl.debug_barrier()  # all threads have stored before one of them releases the sums
    before = tl.atomic_add(ARRIVED + block, 1, sem="acq_rel", scope="gpu")
    if before == tl.num_programs(1) * PARTS - 1:
        tl.store(ARRIVED + block, 0)  # for the next launch
        for start in range(0, tl.minimum(M, row_count - block * M), R):
            norm_rows(
                SUMS, SQUARES, X_BIAS, RESIDUAL, GAIN, BIAS, Y,
                block * M + start + tl.arange(0, R), row_count, epsilon, head_epsilon,
                K, D, W, R, PARTS, NORMED,
            )  # fmt: skip
