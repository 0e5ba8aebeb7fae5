"""Scores to weights inside a kernel, for every mapping that acts on rows or single scores.

A row of a normalised mapping is described by two numbers: its highest score `top`, and `inner`:
softmax's 1 / sum, or entmax's threshold below the top. Shapes: M queries, N keys of a tile.
"""

import triton
import triton.language as tl

from nmt.ops.triton.numerics import LOG2_E, expm1, log1p

SOFTMAX = tl.constexpr(0)
SPARSEMAX = tl.constexpr(1)
ENTMAX15 = tl.constexpr(2)
ENTMAX = tl.constexpr(3)
RELU = tl.constexpr(4)
GELU = tl.constexpr(5)
LEAKY_RELU = tl.constexpr(6)
SQUARED_RELU = tl.constexpr(7)
IDENTITY = tl.constexpr(8)

MOST_STEPS = tl.constexpr(60)  # of Newton's method; two to five are usual
TOLERANCE = tl.constexpr(1.0 + 16 * 1.1920929e-07)  # on the sum of a row
LARGEST_WEIGHT = tl.constexpr(1e12)  # of mappings that are not normalised
SERIES_BELOW = tl.constexpr(0.02)  # beta under which its gradient is taken from a series
TINY = tl.constexpr(1.1754944e-38)


@triton.jit
def find_parameter(parameters, head, fixed, MAP: tl.constexpr, PER_HEAD: tl.constexpr):
    """The number that a mapping depends on: beta = alpha - 1 of entmax, a threshold, or none."""
    if MAP == SPARSEMAX:
        return 1.0
    elif MAP == ENTMAX15:
        return 0.5
    elif PER_HEAD:
        return tl.load(parameters + head)
    else:
        return fixed


@triton.jit
def positive(x):
    """max(x, 0) that keeps NaN."""
    return tl.where(x <= 0.0, 0.0, x)


@triton.jit
def entmax_factors(x, threshold, beta, MAP: tl.constexpr):
    """Weight p and slope g = p^(1 - beta) of scores x [M, N] below their top; threshold [M]."""
    if MAP == SPARSEMAX:
        p = positive(1.0 + (x - threshold[:, None]))
        g = tl.where(p == 0.0, 0.0, 1.0)
    elif MAP == ENTMAX15:
        g = positive(1.0 + 0.5 * (x - threshold[:, None]))
        p = g * g
    else:
        u = beta * (x - threshold[:, None])
        u = tl.where(u < -1.0, -1.0, u)
        exponent = tl.maximum(1.0 / beta - 1.0, 1e-7)
        g = tl.exp(log1p(u) * exponent)
        p = g * (1.0 + u)
    return p, g


@triton.jit
def start_threshold(top, beta):
    """Where Newton's method starts, [M]: about what scores of unit variance need."""
    return tl.zeros_like(top) + 0.5 / (beta + 0.4)


@triton.jit
def newton_step(threshold, total, slope, beta, FIRST: tl.constexpr, MAP: tl.constexpr):
    """The next threshold [M] by the sums of weights and slopes, and the rows that still move.

    The first step leads to the left of the goal from wherever it starts, though never below the
    top; later steps do not overshoot, and a row whose sum is right stays where it is.
    """
    slope = tl.maximum(slope, TINY)
    if MAP == SPARSEMAX:
        step = (total - 1.0) / slope
    elif MAP == ENTMAX15:
        step = 2.0 * (total - tl.sqrt(total)) / slope
    else:
        step = -total / slope * expm1(-beta * tl.log(tl.maximum(total, TINY))) / beta
    moving = total > TOLERANCE
    if FIRST:
        threshold = tl.maximum(threshold + step, 0.0)
    else:
        threshold = tl.where(moving, threshold + step, threshold)
    return threshold, moving


@triton.jit
def weigh(x, visible, top, inner, parameter, MAP: tl.constexpr):
    """Weights [M, N] of scores x [M, N], and their derivatives by the scores at fixed `inner`."""
    if MAP == SOFTMAX:
        p = tl.exp2((x - top[:, None]) * LOG2_E) * inner[:, None]
        g = p
    elif MAP <= ENTMAX:
        p, g = entmax_factors(x - top[:, None], inner, parameter, MAP)
    else:
        z = x - parameter
        if MAP == RELU:
            p = positive(z)
            g = tl.where(z > 0.0, 1.0, 0.0)
        elif MAP == GELU:
            share = 0.5 + 0.5 * tl.erf(z * 0.7071067811865476)
            p = z * share
            g = share + z * 0.3989422804014327 * tl.exp(-0.5 * z * z)
        elif MAP == LEAKY_RELU:
            p = tl.where(z > 0.0, z, 0.01 * z)
            g = tl.where(z > 0.0, 1.0, 0.01)
        elif MAP == SQUARED_RELU:
            r = positive(z)
            p = r * r
            g = 2.0 * r
        else:
            p = z
            g = tl.full(z.shape, 1.0, tl.float32)
        outside = (p > LARGEST_WEIGHT) | (p < -LARGEST_WEIGHT)
        g = tl.where(outside, 0.0, g)
        p = tl.where(outside, tl.where(p > 0.0, LARGEST_WEIGHT, -LARGEST_WEIGHT), p)
    return tl.where(visible, p, 0.0), tl.where(visible, g, 0.0)


@triton.jit
def beta_slope(p, g, beta):
    """dp/dbeta at a fixed threshold: (p - g) / beta^2 - p l / beta with l = log p, 0 where p is.

    For small beta the terms cancel; a series in z = -beta l takes their place there.
    """
    log = tl.log(tl.maximum(p, TINY))
    exact = ((p - g) / beta - p * log) / beta
    z = -beta * log
    series = 0.5 + z * (1.0 / 6.0 + z * (1.0 / 24.0 + z * (1.0 / 120.0)))
    return tl.where(p > 0.0, tl.where(beta < SERIES_BELOW, -p * log * log * series, exact), 0.0)
