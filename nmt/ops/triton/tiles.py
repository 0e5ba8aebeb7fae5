"""Tiles of queries, keys and scores: loading, masks, products, dropout."""

import triton
import triton.language as tl

from nmt.ops.triton.numerics import product, random_bits

LENGTHS = ["queries", "keys"]  # for whose values no kernel is built anew

# Forms of the mask: none, one per sentence [B, 1, 1, K], a query sees the keys up to its own
# position, or any [B, H, Q, K]. The common forms take fewer registers than the general one.
NO_MASK = tl.constexpr(0)
KEY_MASK = tl.constexpr(1)
CAUSAL = tl.constexpr(2)
ANY_MASK = tl.constexpr(3)


@triton.jit
def find_program(count, SIZE: tl.constexpr):
    """The block of SIZE among `count` rows, and the head of the batch, that a program computes.

    All programs are on the first axis of the grid, because CUDA ends the others at 65,535. Those of
    a head, which read the same keys and values, come one after the other.
    """
    blocks = tl.cdiv(count, SIZE)
    return tl.program_id(0) % blocks, tl.program_id(0) // blocks


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
def masked_scores(
    q, K, mask, rows, first, mask_query, mask_key, key_step, queries, keys, scale,
    DIM: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr,
    MASK_FORM: tl.constexpr, IEEE: tl.constexpr,
):  # fmt: skip
    """Scores [M, N] of the keys from `first` on; -inf at hidden keys."""
    cols = first + tl.arange(0, N)
    k = load_rows(K, cols, key_step, keys, DIM, WIDTH)
    visible = find_visible(mask, rows, cols, mask_query, mask_key, queries, keys, MASK_FORM)
    return tl.where(visible, product(q, tl.trans(k), IEEE) * scale, -float("inf"))


@triton.jit
def is_kept(seed, number, rows, cols, keys, least_kept):
    """[M, N]: whether dropout keeps a weight; head `number` of the batch is the stream."""
    return random_bits(seed, number, rows[:, None] * keys + cols[None, :]) >= least_kept


@triton.jit
def as_operand(weights, like):
    """Weights in the dtype of a matrix they are multiplied with; float16 ends at its largest."""
    if like.dtype == tl.float16:
        weights = tl.where(weights > 65504.0, 65504.0, weights)
    return weights.to(like.dtype)


@triton.jit
def score_gradients(g, dp, factor, like):
    """Gradients g dp of scores, in the dtype of a matrix they are multiplied with.

    Their common factor comes after the product (`late_factor`), unless they are in float16, whose
    range is small.
    """
    gradients = g * dp
    if like.dtype == tl.float16:
        gradients *= factor
    return gradients.to(like.dtype)


@triton.jit
def late_factor(factor, like):
    """The factor of a product with `score_gradients`."""
    if like.dtype == tl.float16:
        return 1.0
    else:
        return factor
