"""Fused attention for every score mapping: no kernel writes scores or weights to memory.

A few numbers per query are kept for the backward pass (see mappings.py), which computes the weights
again. Rows of a normalised mapping stay in registers, where all their keys fit into TILES tiles;
otherwise each pass over the keys computes the scores again. STATES is the number of numbers per
row: 0 for mappings of single scores, which need no pass of their own.
"""

import triton
import triton.language as tl

from nmt.ops.triton.mappings import TOP_K, find_parameter, weigh
from nmt.ops.triton.numerics import product
from nmt.ops.triton.row_search import EXTREMES, find_cut, find_inner, hold_scores, lower, row_pair
from nmt.ops.triton.tiles import (
    LENGTHS,
    as_operand,
    end_of_keys,
    find_program,
    find_visible,
    is_kept,
    load_rows,
    store_rows,
)


@triton.jit
def append_slots(
    NEW, SLOTS, new_step, slot_step, count, rows,
    DIM: tl.constexpr, WIDTH: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """Write rows of new keys or values to their slots; NaN becomes 0, infinity the LIMIT."""
    new = load_rows(NEW, rows, new_step, count, DIM, WIDTH).to(tl.float32)
    new = tl.where(new != new, 0.0, new)
    new = tl.minimum(tl.maximum(new, -LIMIT), LIMIT)
    store_rows(SLOTS, rows, slot_step, count, new, DIM, WIDTH)


@triton.jit(do_not_specialize=[*LENGTHS, "first_slot"])
def forward_kernel(
    Q, K, V, OUTPUT, STATE, MASK, PARAMETERS, SEED,
    query_batch, query_head, query_step, key_batch, key_head, key_step,
    output_batch, output_head, output_step,
    mask_batch, mask_head, mask_query, mask_key,
    queries, keys, scale, fixed, least_kept, keep_scale, first_slot,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MAP: tl.constexpr, PER_HEAD: tl.constexpr, MASK_FORM: tl.constexpr, DROPPED: tl.constexpr,
    IEEE: tl.constexpr, FAST: tl.constexpr, STATES: tl.constexpr, TILES: tl.constexpr,
    APPENDED: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """The output of M queries of one head of one sentence, and the state of their rows."""
    block, number = find_program(queries, M)
    batch, head = (number // HEADS).to(tl.int64), number % HEADS
    Q += batch * query_batch + head * query_head
    K += batch * key_batch + head * key_head
    V += batch * key_batch + head * key_head
    OUTPUT += batch * output_batch + head * output_head
    mask = MASK + batch * mask_batch + head * mask_head
    parameter = find_parameter(PARAMETERS, head, fixed, MAP, PER_HEAD)
    rows = block * M + tl.arange(0, M)
    q = load_rows(Q, rows, query_step, queries, DIM, WIDTH)
    if APPENDED:  # by the only program of a head
        place = first_slot.to(tl.int64) * key_step
        width = HEADS * DIM
        append_slots(Q + width, K + place, query_step, key_step, queries, rows, DIM, WIDTH, LIMIT)
        append_slots(
            Q + 2 * width, V + place, query_step, key_step, queries, rows, DIM, WIDTH, LIMIT
        )
        tl.debug_barrier()  # all threads of the program read the new slots
    top, inner = tl.zeros([M], tl.float32), tl.zeros([M], tl.float32)
    tiles = hold_scores(
        q, K, mask, rows, mask_query, mask_key, key_step, queries, keys, scale,
        DIM, WIDTH, N, MASK_FORM, IEEE, TILES,
    )  # fmt: skip
    if STATES > 0:
        top, lowest = row_pair(
            tiles, q, K, mask, rows, mask_query, mask_key, key_step, queries, keys, scale, top, top,
            0.0, DIM, WIDTH, N, EXTREMES, MAP, MASK_FORM, IEEE, FAST, TILES,
        )  # fmt: skip
        top = tl.where(top == -float("inf"), 0.0, top)  # rows without a visible key
        tiles = lower(tiles, top, TILES)
        if MAP == TOP_K:
            parameter = find_cut(
                tiles, q, K, mask, rows, mask_query, mask_key, key_step, queries, keys, scale, top,
                lowest, fixed, DIM, WIDTH, N, MAP, MASK_FORM, IEEE, FAST, TILES,
            )  # fmt: skip
        inner = find_inner(
            tiles, q, K, mask, rows, mask_query, mask_key, key_step, queries, keys, scale, top,
            parameter, DIM, WIDTH, N, MAP, MASK_FORM, IEEE, FAST, TILES,
        )  # fmt: skip
        state = STATE + (number.to(tl.int64) * queries + rows) * STATES
        tl.store(state, top, rows < queries)
        tl.store(state + 1, inner, rows < queries)
        if MAP == TOP_K:
            tl.store(state + 2, parameter, rows < queries)
    if DROPPED:
        seed = tl.load(SEED)
    output = tl.zeros([M, WIDTH], tl.float32)
    if TILES > 0:
        for tile in tl.static_range(TILES):
            cols = tile * N + tl.arange(0, N)
            weights, _, _ = weigh(tiles[tile], inner, parameter, MAP, FAST)
            if DROPPED:
                kept = is_kept(seed, number, rows, cols, keys, least_kept)
                weights = tl.where(kept, weights, 0.0)
            v = load_rows(V, cols, key_step, keys, DIM, WIDTH)
            output += product(as_operand(weights, v), v, IEEE)
    else:
        for first in range(0, end_of_keys(rows, keys, MASK_FORM), N):
            cols = first + tl.arange(0, N)
            k = load_rows(K, cols, key_step, keys, DIM, WIDTH)
            seen = find_visible(mask, rows, cols, mask_query, mask_key, queries, keys, MASK_FORM)
            scores = product(q, tl.trans(k), IEEE) * scale
            weights, _, _ = weigh_visible(scores, seen, top, inner, parameter, MAP, FAST, STATES)
            if DROPPED:
                kept = is_kept(seed, number, rows, cols, keys, least_kept)
                weights = tl.where(kept, weights, 0.0)
            v = load_rows(V, cols, key_step, keys, DIM, WIDTH)
            output += product(as_operand(weights, v), v, IEEE)
    if DROPPED:
        output *= keep_scale
    store_rows(OUTPUT, rows, output_step, queries, output, DIM, WIDTH)


@triton.jit
def weigh_visible(
    scores, visible, top, inner, parameter,
    MAP: tl.constexpr, FAST: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """Weights, slopes and logarithms [M, N] of scores of which only some are visible."""
    if STATES > 0:
        x = tl.where(visible, scores - top[:, None], -float("inf"))
        return weigh(x, inner, parameter, MAP, FAST)
    else:
        p, g, log = weigh(scores, inner, parameter, MAP, FAST)
        return tl.where(visible, p, 0.0), tl.where(visible, g, 0.0), log
