"""Kernels of a step of beam search: normalizers, best tokens of hypotheses, the choice of a beam.

Equal scores go by hypothesis, then by token id. -inf marks what does not exist. B sentences.
"""

import triton
import triton.language as tl


@triton.jit
def normalize_kernel(LOGITS, NORMALIZER, vocabulary, N: tl.constexpr):
    """The log of the sum of exponentials of a row; numbers that are not finite become -inf.

    It is +inf where nothing finite is left.
    """
    infinity = float("inf")
    row = tl.program_id(0).to(tl.int64)
    logits = LOGITS + row * vocabulary
    top, total = -infinity, 0.0
    for first in range(0, vocabulary, N):
        column = first + tl.arange(0, N)
        inside = column < vocabulary
        found = tl.load(logits + column, inside, other=-infinity)
        is_finite = (found > -infinity) & (found < infinity)
        x = tl.where(is_finite, found, -infinity)
        tl.store(logits + column, x, inside & (found != x))
        highest = tl.maximum(top, tl.max(x, 0))
        shift = tl.where(highest == -infinity, 0.0, highest)
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(x - shift), 0)
        top = highest
    tl.store(NORMALIZER + row, tl.where(total == 0.0, infinity, top + tl.log(total)))


@triton.jit
def best_tokens_kernel(
    LOGITS, VALUES, TOKENS, vocabulary,
    COUNT: tl.constexpr, SLOTS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """The COUNT highest logits of a row and their tokens, best first.

    Token t is at depth t // SLOTS of slot t % SLOTS. Every slot offers its best token; the slot
    whose token is taken offers its next best.
    """
    infinity = float("inf")
    row = tl.program_id(0).to(tl.int64)
    logits = LOGITS + row * vocabulary
    slot = tl.arange(0, SLOTS)
    offer = tl.full([SLOTS], -infinity, tl.float32)
    token = tl.zeros([SLOTS], tl.int32) + vocabulary
    for first in range(0, vocabulary, SLOTS):
        column = first + slot
        x = tl.load(logits + column, column < vocabulary, other=-infinity)
        token = tl.where(x > offer, column, token)
        offer = tl.maximum(offer, x)
    depth = tl.arange(0, DEPTH)
    for number in range(0, COUNT):
        value = tl.max(offer, 0)
        taken = tl.min(tl.where(offer == value, token, vocabulary), 0)
        tl.store(VALUES + row * COUNT + number, value)
        tl.store(TOKENS + row * COUNT + number, tl.minimum(taken, vocabulary - 1).to(tl.int64))
        column = depth * SLOTS + taken % SLOTS
        x = tl.load(logits + column, column < vocabulary, other=-infinity)
        comes_later = (x < value) | ((x == value) & (column > taken))
        x = tl.where(comes_later, x, -infinity)
        following = tl.max(x, 0)
        following_token = tl.min(tl.where(comes_later & (x == following), column, vocabulary), 0)
        is_its_slot = slot == taken % SLOTS
        offer = tl.where(is_its_slot, following, offer)
        token = tl.where(is_its_slot, following_token, token)


@triton.jit
def choose_beam_kernel(
    VALUES, TOKENS, NORMALIZER, SCORES, PARENTS, CHOSEN, TOTALS, end,
    WIDTH: tl.constexpr, COUNT: tl.constexpr, BEAM: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Of COUNT tokens of each of the WIDTH hypotheses of a sentence, the choice of a step.

    The outputs are [2, B, BEAM]: those that end among the BEAM best, and the best that do not end.
    """
    infinity = float("inf")
    sentence = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, N)
    inside = index < WIDTH * COUNT
    parent = index // COUNT
    place = sentence * WIDTH * COUNT + index
    value = tl.load(VALUES + place, inside, other=-infinity)
    token = tl.load(TOKENS + place, inside, other=0)
    normalizer = tl.load(NORMALIZER + sentence * WIDTH + parent, inside, other=0.0)
    score = tl.load(SCORES + sentence * WIDTH + parent, inside, other=-infinity)
    total = score + (value - normalizer).to(tl.float64)
    order = tl.where(inside, parent.to(tl.int64) << 32 | token, 1 << 62)
    finished = sentence * BEAM
    going_on = (tl.num_programs(0) + sentence) * BEAM
    live = 0
    for rank in range(0, 2 * BEAM):
        best = tl.max(total, 0)
        first = tl.min(tl.where(total == best, order, 1 << 62), 0)
        total = tl.where(order == first, -infinity, total)
        first_parent, first_token = first >> 32, first & 0xFFFFFFFF
        ends = first_token == end
        among_best = rank < BEAM
        tl.store(PARENTS + finished + rank, first_parent, among_best)
        tl.store(CHOSEN + finished + rank, first_token, among_best)
        tl.store(TOTALS + finished + rank, tl.where(ends, best, -infinity), among_best)
        goes_on = (first_token != end) & (live < BEAM)
        tl.store(PARENTS + going_on + live, first_parent, goes_on)
        tl.store(CHOSEN + going_on + live, first_token, goes_on)
        tl.store(TOTALS + going_on + live, best, goes_on)
        live += goes_on.to(tl.int32)
    for rank in range(0, BEAM):  # places for which there was no token
        tl.store(PARENTS + going_on + rank, tl.zeros_like(sentence), rank >= live)
        tl.store(CHOSEN + going_on + rank, tl.zeros_like(sentence) + end, rank >= live)
        tl.store(TOTALS + going_on + rank, -infinity, rank >= live)
