"""The numbers that describe a row of a normalised mapping, found without a row in memory.

A row's scores are in registers as a tuple of tiles [M, N], below their top. Rows that are too long
for that have an empty tuple (TILES is 0), and their scores are computed again for each pass.
"""

import triton
import triton.language as tl

from nmt.ops.triton.mappings import (
    ENTMAX,
    FAST_FROM,
    LOG2_E,
    SOFTMAX,
    TOP_K,
    accepted_sum,
    clamped_power,
    entmax_factors,
    interpolated_step,
    newton_step,
    rough_factors,
    start_threshold,
)
from nmt.ops.triton.tiles import end_of_keys, masked_scores

# Pairs of numbers that a pass over a row finds, by a number `at` of the row.
EXTREMES = tl.constexpr(0)  # the highest score, and the lowest of a visible key
EXPONENTIALS = tl.constexpr(1)  # the sum of exp(x) over scores above `at`, and nothing
COUNTS = tl.constexpr(2)  # the number of scores from `at` on, and of visible keys
NEIGHBOURS = tl.constexpr(3)  # the highest score below `at`, and the lowest from there on
ROUGH_SUMS = tl.constexpr(4)  # entmax's weights and slopes at the threshold `at`
SUMS = tl.constexpr(5)  # the same, exact
POWERS = tl.constexpr(6)  # p^beta and its square at the threshold `at`


@triton.jit
def tile_terms(x, at, beta, PAIR: tl.constexpr, MAP: tl.constexpr, FAST: tl.constexpr):
    """The terms [M, N] of one tile x [M, N] of which a row's pair is made."""
    infinity = float("inf")
    if PAIR == EXTREMES:
        return x, tl.where(x == -infinity, infinity, x)
    elif PAIR == EXPONENTIALS:
        p = tl.exp2(x * LOG2_E)
        if MAP == TOP_K:
            p = tl.where(x <= at[:, None], 0.0, p)
        return p, tl.zeros_like(p)
    elif PAIR == COUNTS:
        return tl.where(x >= at[:, None], 1.0, 0.0), tl.where(x > -infinity, 1.0, 0.0)
    elif PAIR == NEIGHBOURS:
        below = x < at[:, None]
        return tl.where(below, x, -infinity), tl.where(below, infinity, x)
    elif PAIR == POWERS:
        w = clamped_power(x, at, beta)
        return w, w * w
    else:
        if PAIR == ROUGH_SUMS:
            p, g, _ = rough_factors(x, at, beta, MAP)
        else:
            p, g, _ = entmax_factors(x, at, beta, MAP, FAST)
        return p, g


@triton.jit
def join_terms(a, b, c, d, PAIR: tl.constexpr):
    """The terms of two tiles together, by the terms (a, b) and (c, d) of each."""
    if (PAIR == EXTREMES) | (PAIR == NEIGHBOURS):
        return tl.maximum(a, c), tl.minimum(b, d)
    else:
        return a + c, b + d


@triton.jit
def reduce_terms(a, b, PAIR: tl.constexpr):
    """The pair [M] of rows: once for all tiles, since a row is spread over several warps."""
    if (PAIR == EXTREMES) | (PAIR == NEIGHBOURS):
        return tl.max(a, 1), tl.min(b, 1)
    else:
        return tl.sum(a, 1), tl.sum(b, 1)


