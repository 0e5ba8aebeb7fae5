"""Fused attention for every score mapping: no kernel writes scores or weights to memory.

Two numbers per query are kept for the backward pass (see mappings.py), which computes the weights
again. One family of kernels serves
normalised and unnormalised mappings: with p the weights, g their slopes and dp the gradient of the
weights, the gradient of the scores is g (dp - mean), where mean = sum(g dp) / sum(g) over a row of
a normalised mapping, and 0 otherwise.

Where all keys fit into one tile (ONE_TILE), scores are computed once and stay in registers;
otherwise each pass over the keys computes them again.
"""

import triton
import triton.language as tl

from nmt.ops.triton.mappings import (
    ENTMAX,
    SOFTMAX,
    TINY,
    beta_slope,
    entmax_factors,
    find_parameter,
    newton_step,
    start_threshold,
    weigh,
)
from nmt.ops.triton.numerics import product, random_bits

NORMALISED = tl.constexpr(3)  # the last mapping whose rows sum to one

# Forms of the mask: none, one per sentence [B, 1, 1, K], a query sees the keys up to its own
# position, or any [B, H, Q, K]. The common forms take fewer registers than the general one.
NO_MASK = tl.constexpr(0)
KEY_MASK = tl.constexpr(1)
CAUSAL = tl.constexpr(2)
ANY_MASK = tl.constexpr(3)


@triton.jit
def load_rows(base, rows, step, count, DIM: tl.constexpr, WIDTH: tl.constexpr):
    """Rows [M, WIDTH] of one head; 0 beyond the last row and beyond DIM."""
    column = tl.arange(0, WIDTH)
    inside = rows[:, None] < count
    if WIDTH != DIM:
        inside = inside & (column[None, :] < DIM)
    return tl.load(base + rows[:, None] * step + column[None, :], inside, other=0.0)


@triton.jit
def store_rows(base, rows, step, count, x, DIM: tl.constexpr, WIDTH: tl.constexpr):
    """Write x [M, WIDTH] to the rows of one head."""
    column = tl.arange(0, WIDTH)
    inside = rows[:, None] < count
    if WIDTH != DIM:
        inside = inside & (column[None, :] < DIM)
    place = base + rows[:, None] * step + column[None, :]
    tl.store(place, x.to(base.dtype.element_ty), inside)


@triton.jit
def find_visible(mask, rows, cols, mask_query, mask_key, queries, keys, MASK_FORM: tl.constexpr):
    """[M, N]: whether a query may see a key."""
    if MASK_FORM == KEY_MASK:
        shown = tl.load(mask + cols * mask_key, cols < keys, other=0) != 0
        return (rows < queries)[:, None] & shown[None, :]
    visible = (rows < queries)[:, None] & (cols < keys)[None, :]
    if MASK_FORM == CAUSAL:
        visible = visible & (rows[:, None] >= cols[None, :])
    elif MASK_FORM == ANY_MASK:
        place = rows[:, None] * mask_query + cols[None, :] * mask_key
        visible = visible & (tl.load(mask + place, visible, other=0) != 0)
    return visible


@triton.jit
def end_of_keys(rows, keys, MASK_FORM: tl.constexpr):
    """The number of keys that any of these queries can see."""
    if MASK_FORM == CAUSAL:
        return tl.minimum(keys, tl.max(rows, 0) + 1)
    else:
        return keys


@triton.jit
def dropout_scale(seed, number, rows, cols, keys, least_kept, keep_scale):
    """[M, N]: 0 for a dropped weight, else keep_scale; head `number` of the batch is the stream."""
    bits = random_bits(seed, number, rows[:, None] * keys + cols[None, :])
    return tl.where(bits >= least_kept, keep_scale, 0.0)


@triton.jit
def as_operand(weights, like):
    """Weights in the dtype of a matrix they are multiplied with; float16 ends at its largest."""
    if like.dtype == tl.float16:
        weights = tl.where(weights > 65504.0, 65504.0, weights)
    return weights.to(like.dtype)


