"""Kernels that work on rows: norms with what comes before or after them, entmax, and the loss.

Sums over rows (gradients of gains, gates and biases) are made in parts: each program adds up the
rows of its part in their order, so that the result does not depend on which one ends first.
"""

import triton
import triton.language as tl

from nmt.ops.triton.mappings import TINY, beta_slope, weigh
from nmt.ops.triton.numerics import random_bits
from nmt.ops.triton.row_search import find_inner
from nmt.ops.triton.tiles import NO_MASK


@triton.jit
def load_row(base, row, D: tl.constexpr, W: tl.constexpr):
    """A row [W] of a matrix with D columns in float32; 0 beyond D."""
    column = tl.arange(0, W)
    return tl.load(base + tl.cast(row, tl.int64) * D + column, column < D, other=0.0).to(tl.float32)


@triton.jit
def store_row(base, row, x, D: tl.constexpr, W: tl.constexpr):
    """Write a row [W] of a matrix with D columns."""
    column = tl.arange(0, W)
    tl.store(base + tl.cast(row, tl.int64) * D + column, x.to(base.dtype.element_ty), column < D)


@triton.jit
def load_heads(base, row, D: tl.constexpr, W: tl.constexpr):
    """A row of concatenated heads; sums that left float16's range count as its limit."""
    z = load_row(base, row, D, W)
    if base.dtype.element_ty == tl.float16:
        z = tl.where(z > 65504.0, 65504.0, tl.where(z < -65504.0, -65504.0, z))
    return z


@triton.jit
def gated_norm_kernel(
    Z, GAIN, GATE, Y, SCALE, epsilon, D: tl.constexpr, W: tl.constexpr, GATED: tl.constexpr
):
    """y = sigmoid(gate z) gain z / rms(z), and 1 / rms(z)."""
    row = tl.program_id(0)
    z = load_heads(Z, row, D, W)
    scale = 1.0 / tl.sqrt(tl.sum(z * z, 0) / D + epsilon)
    y = z * scale * load_row(GAIN, 0, D, W)
    if GATED:
        y *= tl.sigmoid(z * load_row(GATE, 0, D, W))
    store_row(Y, row, y, D, W)
    tl.store(SCALE + row, scale)