@triton.jit
def row_pair(
    tiles, q, K, mask, rows, mask_query, mask_key, key_step, queries, keys, scale, top, at, beta,
    DIM: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr, PAIR: tl.constexpr, MAP: tl.constexpr,
    MASK_FORM: tl.constexpr, IEEE: tl.constexpr, FAST: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """A pair of numbers [M] of whole rows."""
    if TILES > 0:
        first, second = tile_terms(tiles[0], at, beta, PAIR, MAP, FAST)
        for tile in tl.static_range(1, TILES):
            a, b = tile_terms(tiles[tile], at, beta, PAIR, MAP, FAST)
            first, second = join_terms(first, second, a, b, PAIR)
        return reduce_terms(first, second, PAIR)
    else:
        first = tl.zeros([top.shape[0], N], tl.float32)
        second = tl.zeros([top.shape[0], N], tl.float32)
        if (PAIR == EXTREMES) | (PAIR == NEIGHBOURS):
            first, second = first - float("inf"), second + float("inf")
        for start in range(0, end_of_keys(rows, keys, MASK_FORM), N):
            x = masked_scores(
                q, K, mask, rows, start, mask_query, mask_key, key_step, queries, keys, scale,
                DIM, WIDTH, N, MASK_FORM, IEEE,
            )  # fmt: skip
            a, b = tile_terms(x - top[:, None], at, beta, PAIR, MAP, FAST)
            first, second = join_terms(first, second, a, b, PAIR)
        return reduce_terms(first, second, PAIR)


@triton.jit
def find_inner(
    tiles, q, K, mask, rows, mask_query, mask_key, key_step, queries, keys, scale, top, parameter,
    DIM: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr, MAP: tl.constexpr,
    MASK_FORM: tl.constexpr, IEEE: tl.constexpr, FAST: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """`inner` [M] of rows: softmax's 1 / sum over scores above the parameter, or a threshold."""
    if (MAP == SOFTMAX) | (MAP == TOP_K):
        total, _ = row_pair(
            tiles, q, K, mask, rows, mask_query, mask_key, key_step, queries, keys, scale, top,
            parameter, 0.0, DIM, WIDTH, N, EXPONENTIALS, MAP, MASK_FORM, IEEE, FAST, TILES,
        )  # fmt: skip
        return 1.0 / tl.where(total == 0.0, 1.0, total)
    else:
        inner = start_threshold(top, parameter)
        # Two steps that cost half of one of Newton's and save one, where scores are in registers.
        if (MAP == ENTMAX) & (TILES > 0):
            for _ in tl.static_range(2):
                total, square = row_pair(
                    tiles, q, K, mask, rows, mask_query, mask_key, key_step, queries, keys, scale,
                    top, inner, parameter,
                    DIM, WIDTH, N, POWERS, MAP, MASK_FORM, IEEE, FAST, TILES,
                )  # fmt: skip
                inner = interpolated_step(inner, total, square, parameter)
        moving, number = 1, 0
        while (moving > 0) & (number < 60):
            total, slope = row_pair(
                tiles, q, K, mask, rows, mask_query, mask_key, key_step, queries, keys, scale, top,
                inner, parameter, DIM, WIDTH, N, ROUGH_SUMS, MAP, MASK_FORM, IEEE, FAST, TILES,
            )  # fmt: skip
            inner = newton_step(inner, total, slope, parameter, MAP, FAST)
            # The sum before the first step can be below 1, far from the goal.
            moving = tl.max((total > accepted_sum(parameter, MAP)).to(tl.int32), 0)
            moving = tl.where(number == 0, 1, moving)
            number += 1
        # Half precision hides what is left, unless alpha is close to 1.
        if (MAP == ENTMAX) & ((not FAST) | (parameter <= FAST_FROM)):
            total, slope = row_pair(
                tiles, q, K, mask, rows, mask_query, mask_key, key_step, queries, keys, scale, top,
                inner, parameter, DIM, WIDTH, N, SUMS, MAP, MASK_FORM, IEEE, FAST, TILES,
            )  # fmt: skip
            inner = newton_step(inner, total, slope, parameter, MAP, False)
        return inner


@triton.jit
def find_cut(
    tiles, q, K, mask, rows, mask_query, mask_key, key_step, queries, keys, scale, top, lowest, k,
    DIM: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr, MAP: tl.constexpr,
    MASK_FORM: tl.constexpr, IEEE: tl.constexpr, FAST: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """A number [M] between the k-th highest score of a row and the next lower one, by bisection.

    It is -inf where a row has no more than k scores. A number between the two, rather than one of
    them, leaves the choice the same where scores are computed again with another rounding.
    """
    infinity = float("inf")
    low, high = lowest - top, tl.zeros_like(top)  # the k-th is from low on, and below high
    count, seen = row_pair(
        tiles, q, K, mask, rows, mask_query, mask_key, key_step, queries, keys, scale, top, high,
        0.0, DIM, WIDTH, N, COUNTS, MAP, MASK_FORM, IEEE, FAST, TILES,
    )  # fmt: skip
    low = tl.where(count >= k, high, low)  # the k-th is the top itself
    searching, number = 1, 0
    while (searching > 0) & (number < 200):
        middle = 0.5 * low + 0.5 * high
        inside = (middle > low) & (middle < high) & (seen > k)
        count, _ = row_pair(
            tiles, q, K, mask, rows, mask_query, mask_key, key_step, queries, keys, scale, top,
            middle, 0.0, DIM, WIDTH, N, COUNTS, MAP, MASK_FORM, IEEE, FAST, TILES,
        )  # fmt: skip
        low = tl.where(inside & (count >= k), middle, low)
        high = tl.where(inside & (count <= k), middle, high)  # if equal, the search has ended
        searching = tl.max(inside.to(tl.int32), 0)
        number += 1
    below, kth = row_pair(
        tiles, q, K, mask, rows, mask_query, mask_key, key_step, queries, keys, scale, top, low,
        0.0, DIM, WIDTH, N, NEIGHBOURS, MAP, MASK_FORM, IEEE, FAST, TILES,
    )  # fmt: skip
    cut = 0.5 * below + 0.5 * kth
    cut = tl.where(cut < kth, cut, below)
    return tl.where(seen > k, cut, -infinity)


@triton.jit
def hold_scores(
    q, K, mask, rows, mask_query, mask_key, key_step, queries, keys, scale,
    DIM: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr,
    MASK_FORM: tl.constexpr, IEEE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """A tuple of the tiles of whole rows."""
    tiles = ()
    for tile in tl.static_range(TILES):
        x = masked_scores(
            q, K, mask, rows, tile * N, mask_query, mask_key, key_step, queries, keys, scale,
            DIM, WIDTH, N, MASK_FORM, IEEE,
        )  # fmt: skip
        tiles = tiles + (x,)
    return tiles


@triton.jit
def lower(tiles, top, TILES: tl.constexpr):
    """The tiles with their scores below the top."""
    lowered = ()
    for tile in tl.static_range(TILES):
        lowered = lowered + (tiles[tile] - top[:, None],)
    return lowered