@triton.jit
def row_sums(
    x, visible, q, K, mask, rows, mask_query, mask_key,
    key_step, queries, keys, scale, top, threshold, beta,
    DIM: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr, MAP: tl.constexpr,
    MASK_FORM: tl.constexpr, IEEE: tl.constexpr, ONE_TILE: tl.constexpr,
):  # fmt: skip
    """Sums [M] over all keys of entmax's weights and slopes at a threshold."""
    if ONE_TILE:
        p, g = entmax_factors(x - top[:, None], threshold, beta, MAP)
        return tl.sum(tl.where(visible, p, 0.0), 1), tl.sum(tl.where(visible, g, 0.0), 1)
    else:
        total, slope = tl.zeros_like(top), tl.zeros_like(top)
        end = end_of_keys(rows, keys, MASK_FORM)
        for first in range(0, end, N):
            cols = first + tl.arange(0, N)
            k = load_rows(K, cols, key_step, keys, DIM, WIDTH)
            seen = find_visible(mask, rows, cols, mask_query, mask_key, queries, keys, MASK_FORM)
            scores = product(q, tl.trans(k), IEEE) * scale
            p, g = entmax_factors(scores - top[:, None], threshold, beta, MAP)
            total += tl.sum(tl.where(seen, p, 0.0), 1)
            slope += tl.sum(tl.where(seen, g, 0.0), 1)
        return total, slope


@triton.jit
def describe_rows(
    x, visible, q, K, mask, rows, mask_query, mask_key, key_step, queries, keys, scale, parameter,
    DIM: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, MAP: tl.constexpr,
    MASK_FORM: tl.constexpr, IEEE: tl.constexpr, ONE_TILE: tl.constexpr,
):  # fmt: skip
    """`top` and `inner` [M] of each row of a normalised mapping."""
    top = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    end = end_of_keys(rows, keys, MASK_FORM)
    if ONE_TILE:
        top = tl.max(tl.where(visible, x, -float("inf")), 1)
    else:
        for first in range(0, end, N):
            cols = first + tl.arange(0, N)
            k = load_rows(K, cols, key_step, keys, DIM, WIDTH)
            seen = find_visible(mask, rows, cols, mask_query, mask_key, queries, keys, MASK_FORM)
            scores = tl.where(seen, product(q, tl.trans(k), IEEE) * scale, -float("inf"))
            top = tl.maximum(top, tl.max(scores, 1))
    top = tl.where(top == -float("inf"), 0.0, top)  # rows without a visible key
    if MAP == SOFTMAX:
        if ONE_TILE:
            total = tl.sum(tl.where(visible, tl.exp(x - top[:, None]), 0.0), 1)
        else:
            for first in range(0, end, N):
                cols = first + tl.arange(0, N)
                k = load_rows(K, cols, key_step, keys, DIM, WIDTH)
                seen = find_visible(
                    mask, rows, cols, mask_query, mask_key, queries, keys, MASK_FORM
                )
                scores = product(q, tl.trans(k), IEEE) * scale
                total += tl.sum(tl.where(seen, tl.exp(scores - top[:, None]), 0.0), 1)
        inner = 1.0 / tl.where(total == 0.0, 1.0, total)
    else:
        inner = start_threshold(top, parameter)
        total, slope = row_sums(
            x, visible, q, K, mask, rows, mask_query, mask_key,
            key_step, queries, keys, scale, top, inner,
            parameter, DIM, WIDTH, N, MAP, MASK_FORM, IEEE, ONE_TILE,
        )  # fmt: skip
        inner, _ = newton_step(inner, total, slope, parameter, True, MAP)
        moving, number = 1, 1
        while (moving > 0) & (number < 60):
            total, slope = row_sums(
                x, visible, q, K, mask, rows, mask_query, mask_key,
                key_step, queries, keys, scale, top, inner,
                parameter, DIM, WIDTH, N, MAP, MASK_FORM, IEEE, ONE_TILE,
            )  # fmt: skip
            inner, going_on = newton_step(inner, total, slope, parameter, False, MAP)
            moving = tl.max(going_on.to(tl.int32), 0)
            number += 1
    return top, inner


