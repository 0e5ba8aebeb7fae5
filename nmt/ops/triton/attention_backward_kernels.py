"""The backward pass of fused attention: weights are computed again from the state of their rows.

With p the weights, g their slopes and dp the gradient of the weights, the gradient of the scores is
g (dp - mean), where mean = sum(g dp) / sum(g) over a row of a normalised mapping, and 0 otherwise.
"""

import triton
import triton.language as tl

from nmt.ops.triton.attention_kernels import weigh_visible
from nmt.ops.triton.mappings import ENTMAX, TINY, TOP_K, beta_slope, find_parameter
from nmt.ops.triton.numerics import product
from nmt.ops.triton.tiles import (
    CAUSAL,
    LENGTHS,
    as_operand,
    end_of_keys,
    find_program,
    find_visible,
    is_kept,
    late_factor,
    load_rows,
    score_gradients,
    store_rows,
)


@triton.jit
def load_state(
    STATE, number, rows, queries, parameter, M: tl.constexpr, MAP: tl.constexpr,
    STATES: tl.constexpr,
):  # fmt: skip
    """`top` and `inner` [M] of rows, and the parameter: of top-k the cut [M]."""
    top, inner = tl.zeros([M], tl.float32), tl.zeros([M], tl.float32)
    if STATES == 0:
        return top, inner, parameter
    else:
        state = STATE + (number.to(tl.int64) * queries + rows) * STATES
        top = tl.load(state, rows < queries, other=0.0)
        inner = tl.load(state + 1, rows < queries, other=0.0)
        if MAP == TOP_K:
            return top, inner, tl.load(state + 2, rows < queries, other=0.0)
        else:
            return top, inner, parameter