@triton.jit
def gated_norm_backward_kernel(
    Z, GAIN, GATE, SCALE, GRAD_Y, GRAD_Z, GRAD_GAIN, GRAD_GATE, rows, rows_of_part,
    D: tl.constexpr, W: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """With r = 1 / rms(z), s = sigmoid(w z), a = dy s, b = a z, q = b (1 - s):
    dgain = sum r b, dgate = gain sum r z q, dz = r (a gain + q gain w) - z r^3 mean(b gain)."""
    part = tl.program_id(0)
    gain = load_row(GAIN, 0, D, W)
    gain_sum, gate_sum = tl.zeros([W], tl.float32), tl.zeros([W], tl.float32)
    for index in range(0, tl.minimum(rows_of_part, rows - part * rows_of_part)):
        row = part * rows_of_part + index
        z, a = load_heads(Z, row, D, W), load_row(GRAD_Y, row, D, W)
        scale = tl.load(SCALE + row)
        slope = gain
        if GATED:
            gate = load_row(GATE, 0, D, W)
            opening = tl.sigmoid(z * gate)
            a *= opening
            closing = z * (1.0 - opening)
            slope = gain + closing * gain * gate
            gate_sum += scale * z * closing * a
        gain_sum += scale * a * z
        shared = tl.sum(a * z * gain, 0) * scale * scale * scale / D
        store_row(GRAD_Z, row, a * slope * scale - z * shared, D, W)
    store_row(GRAD_GAIN, part, gain_sum, D, W)
    if GATED:
        store_row(GRAD_GATE, part, gate_sum * gain, D, W)


@triton.jit
def keep(SEED, row, least_kept, keep_scale, D: tl.constexpr, W: tl.constexpr):
    """Dropout's factors [W] of a row: 0 or keep_scale; the row is the stream of random bits."""
    bits = random_bits(tl.load(SEED), row, tl.arange(0, W))
    return tl.where(bits >= least_kept, keep_scale, 0.0)


@triton.jit
def add_norm_kernel(
    RESIDUAL, X, X_BIAS, GAIN, BIAS, SEED, SUM, Y, ROUNDED, MEAN, SCALE,
    epsilon, least_kept, keep_scale,
    D: tl.constexpr, W: tl.constexpr, DROPPED: tl.constexpr, BIASED: tl.constexpr,
    IS_ROUNDED: tl.constexpr,
):  # fmt: skip
    """y = LayerNorm(residual + dropout(x + bias)), also rounded to another type.

    The sum, its mean and 1 / deviation are kept.
    """
    row = tl.program_id(0)
    x = load_row(X, row, D, W)
    if BIASED:
        x += load_row(X_BIAS, 0, D, W)
    if DROPPED:
        x *= keep(SEED, row, least_kept, keep_scale, D, W)
    total = x + load_row(RESIDUAL, row, D, W)
    store_row(SUM, row, total, D, W)
    mean = tl.sum(total, 0) / D
    centred = tl.where(tl.arange(0, W) < D, total - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / D + epsilon)
    y = centred * scale * load_row(GAIN, 0, D, W) + load_row(BIAS, 0, D, W)
    store_row(Y, row, y, D, W)
    if IS_ROUNDED:
        store_row(ROUNDED, row, y, D, W)
    tl.store(MEAN + row, mean)
    tl.store(SCALE + row, scale)


@triton.jit
def add_norm_backward_kernel(
    SUM, GAIN, SEED, MEAN, SCALE, GRAD_Y, GRAD_ROUNDED, GRAD_RESIDUAL, GRAD_X,
    GRAD_GAIN, GRAD_BIAS, GRAD_X_BIAS, rows, rows_of_part, least_kept, keep_scale,
    D: tl.constexpr, W: tl.constexpr, DROPPED: tl.constexpr, BIASED: tl.constexpr,
    IS_EXACT: tl.constexpr, IS_ROUNDED: tl.constexpr,
):  # fmt: skip
    """With y the normed row, dy the sum of its gradients in both types and g = dy gain: the
    gradient of the sum is scale (g - mean(g) - y mean(g y)), that of x the same after dropout."""
    part = tl.program_id(0)
    inside = tl.arange(0, W) < D
    gain = load_row(GAIN, 0, D, W)
    gain_sum, bias_sum = tl.zeros([W], tl.float32), tl.zeros([W], tl.float32)
    x_sum = tl.zeros([W], tl.float32)
    for index in range(0, tl.minimum(rows_of_part, rows - part * rows_of_part)):
        row = part * rows_of_part + index
        scale = tl.load(SCALE + row)
        y = tl.where(inside, (load_row(SUM, row, D, W) - tl.load(MEAN + row)) * scale, 0.0)
        dy = tl.zeros([W], tl.float32)
        if IS_EXACT:
            dy += load_row(GRAD_Y, row, D, W)
        if IS_ROUNDED:
            dy += load_row(GRAD_ROUNDED, row, D, W)
        gain_sum += dy * y
        bias_sum += dy
        g = dy * gain
        grad = (g - tl.sum(g, 0) / D - y * (tl.sum(g * y, 0) / D)) * scale
        store_row(GRAD_RESIDUAL, row, grad, D, W)
        if DROPPED:
            grad *= keep(SEED, row, least_kept, keep_scale, D, W)
        store_row(GRAD_X, row, grad, D, W)
        x_sum += grad
    store_row(GRAD_GAIN, part, gain_sum, D, W)
    store_row(GRAD_BIAS, part, bias_sum, D, W)
    if BIASED:
        store_row(GRAD_X_BIAS, part, x_sum, D, W)


@triton.jit
def relu_backward_kernel(
    GRAD, OUTPUT, GRAD_INPUT, SUMS, rows, rows_of_part, D: tl.constexpr, W: tl.constexpr
):
    """The gradient before a ReLU in W columns, and its sum over the rows of a part."""
    part = tl.program_id(0)
    column = tl.program_id(1) * W + tl.arange(0, W)
    total = tl.zeros([W], tl.float32)
    for index in range(0, tl.minimum(rows_of_part, rows - part * rows_of_part)):
        place = tl.cast(part * rows_of_part + index, tl.int64) * D + column
        output = tl.load(OUTPUT + place, column < D, other=0.0)
        grad = tl.load(GRAD + place, (column < D) & (output > 0.0), other=0.0)
        tl.store(GRAD_INPUT + place, grad, column < D)
        total += grad.to(tl.float32)
    tl.store(SUMS + part * D + column, total, column < D)


@triton.jit
def sum_parts_kernel(
    INPUTS, SUMS, parts, D: tl.constexpr, W: tl.constexpr, R: tl.constexpr, COUNT: tl.constexpr
):
    """Sums over rows, R at a time, of COUNT matrices with D columns; W columns of one of them."""
    number = tl.program_id(0)
    address = INPUTS[0].to(tl.int64)
    for index in tl.static_range(1, COUNT):
        address = tl.where(number == index, INPUTS[index].to(tl.int64), address)
    base = address.to(tl.pointer_type(tl.float32))
    column = tl.program_id(1) * W + tl.arange(0, W)
    total = tl.zeros([W], tl.float32)
    for first in range(0, parts, R):
        row = first + tl.arange(0, R)
        inside = (row < parts)[:, None] & (column < D)[None, :]
        total += tl.sum(tl.load(base + row[:, None] * D + column[None, :], inside, other=0.0), 0)
    tl.store(SUMS + number * D + column, total, column < D)


@triton.jit
def entmax_kernel(
    X, Y, BETA, queries, keys, HEADS: tl.constexpr, W: tl.constexpr, MAP: tl.constexpr
):
    """Weights of a row of scores [keys] of [B, H, Q, K]; hidden keys have -inf."""
    row = tl.program_id(0).to(tl.int64)
    beta = tl.load(BETA + (row // queries) % HEADS)
    column = tl.arange(0, W)
    x = tl.load(X + row * keys + column, column < keys, other=-float("inf")).to(tl.float32)
    x = x[None, :]
    top = tl.max(x, 1)
    top = tl.where(top == -float("inf"), 0.0, top)
    x -= top[:, None]
    inner = find_inner(
        (x,), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, top, beta,
        W, W, W, MAP, NO_MASK, False, False, 1,
    )  # fmt: skip
    p, _, _ = weigh(x, inner, beta, MAP, False)
    place = Y + row * keys + column[None, :]
    tl.store(place, p.to(Y.dtype.element_ty), column[None, :] < keys)


@triton.jit
def entmax_backward_kernel(
    P, GRAD_P, GRAD_X, BETA, GRAD_BETA, queries, keys,
    HEADS: tl.constexpr, W: tl.constexpr, LEARNED: tl.constexpr,
):  # fmt: skip
    """The gradient of a row of scores by that of its weights, and the row's part of beta's."""
    row = tl.program_id(0).to(tl.int64)
    beta = tl.load(BETA + (row // queries) % HEADS)
    column = tl.arange(0, W)
    inside = column < keys
    p = tl.load(P + row * keys + column, inside, other=0.0).to(tl.float32)
    grad = tl.load(GRAD_P + row * keys + column, inside, other=0.0).to(tl.float32)
    log = tl.log2(tl.maximum(p, TINY))
    g = tl.where(p > 0.0, tl.exp2(log * (1.0 - beta)), 0.0)
    grad -= tl.sum(grad * g, 0) / tl.maximum(tl.sum(g, 0), TINY)
    if LEARNED:
        slope = beta_slope(p, g, beta * log, beta) / (beta * beta)
        tl.store(GRAD_BETA + row, tl.sum(slope * grad, 0))
    tl.store(GRAD_X + row * keys + column, (g * grad).to(GRAD_X.dtype.element_ty), inside)


@triton.jit
def cross_entropy_kernel(
    LOGITS, GOLD, LOSS, LIKELIHOOD, vocabulary, smoothing, factor,
    N: tl.constexpr, NEEDS_GRADIENT: tl.constexpr,
):  # fmt: skip
    """Label-smoothed loss and negative log-likelihood of a row of logits.

    The row is read once for its normaliser, and once more to overwrite it by its gradient times
    `factor`: one buffer of logits is all there is.
    """
    row = tl.program_id(0).to(tl.int64)
    logits = LOGITS + row * vocabulary
    top, total, plain = -float("inf"), 0.0, 0.0
    for first in range(0, vocabulary, N):
        column = first + tl.arange(0, N)
        inside = column < vocabulary
        x = tl.load(logits + column, inside, other=-float("inf")).to(tl.float32)
        highest = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - highest) + tl.sum(tl.exp(x - highest), 0)
        plain += tl.sum(tl.where(inside, x, 0.0), 0)
        top = highest
    normaliser = top + tl.log(total)
    gold = tl.load(GOLD + row)
    likelihood = normaliser - tl.load(logits + gold).to(tl.float32)
    uniform = normaliser - plain / vocabulary
    tl.store(LIKELIHOOD + row, likelihood)
    tl.store(LOSS + row, (1.0 - smoothing) * likelihood + smoothing * uniform)
    if NEEDS_GRADIENT:
        tl.debug_barrier()  # the gold logit has been read before its place is overwritten
        for first in range(0, vocabulary, N):
            column = first + tl.arange(0, N)
            inside = column < vocabulary
            x = tl.load(logits + column, inside, other=0.0).to(tl.float32)
            slope = tl.exp(x - normaliser) - smoothing / vocabulary
            slope = tl.where(column == gold, slope - (1.0 - smoothing), slope) * factor
            tl.store(logits + column, slope.to(LOGITS.dtype.element_ty), inside)