@triton.jit
def forward_kernel(
    Q, K, V, OUTPUT, STATE, MASK, PARAMETERS, SEED,
    query_batch, query_head, query_step, key_batch, key_head, key_step,
    output_batch, output_head, output_step,
    mask_batch, mask_head, mask_query, mask_key,
    queries, keys, scale, fixed, least_kept, keep_scale,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MAP: tl.constexpr, PER_HEAD: tl.constexpr, MASK_FORM: tl.constexpr, DROPPED: tl.constexpr,
    IEEE: tl.constexpr, ONE_TILE: tl.constexpr,
):  # fmt: skip
    """The output of M queries of one head of one sentence, and the state of their rows."""
    block, number = tl.program_id(0), tl.program_id(1)
    batch, head = (number // HEADS).to(tl.int64), number % HEADS
    Q += batch * query_batch + head * query_head
    K += batch * key_batch + head * key_head
    V += batch * key_batch + head * key_head
    OUTPUT += batch * output_batch + head * output_head
    mask = MASK + batch * mask_batch + head * mask_head
    parameter = find_parameter(PARAMETERS, head, fixed, MAP, PER_HEAD)
    rows = block * M + tl.arange(0, M)
    q = load_rows(Q, rows, query_step, queries, DIM, WIDTH)
    x, visible = 0.0, 0
    top, inner = tl.zeros([M], tl.float32), tl.zeros([M], tl.float32)
    if ONE_TILE:
        cols = tl.arange(0, N)
        k = load_rows(K, cols, key_step, keys, DIM, WIDTH)
        visible = find_visible(mask, rows, cols, mask_query, mask_key, queries, keys, MASK_FORM)
        x = product(q, tl.trans(k), IEEE) * scale
    if MAP <= NORMALISED:
        top, inner = describe_rows(
            x, visible, q, K, mask, rows, mask_query, mask_key,
            key_step, queries, keys, scale, parameter,
            DIM, WIDTH, M, N, MAP, MASK_FORM, IEEE, ONE_TILE,
        )  # fmt: skip
        state = STATE + (number.to(tl.int64) * queries + rows) * 2
        tl.store(state, top, rows < queries)
        tl.store(state + 1, inner, rows < queries)
    if DROPPED:
        seed = tl.load(SEED)
    if ONE_TILE:
        weights, _ = weigh(x, visible, top, inner, parameter, MAP)
        if DROPPED:
            weights *= dropout_scale(seed, number, rows, cols, keys, least_kept, keep_scale)
        v = load_rows(V, cols, key_step, keys, DIM, WIDTH)
        output = product(as_operand(weights, v), v, IEEE)
    else:
        output = tl.zeros([M, WIDTH], tl.float32)
        end = end_of_keys(rows, keys, MASK_FORM)
        for first in range(0, end, N):
            cols = first + tl.arange(0, N)
            k = load_rows(K, cols, key_step, keys, DIM, WIDTH)
            seen = find_visible(mask, rows, cols, mask_query, mask_key, queries, keys, MASK_FORM)
            scores = product(q, tl.trans(k), IEEE) * scale
            weights, _ = weigh(scores, seen, top, inner, parameter, MAP)
            if DROPPED:
                weights *= dropout_scale(seed, number, rows, cols, keys, least_kept, keep_scale)
            v = load_rows(V, cols, key_step, keys, DIM, WIDTH)
            output += product(as_operand(weights, v), v, IEEE)
    store_rows(OUTPUT, rows, output_step, queries, output, DIM, WIDTH)


@triton.jit
def gradient_tile(
    q, k, v, grad, mask, rows, cols, mask_query, mask_key,
    queries, keys, scale, top, inner, parameter,
    seed, number, least_kept, keep_scale,
    MAP: tl.constexpr, MASK_FORM: tl.constexpr, DROPPED: tl.constexpr,
    IEEE: tl.constexpr,
):  # fmt: skip
    """Of one tile: weights p, slopes g, dropout's factors, and the gradient dp of the weights."""
    visible = find_visible(mask, rows, cols, mask_query, mask_key, queries, keys, MASK_FORM)
    p, g = weigh(product(q, tl.trans(k), IEEE) * scale, visible, top, inner, parameter, MAP)
    dp = product(grad, tl.trans(v), IEEE)
    dropped = p
    if DROPPED:
        factors = dropout_scale(seed, number, rows, cols, keys, least_kept, keep_scale)
        dropped = p * factors
        dp *= factors
    return p, g, dropped, dp


@triton.jit
def parameter_sum(p, g, dp, parameter, MAP: tl.constexpr):
    """The part [M] of a tile's rows in the gradient of the head's parameter.

    The mean has been subtracted from dp. A sum over the rows, too, fails to compile for sm_100 in a
    loop.
    """
    if MAP == ENTMAX:
        return tl.sum(beta_slope(p, g, parameter) * dp, 1)
    else:
        return -tl.sum(g * dp, 1)


@triton.jit
def backward_queries_kernel(
    Q, K, V, GRAD, STATE, MEAN, MASK, PARAMETERS, SEED, GRAD_Q, GRAD_PARAMETERS,
    query_batch, query_head, query_step, key_batch, key_head, key_step,
    output_batch, output_head, output_step,
    mask_batch, mask_head, mask_query, mask_key,
    queries, keys, scale, fixed, least_kept, keep_scale,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MAP: tl.constexpr, PER_HEAD: tl.constexpr, MASK_FORM: tl.constexpr, DROPPED: tl.constexpr,
    IEEE: tl.constexpr, LEARNED: tl.constexpr,
):  # fmt: skip
    """Gradients of M queries, the mean [M] of each row, and a part of the parameter's gradient."""
    block, number = tl.program_id(0), tl.program_id(1)
    batch, head = (number // HEADS).to(tl.int64), number % HEADS
    Q += batch * query_batch + head * query_head
    GRAD_Q += batch * query_batch + head * query_head
    K += batch * key_batch + head * key_head
    V += batch * key_batch + head * key_head
    GRAD += batch * output_batch + head * output_head
    mask = MASK + batch * mask_batch + head * mask_head
    parameter = find_parameter(PARAMETERS, head, fixed, MAP, PER_HEAD)
    rows = block * M + tl.arange(0, M)
    q = load_rows(Q, rows, query_step, queries, DIM, WIDTH)
    grad = load_rows(GRAD, rows, output_step, queries, DIM, WIDTH)
    place = number.to(tl.int64) * queries + rows
    top, inner = tl.zeros([M], tl.float32), tl.zeros([M], tl.float32)
    if MAP <= NORMALISED:
        top = tl.load(STATE + place * 2, rows < queries, other=0.0)
        inner = tl.load(STATE + place * 2 + 1, rows < queries, other=0.0)
    seed = 0
    if DROPPED:
        seed = tl.load(SEED)
    mean = tl.zeros([M], tl.float32)
    end = end_of_keys(rows, keys, MASK_FORM)
    if MAP <= NORMALISED:
        total = tl.zeros([M], tl.float32)
        for first in range(0, end, N):
            cols = first + tl.arange(0, N)
            k = load_rows(K, cols, key_step, keys, DIM, WIDTH)
            v = load_rows(V, cols, key_step, keys, DIM, WIDTH)
            p, g, dropped, dp = gradient_tile(
                q, k, v, grad, mask, rows, cols, mask_query, mask_key,
                queries, keys, scale, top, inner, parameter,
                seed, number, least_kept, keep_scale, MAP, MASK_FORM, DROPPED, IEEE,
            )  # fmt: skip
            total += tl.sum(g, 1)
            mean += tl.sum(g * dp, 1)
        mean /= tl.maximum(total, TINY)
        tl.store(MEAN + place, mean, rows < queries)
    grad_q = tl.zeros([M, WIDTH], tl.float32)
    grad_parameter = tl.zeros([M], tl.float32)
    for first in range(0, end, N):
        cols = first + tl.arange(0, N)
        k = load_rows(K, cols, key_step, keys, DIM, WIDTH)
        v = load_rows(V, cols, key_step, keys, DIM, WIDTH)
        p, g, dropped, dp = gradient_tile(
            q, k, v, grad, mask, rows, cols, mask_query, mask_key,
            queries, keys, scale, top, inner, parameter,
            seed, number, least_kept, keep_scale, MAP, MASK_FORM, DROPPED, IEEE,
        )  # fmt: skip
        dp -= mean[:, None]
        if LEARNED:
            grad_parameter += parameter_sum(p, g, dp, parameter, MAP)
        grad_q += product((g * dp * scale).to(k.dtype), k, IEEE)
    store_rows(GRAD_Q, rows, query_step, queries, grad_q, DIM, WIDTH)
    if LEARNED:
        place = number.to(tl.int64) * tl.num_programs(0) + block
        tl.store(GRAD_PARAMETERS + place, tl.sum(grad_parameter, 0))


@triton.jit
def backward_keys_kernel(
    Q, K, V, GRAD, STATE, MEAN, MASK, PARAMETERS, SEED, GRAD_K, GRAD_V,
    query_batch, query_head, query_step, key_batch, key_head, key_step,
    output_batch, output_head, output_step,
    mask_batch, mask_head, mask_query, mask_key,
    queries, keys, scale, fixed, least_kept, keep_scale,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MAP: tl.constexpr, PER_HEAD: tl.constexpr, MASK_FORM: tl.constexpr, DROPPED: tl.constexpr,
    IEEE: tl.constexpr,
):  # fmt: skip
    """Gradients of N keys and values of one head of one sentence."""
    block, number = tl.program_id(0), tl.program_id(1)
    batch, head = (number // HEADS).to(tl.int64), number % HEADS
    Q += batch * query_batch + head * query_head
    K += batch * key_batch + head * key_head
    V += batch * key_batch + head * key_head
    GRAD_K += batch * key_batch + head * key_head
    GRAD_V += batch * key_batch + head * key_head
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
        place = number.to(tl.int64) * queries + rows
        top, inner = tl.zeros([M], tl.float32), tl.zeros([M], tl.float32)
        mean = tl.zeros([M], tl.float32)
        if MAP <= NORMALISED:
            top = tl.load(STATE + place * 2, rows < queries, other=0.0)
            inner = tl.load(STATE + place * 2 + 1, rows < queries, other=0.0)
            mean = tl.load(MEAN + place, rows < queries, other=0.0)
        p, g, dropped, dp = gradient_tile(
            q, k, v, grad, mask, rows, cols, mask_query, mask_key,
            queries, keys, scale, top, inner, parameter,
            seed, number, least_kept, keep_scale, MAP, MASK_FORM, DROPPED, IEEE,
        )  # fmt: skip
        grad_v += product(tl.trans(as_operand(dropped, grad)), grad, IEEE)
        grad_k += product(tl.trans((g * (dp - mean[:, None]) * scale).to(q.dtype)), q, IEEE)
    store_rows(GRAD_K, cols, key_step, keys, grad_k, DIM, WIDTH)
    store_rows(GRAD_V, cols, key_step, keys, grad_v, DIM, WIDTH)


@triton.jit
def backward_short_kernel(
    Q, K, V, GRAD, STATE, MASK, PARAMETERS, SEED, GRAD_Q, GRAD_K, GRAD_V, GRAD_PARAMETERS,
    query_batch, query_head, query_step, key_batch, key_head, key_step,
    output_batch, output_head, output_step,
    mask_batch, mask_head, mask_query, mask_key,
    queries, keys, scale, fixed, least_kept, keep_scale,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MAP: tl.constexpr, PER_HEAD: tl.constexpr, MASK_FORM: tl.constexpr, DROPPED: tl.constexpr,
    IEEE: tl.constexpr, LEARNED: tl.constexpr,
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
    place = number.to(tl.int64) * queries + rows
    top, inner = tl.zeros([M], tl.float32), tl.zeros([M], tl.float32)
    if MAP <= NORMALISED:
        top = tl.load(STATE + place * 2, rows < queries, other=0.0)
        inner = tl.load(STATE + place * 2 + 1, rows < queries, other=0.0)
    seed = 0
    if DROPPED:
        seed = tl.load(SEED)
    p, g, dropped, dp = gradient_tile(
        q, k, v, grad, mask, rows, cols, mask_query, mask_key,
        queries, keys, scale, top, inner, parameter,
        seed, number, least_kept, keep_scale, MAP, MASK_FORM, DROPPED, IEEE,
    )  # fmt: skip
    grad_v = product(tl.trans(as_operand(dropped, grad)), grad, IEEE)
    store_rows(GRAD_V + key_place, cols, key_step, keys, grad_v, DIM, WIDTH)
    if MAP <= NORMALISED:
        mean = tl.sum(g * dp, 1) / tl.maximum(tl.sum(g, 1), TINY)
        dp -= mean[:, None]
    if LEARNED:
        grad_parameter = tl.sum(parameter_sum(p, g, dp, parameter, MAP), 0)
        tl.store(GRAD_PARAMETERS + number, grad_parameter)
    ds = (g * dp * scale).to(q.dtype)
    store_rows(GRAD_K + key_place, cols, key_step, keys, product(tl.trans(ds), q, IEEE), DIM, WIDTH)
    store_rows(GRAD_Q + query_place, rows, query_step, queries, product(ds, k, IEEE), DIM, WIDTH)
