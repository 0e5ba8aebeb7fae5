"""Scores to weights inside a kernel, for every mapping that acts on rows or single scores.

A row of a normalised mapping is described by a few numbers: its highest score `top`, `inner`
(softmax's 1 / sum, or entmax's threshold below the top), and of top-k the `cut` that its scores
exceed. Scores of such a row are taken below their top, and those of hidden keys are -inf. Shapes: M
queries, N keys of a tile.
"""

import triton
import triton.language as tl

from nmt.ops.triton.numerics import LOG2_E, expm1, fast_log2, log2_1p

SOFTMAX = tl.constexpr(0)
SPARSEMAX = tl.constexpr(1)
ENTMAX15 = tl.constexpr(2)
ENTMAX = tl.constexpr(3)
RELU = tl.constexpr(4)
GELU = tl.constexpr(5)
LEAKY_RELU = tl.constexpr(6)
SQUARED_RELU = tl.constexpr(7)
IDENTITY = tl.constexpr(8)
TOP_K = tl.constexpr(9)

LARGEST_WEIGHT = tl.constexpr(1e12)  # of mappings that are not normalised
# beta above which a weight's error is below 1e-4 if 1 + beta (x - threshold) is rounded
FAST_FROM = tl.constexpr(0.001)
SERIES_BELOW = tl.constexpr(0.02)  # beta under which its gradient is taken from a series
TINY = tl.constexpr(1.1754944e-38)
LEAST_LOG = tl.constexpr(-200.0)  # of a number that is not 0, to base 2, and less
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def find_parameter(parameters, head, fixed, MAP: tl.constexpr, PER_HEAD: tl.constexpr):
    """The number that a mapping depends on: beta = alpha - 1 of entmax, a threshold, k, or none."""
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
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def entmax_factors(x, threshold, beta, MAP: tl.constexpr, FAST: tl.constexpr):
    """Weight p and slope g = p^(1 - beta) of scores x [M, N] below their top; threshold [M].

    Of entmax with a beta of its own also log2(p^beta), which its derivative by beta needs; others
    have p in its place.
    """
    if MAP == SPARSEMAX:
        p = positive(x + (1.0 - threshold)[:, None])
        return p, tl.where(p == 0.0, 0.0, 1.0), p
    elif MAP == ENTMAX15:
        g = positive(0.5 * x + (1.0 - 0.5 * threshold)[:, None])
        return g * g, g, g
    else:
        if FAST & (beta > FAST_FROM):
            p, g, log = rough_factors(x, threshold, beta, MAP)
        else:
            u = beta * (x - threshold[:, None])
            u = tl.where(u < -1.0, -1.0, u)
            log = log2_1p(u, FAST)
            g = tl.exp2(log * slope_exponent(beta))
            p = g * (1.0 + u)
        return p, g, log


@triton.jit
def slope_exponent(beta):
    """1 / beta - 1, the power to which 1 + beta (x - threshold) is the slope; above 0."""
    return tl.maximum(1.0 / beta - 1.0, 1e-7)


@triton.jit
def clamped_power(x, threshold, beta):
    """p^beta = 1 + beta (x - threshold) of scores x [M, N] below their top, and 0 below 0.

    It ends at 1, because no threshold is below the top: product and clamp are one instruction.
    """
    return tl.clamp(beta * x + (1.0 - beta * threshold)[:, None], 0.0, 1.0)


@triton.jit
def rough_factors(x, threshold, beta, MAP: tl.constexpr):
    """`entmax_factors` as Newton's method takes them before its last step."""
    if MAP == ENTMAX:
        w = clamped_power(x, threshold, beta)
        log = fast_log2(w)
        g = tl.exp2(log * slope_exponent(beta))
        return g * w, g, log
    else:
        return entmax_factors(x, threshold, beta, MAP, False)


@triton.jit
def start_threshold(top, beta):
    """Where Newton's method starts, [M]: about what scores of unit variance need."""
    return tl.zeros_like(top) + 0.5 / (beta + 0.4)


@triton.jit
def accepted_sum(beta, MAP: tl.constexpr):
    """The sum of a row from which one more step leads to the goal.

    Sparsemax's steps are exact only once its support is right. A step squares the error of
    1.5-entmax: 1e-8 times at most a quarter of the keys is left. Entmax's last step comes after all
    rough ones, whose rounding errors grow as beta falls.
    """
    if MAP == SPARSEMAX:
        return 1.0 + 16 * 1.1920929e-07
    elif MAP == ENTMAX15:
        return 1.0001
    else:
        return 1.01 + 1e-6 / beta


@triton.jit
def interpolated_step(threshold, total, square, beta):
    """The next threshold [M] of entmax by the sums of w = p^beta and of its square.

    The sum of w^q, where Newton's method needs q = 1 / beta and q - 1, is taken for exponential in
    q, as through q = 1 and q = 2. The error is small, since the logarithm of such a sum is convex.
    """
    ratio = tl.maximum(total / tl.maximum(square, TINY), 1.0)
    log = beta * fast_log2(tl.maximum(square, TINY)) + (2.0 * beta - 1.0) * fast_log2(ratio)
    return tl.maximum(threshold + (1.0 - tl.exp2(-log)) / (beta * ratio), 0.0)


@triton.jit
def newton_step(threshold, total, slope, beta, MAP: tl.constexpr, FAST: tl.constexpr):
    """The next threshold [M] by the sums of weights and slopes, though never below the top.

    The first step leads to the left of the goal from wherever it starts; later ones do not
    overshoot.
    """
    slope = tl.maximum(slope, TINY)
    if MAP == SPARSEMAX:
        step = (total - 1.0) / slope
    elif MAP == ENTMAX15:
        step = 2.0 * (total - tl.sqrt(total)) / slope
    elif FAST:
        shrunk = tl.exp2(-beta * fast_log2(tl.maximum(total, TINY)))
        step = total * (1.0 - shrunk) / (slope * beta)
    else:
        step = -total / slope * expm1(-beta * tl.log(tl.maximum(total, TINY))) / beta
    return tl.maximum(threshold + step, 0.0)


@triton.jit
def weigh(x, inner, parameter, MAP: tl.constexpr, FAST: tl.constexpr):
    """Weights [M, N] of scores x [M, N], their derivatives by the scores at fixed `inner`, and a
    logarithm as `entmax_factors` has it.

    Scores of a normalised mapping are below their top. The parameter of top-k is the cut [M].
    """
    log = x
    if MAP == SOFTMAX:
        p = tl.exp2(x * LOG2_E) * inner[:, None]
        g = p
    elif MAP == TOP_K:
        p = tl.where(x <= parameter[:, None], 0.0, tl.exp2(x * LOG2_E) * inner[:, None])
        g = p
    elif MAP <= ENTMAX:
        p, g, log = entmax_factors(x, inner, parameter, MAP, FAST)
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
    return p, g, log


@triton.jit
def beta_slope(p, g, log, beta):
    """beta^2 dp/dbeta at a fixed threshold: p - g - p l with l = log(p^beta), 0 where p and g are.

    `log` is to base 2. For small beta the terms cancel; a series takes their place there.
    """
    log = tl.maximum(log, LEAST_LOG) * LN_2
    if beta < SERIES_BELOW:
        series = 0.5 - log * (1.0 / 6.0 - log * (1.0 / 24.0 - log * (1.0 / 120.0)))
        slope = -p * log * log * series
    else:
        slope = p - g - p * log
    return slope