@triton.jit
def gradient_tile(
    q, k, v, grad, mask, rows, cols, mask_query, mask_key,
    queries, keys, scale, top, inner, parameter,
    seed, number, least_kept,
    MAP: tl.constexpr, MASK_FORM: tl.constexpr, DROPPED: tl.constexpr,
    IEEE: tl.constexpr, FAST: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """Of one tile: weights p, slopes g, logarithms, p after dropout, and the gradient dp of p.

    The last two are to be multiplied by dropout's scale.
    """
    visible = find_visible(mask, rows, cols, mask_query, mask_key, queries, keys, MASK_FORM)
    scores = product(q, tl.trans(k), IEEE) * scale
    p, g, log = weigh_visible(scores, visible, top, inner, parameter, MAP, FAST, STATES)
    dp = product(grad, tl.trans(v), IEEE)
    dropped = p
    if DROPPED:
        kept = is_kept(seed, number, rows, cols, keys, least_kept)
        dropped = tl.where(kept, p, 0.0)
        dp = tl.where(kept, dp, 0.0)
    return p, g, log, dropped, dp


@triton.jit
def parameter_slope(p, g, log, parameter, MAP: tl.constexpr):
    """The derivative [M, N] of weights by the parameter of their head, at a fixed `inner`.

    It is to be multiplied by `slope_factor`.
    """
    if MAP == ENTMAX:
        return beta_slope(p, g, log, parameter)
    else:
        return g


@triton.jit
def slope_factor(parameter, MAP: tl.constexpr):
    """The factor of all derivatives by a parameter."""
    if MAP == ENTMAX:
        return 1.0 / (parameter * parameter)
    else:
        return -1.0


@triton.jit
def load_gradient_tile(
    q, K, V, grad, mask, rows, first, mask_query, mask_key, key_step,
    queries, keys, scale, top, inner, parameter, seed, number, least_kept,
    DIM: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr,
    MAP: tl.constexpr, MASK_FORM: tl.constexpr, DROPPED: tl.constexpr,
    IEEE: tl.constexpr, FAST: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """Of the N keys from `first` on: the keys, weights p, slopes g, logarithms, gradient dp."""
    cols = first + tl.arange(0, N)
    k = load_rows(K, cols, key_step, keys, DIM, WIDTH)
    v = load_rows(V, cols, key_step, keys, DIM, WIDTH)
    p, g, log, dropped, dp = gradient_tile(
        q, k, v, grad, mask, rows, cols, mask_query, mask_key,
        queries, keys, scale, top, inner, parameter,
        seed, number, least_kept, MAP, MASK_FORM, DROPPED, IEEE, FAST, STATES,
    )  # fmt: skip
    return k, p, g, log, dp


@triton.jit
def gradients_of_held_rows(
    q, K, V, grad, mask, rows, mask_query, mask_key, key_step,
    queries, keys, scale, top, inner, parameter, seed, number, least_kept, factor,
    DIM: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MAP: tl.constexpr, MASK_FORM: tl.constexpr, DROPPED: tl.constexpr,
    IEEE: tl.constexpr, FAST: tl.constexpr, STATES: tl.constexpr, LEARNED: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """The gradient of M queries, the mean [M], and sums of the slopes by the parameter, alone and
    times dp; slopes and gradients of a row stay in registers between the two passes over it.

    Tiles are added up before a row is, since a row is spread over several warps.
    """
    mean, total = tl.zeros([M, N], tl.float32), tl.zeros([M, N], tl.float32)
    slope_sum, slope_dp = tl.zeros([M, N], tl.float32), tl.zeros([M, N], tl.float32)
    grad_q = tl.zeros([M, WIDTH], tl.float32)
    slopes, gradients = (), ()
    for tile in tl.static_range(TILES):
        k, p, g, log, dp = load_gradient_tile(
            q, K, V, grad, mask, rows, tile * N, mask_query, mask_key, key_step,
            queries, keys, scale, top, inner, parameter, seed, number, least_kept,
            DIM, WIDTH, N, MAP, MASK_FORM, DROPPED, IEEE, FAST, STATES,
        )  # fmt: skip
        total += g
        mean += g * dp
        if LEARNED:
            slope = parameter_slope(p, g, log, parameter, MAP)
            slope_sum += slope
            slope_dp += slope * dp
        slopes, gradients = slopes + (g,), gradients + (dp,)
    mean = tl.sum(mean, 1) / tl.maximum(tl.sum(total, 1), TINY)
    for tile in tl.static_range(TILES):
        k = load_rows(K, tile * N + tl.arange(0, N), key_step, keys, DIM, WIDTH)
        ds = score_gradients(slopes[tile], gradients[tile] - mean[:, None], factor, k)
        grad_q += product(ds, k, IEEE)
    return grad_q, mean, tl.sum(slope_sum, 1), tl.sum(slope_dp, 1)


@triton.jit
def gradients_of_long_rows(
    q, K, V, grad, mask, rows, mask_query, mask_key, key_step,
    queries, keys, scale, top, inner, parameter, seed, number, least_kept, factor,
    DIM: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MAP: tl.constexpr, MASK_FORM: tl.constexpr, DROPPED: tl.constexpr,
    IEEE: tl.constexpr, FAST: tl.constexpr, STATES: tl.constexpr, LEARNED: tl.constexpr,
):  # fmt: skip
    """The same as `gradients_of_held_rows`, where each pass over a row computes it again."""
    mean, total = tl.zeros([M], tl.float32), tl.zeros([M], tl.float32)
    slope_sum, slope_dp = tl.zeros([M], tl.float32), tl.zeros([M], tl.float32)
    grad_q = tl.zeros([M, WIDTH], tl.float32)
    end = end_of_keys(rows, keys, MASK_FORM)
    if STATES > 0:
        for first in range(0, end, N):
            k, p, g, log, dp = load_gradient_tile(
                q, K, V, grad, mask, rows, first, mask_query, mask_key, key_step,
                queries, keys, scale, top, inner, parameter, seed, number, least_kept,
                DIM, WIDTH, N, MAP, MASK_FORM, DROPPED, IEEE, FAST, STATES,
            )  # fmt: skip
            total += tl.sum(g, 1)
            mean += tl.sum(g * dp, 1)
        mean /= tl.maximum(total, TINY)
    for first in range(0, end, N):
        k, p, g, log, dp = load_gradient_tile(
            q, K, V, grad, mask, rows, first, mask_query, mask_key, key_step,
            queries, keys, scale, top, inner, parameter, seed, number, least_kept,
            DIM, WIDTH, N, MAP, MASK_FORM, DROPPED, IEEE, FAST, STATES,
        )  # fmt: skip
        if LEARNED:
            slope = parameter_slope(p, g, log, parameter, MAP)
            slope_sum += tl.sum(slope, 1)
            slope_dp += tl.sum(slope * dp, 1)
        grad_q += product(score_gradients(g, dp - mean[:, None], factor, k), k, IEEE)
    return grad_q, mean, slope_sum, slope_dp


@triton.jit(do_not_specialize=LENGTHS)
def backward_queries_kernel(
    Q, K, V, GRAD, STATE, MEAN, MASK, PARAMETERS, SEED, GRAD_Q, GRAD_PARAMETERS,
    query_batch, query_head, query_step, key_batch, key_head, key_step,
    output_batch, output_head, output_step,
    mask_batch, mask_head, mask_query, mask_key,
    queries, keys, scale, fixed, least_kept, keep_scale,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MAP: tl.constexpr, PER_HEAD: tl.constexpr, MASK_FORM: tl.constexpr, DROPPED: tl.constexpr,
    IEEE: tl.constexpr, FAST: tl.constexpr, STATES: tl.constexpr, LEARNED: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """Gradients of M queries, the mean [M] of each row, and a part of the parameter's gradient."""
    block, number = find_program(queries, M)
    batch, head = (number // HEADS).to(tl.int64), number % HEADS
    K += batch * key_batch + head * key_head
    V += batch * key_batch + head * key_head
    mask = MASK + batch * mask_batch + head * mask_head
    query_place = batch * query_batch + head * query_head
    parameter = find_parameter(PARAMETERS, head, fixed, MAP, PER_HEAD)
    rows = block * M + tl.arange(0, M)
    q = load_rows(Q + query_place, rows, query_step, queries, DIM, WIDTH)
    GRAD += batch * output_batch + head * output_head
    grad = load_rows(GRAD, rows, output_step, queries, DIM, WIDTH)
    top, inner, parameter = load_state(STATE, number, rows, queries, parameter, M, MAP, STATES)
    seed = 0
    if DROPPED:
        seed = tl.load(SEED)
    factor = scale * keep_scale  # of all gradients of scores
    if TILES > 0:
        grad_q, mean, slope_sum, slope_dp = gradients_of_held_rows(
            q, K, V, grad, mask, rows, mask_query, mask_key, key_step,
            queries, keys, scale, top, inner, parameter, seed, number, least_kept, factor,
            DIM, WIDTH, M, N, MAP, MASK_FORM, DROPPED, IEEE, FAST, STATES, LEARNED, TILES,
        )  # fmt: skip
    else:
        grad_q, mean, slope_sum, slope_dp = gradients_of_long_rows(
            q, K, V, grad, mask, rows, mask_query, mask_key, key_step,
            queries, keys, scale, top, inner, parameter, seed, number, least_kept, factor,
            DIM, WIDTH, M, N, MAP, MASK_FORM, DROPPED, IEEE, FAST, STATES, LEARNED,
        )  # fmt: skip
    grad_q *= late_factor(factor, q)
    store_rows(GRAD_Q + query_place, rows, query_step, queries, grad_q, DIM, WIDTH)
    if STATES > 0:
        tl.store(MEAN + number.to(tl.int64) * queries + rows, mean, rows < queries)
    if LEARNED:
        total = tl.sum(slope_dp - mean * slope_sum, 0)
        place = GRAD_PARAMETERS + tl.program_id(0)
        tl.store(place, total * slope_factor(parameter, MAP) * keep_scale)


@triton.jit(do_not_specialize=LENGTHS)
def backward_keys_kernel(
    Q, K, V, GRAD, STATE, MEAN, MASK, PARAMETERS, SEED, GRAD_K, GRAD_V,
    query_batch, query_head, query_step, key_batch, key_head, key_step,
    output_batch, output_head, output_step,
    mask_batch, mask_head, mask_query, mask_key, grad_batch, grad_step,
    queries, keys, scale, fixed, least_kept, keep_scale,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MAP: tl.constexpr, PER_HEAD: tl.constexpr, MASK_FORM: tl.constexpr, DROPPED: tl.constexpr,
    IEEE: tl.constexpr, FAST: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """Gradients of N keys and values of one head of one sentence."""
    block, number = find_program(keys, N)
    batch, head = (number // HEADS).to(tl.int64), number % HEADS
    Q += batch * query_batch + head * query_head
    K += batch * key_batch + head * key_head
    V += batch * key_batch + head * key_head
    GRAD_K += batch * grad_batch + head * DIM
    GRAD_V += batch * grad_batch + head * DIM
    GRAD += batch * output_batch + head * output_head
    mask = MASK + batch * mask_batch + head * mask_head
    parameter = find_parameter(PARAMETERS, head, fixed, MAP, PER_HEAD)
    cols = block * N + tl.arange(0, N)
    k = load_rows(K, cols, key_step, keys, DIM, WIDTH)
    v = load_rows(V, cols, key_step, keys, DIM, WIDTH)
    seed = 0
    if DROPPED:
        seed = tl.load(SEED)
    grad_k = tl.zeros([N, WIDTH], tl.float32)
    grad_v = tl.zeros([N, WIDTH], tl.float32)
    start = 0
    if MASK_FORM == CAUSAL:
        start = block * N // M * M  # queries before it see none of these keys
    for first in range(start, queries, M):
        rows = first + tl.arange(0, M)
        q = load_rows(Q, rows, query_step, queries, DIM, WIDTH)
        grad = load_rows(GRAD, rows, output_step, queries, DIM, WIDTH)
        top, inner, described = load_state(STATE, number, rows, queries, parameter, M, MAP, STATES)
        mean = tl.zeros([M], tl.float32)
        if STATES > 0:
            place = number.to(tl.int64) * queries + rows
            mean = tl.load(MEAN + place, rows < queries, other=0.0)
        p, g, _, dropped, dp = gradient_tile(
            q, k, v, grad, mask, rows, cols, mask_query, mask_key,
            queries, keys, scale, top, inner, described,
            seed, number, least_kept, MAP, MASK_FORM, DROPPED, IEEE, FAST, STATES,
        )  # fmt: skip
        grad_v += product(tl.trans(as_operand(dropped, grad)), grad, IEEE)
        ds = score_gradients(g, dp - mean[:, None], scale * keep_scale, k)
        grad_k += product(tl.trans(ds), q, IEEE)
    grad_k *= late_factor(scale * keep_scale, k)
    store_rows(GRAD_K, cols, grad_step, keys, grad_k, DIM, WIDTH)
    store_rows(GRAD_V, cols, grad_step, keys, grad_v * keep_scale, DIM, WIDTH)


@triton.jit(do_not_specialize=LENGTHS)
def backward_short_kernel(
    Q, K, V, GRAD, STATE, MASK, PARAMETERS, SEED, GRAD_Q, GRAD_K, GRAD_V, GRAD_PARAMETERS,
    query_batch, query_head, query_step, key_batch, key_head, key_step,
    output_batch, output_head, output_step,
    mask_batch, mask_head, mask_query, mask_key, grad_batch, grad_step,
    queries, keys, scale, fixed, least_kept, keep_scale,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MAP: tl.constexpr, PER_HEAD: tl.constexpr, MASK_FORM: tl.constexpr, DROPPED: tl.constexpr,
    IEEE: tl.constexpr, FAST: tl.constexpr, STATES: tl.constexpr, LEARNED: tl.constexpr,
):  # fmt: skip
    """All gradients of one head of a sentence of at most M queries and N keys: one tile."""
    number = tl.program_id(0)
    batch, head = (number // HEADS).to(tl.int64), number % HEADS
    query_place = batch * query_batch + head * query_head
    key_place = batch * key_batch + head * key_head
    mask = MASK + batch * mask_batch + head * mask_head
    parameter = find_parameter(PARAMETERS, head, fixed, MAP, PER_HEAD)
    rows, cols = tl.arange(0, M), tl.arange(0, N)
    q = load_rows(Q + query_place, rows, query_step, queries, DIM, WIDTH)
    k = load_rows(K + key_place, cols, key_step, keys, DIM, WIDTH)
    v = load_rows(V + key_place, cols, key_step, keys, DIM, WIDTH)
    grad = load_rows(
        GRAD + batch * output_batch + head * output_head, rows, output_step, queries, DIM, WIDTH
    )
    top, inner, parameter = load_state(STATE, number, rows, queries, parameter, M, MAP, STATES)
    seed = 0
    if DROPPED:
        seed = tl.load(SEED)
    p, g, log, dropped, dp = gradient_tile(
        q, k, v, grad, mask, rows, cols, mask_query, mask_key,
        queries, keys, scale, top, inner, parameter,
        seed, number, least_kept, MAP, MASK_FORM, DROPPED, IEEE, FAST, STATES,
    )  # fmt: skip
    grad_v = product(tl.trans(as_operand(dropped, grad)), grad, IEEE)
    grad_place = batch * grad_batch + head * DIM
    store_rows(GRAD_V + grad_place, cols, grad_step, keys, grad_v * keep_scale, DIM, WIDTH)
    if STATES > 0:
        mean = tl.sum(g * dp, 1) / tl.maximum(tl.sum(g, 1), TINY)
        dp -= mean[:, None]
    if LEARNED:
        slope = parameter_slope(p, g, log, parameter, MAP)
        total = tl.sum(tl.sum(slope * dp, 1), 0)
        tl.store(GRAD_PARAMETERS + number, total * slope_factor(parameter, MAP) * keep_scale)
    factor = scale * keep_scale
    ds = score_gradients(g, dp, factor, q)
    grad_k = product(tl.trans(ds), q, IEEE) * late_factor(factor, q)
    store_rows(GRAD_K + grad_place, cols, grad_step, keys, grad_k, DIM, WIDTH)
    grad_q = product(ds, k, IEEE) * late_factor(factor, q)
    store_rows(GRAD_Q + query_place, rows, query_step, queries, grad_q, DIM, WIDTH)
