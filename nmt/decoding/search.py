"""Find good outputs of a step function: greedy and beam search, and sampling.

Search knows nothing of models: it asks a step function for logits and tells it which hypotheses to
keep, so it is tested on hand-written tables. Greedy search is beam search with a beam of 1.

Shapes: B sentences, K hypotheses per sentence (the beam; a single one before the first step,
unless samples are drawn), V vocabulary, T tokens so far, C candidates, N wanted results.

What beam search does: every step ranks the continuations of all hypotheses of a sentence. Those
among the best K that end are finished; the best K that do not end live on. A sentence is over when
no live hypothesis can still beat the N-th best finished one; greedy search ends with the first end
token. `early_stop` says what a hypothesis can still reach: what it would score if all further
tokens up to the maximum length were free (`exact`), or those of a quarter of its length (`likely`:
fewer steps, and hardly ever another output).
A finished hypothesis scores log p / ((5 + n) / 6)^length_penalty (Wu et al. 2016, equation 14); its
length n counts the end token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from nmt.config.search_options import SearchOptions
from nmt.decoding.choices import choose_samples
from nmt.ops.beam import Candidates, choose_beam, normalize

# A token that search is forced to take (of a prefix, or the end at the maximum length) although its
# probability is 0 costs this much instead of the whole hypothesis.
FORCED_ZERO = -1e4

# With `likely`, hypotheses are taken to end within this share of their length, or this many tokens.
LIKELY_SHARE = 0.25
LIKELY_TOKENS = 2

# Sentences that are over leave the batch when at least this share of it is over.
LEAVE_SHARE = 0.05


class StepFunction(Protocol):
    """Computes the next logits of every hypothesis, and remembers what each has read so far."""

    def __call__(self, tokens: Tensor) -> Tensor:
        """Read tokens [B, K], return logits [B, K, V] of the next; the caller may modify them."""

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis k of sentence b goes on from the old hypothesis parents[b, k]."""

    def select(self, sentences: Tensor) -> None:
        """Keep these sentences [B'] of the batch, in this order."""


@dataclass(frozen=True)
class Symbols:
    """The tokens that begin and end an output, and those that are never chosen."""

    start: int
    end: int
    never: tuple[int, ...] = ()


@dataclass(frozen=True)
class Hypothesis:
    """A finished output, without start and end token."""

    tokens: tuple[int, ...]
    log_probability: float  # of all tokens and the end token
    score: float  # log probability over length penalty


@dataclass
class SearchState:
    """The state of the sentences that are still in the batch, after T tokens."""

    sentences: Tensor  # [B] position in the results
    over: Tensor  # [B] bool: nothing more is wanted of this sentence
    tokens: Tensor  # [B, K, T + 1], the start token first
    scores: Tensor  # [B, K] float64 log probability of each live hypothesis; -inf: no hypothesis
    limits: Tensor  # [B] most tokens before the end token
    least_limit: int  # of all sentences that were in the batch
    forced: Tensor  # [B, P] prefixes; -1 where the choice is free
    num_finished: Tensor  # [B]
    any_finished: bool  # of any sentence
    best: Tensor  # [B, N] float64 scores of the best finished hypotheses, best first
    uniform: Tensor | None  # [B, K, limit + 1] random numbers for sampling

    def select(self, rows: Tensor) -> None:
        """Keep these rows [B'] of the batch."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value.index_select(0, rows))


def length_penalty(length: Tensor | float, power: float) -> Tensor:
    """The divisor of the log probability of an output of this length (with the end token)."""
    return ((5.0 + torch.as_tensor(length, dtype=torch.float64)) / 6.0) ** power


def search(
    step: StepFunction,
    options: SearchOptions,
    symbols: Symbols,
    *,
    max_lengths: Sequence[int],
    prefixes: Sequence[Sequence[int]] | None = None,
    seeds: Sequence[int] | None = None,
    num_padding: int = 0,
    batch_multiple: int = 1,
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """The `nbest` best finished hypotheses of each sentence, best first.

    A sentence for which every number the step function returned was NaN gets an empty list.
    `max_lengths` counts tokens before the end token, and the step function was made for as many;
    `prefixes`, which are no longer, are tokens each output has to start with; `seeds` number the
    sentences for sampling; the last `num_padding` sentences only fill up the batch and have no
    result. The size of the batch stays a multiple of `batch_multiple` while sentences leave.
    """
    num_sentences = len(max_lengths) - num_padding
    state = start_state(
        options, symbols, max_lengths=max_lengths, prefixes=prefixes, seeds=seeds, device=device
    )
    state.over[num_sentences:] = True
    results: list[list[Hypothesis]] = [[] for _ in range(num_sentences)]
    for length in range(int(state.limits.max()) + 1 if num_sentences else 0):
        logits = step(state.tokens[:, :, -1])
        normalizer = normalize(logits)
        constrain(logits, normalizer, state, symbols, length, least=options.min_length)
        if state.uniform is None:
            finished, live = choose_beam(
                logits, normalizer, state.scores, beam=options.beam, end=symbols.end
            )
        else:
            assert options.sampling is not None
            finished, live = choose_samples(
                logits,
                normalizer,
                state.scores,
                end=symbols.end,
                sampling=options.sampling,
                uniform=state.uniform[:, :, length],
            )
        finished.scores.masked_fill_(state.over[:, None], -torch.inf)
        record(results, state, finished, options, length)
        advance(step, state, live)
        mark_over(state, options, length)
        num_over = int(state.over.sum())
        if num_over == len(state.over):
            break
        if num_over >= max(1.0, LEAVE_SHARE * len(state.over)):
            drop_over(step, state, batch_multiple)
    for hypotheses in results:
        hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
    return [hypotheses[: options.nbest] for hypotheses in results]


def start_state(
    options: SearchOptions,
    symbols: Symbols,
    *,
    max_lengths: Sequence[int],
    prefixes: Sequence[Sequence[int]] | None,
    seeds: Sequence[int] | None,
    device: torch.device | str,
) -> SearchState:
    """The state before the first step: one live hypothesis per sentence, `beam` if sampling."""
    size, beam = len(max_lengths), 1 if options.sampling is None else options.width
    prefixes = prefixes or [()] * size
    for limit, prefix in zip(max_lengths, prefixes, strict=True):
        if len(prefix) > limit:
            raise ValueError(f"expected a prefix of at most {limit} tokens, got {len(prefix)}")
    forced = torch.full((size, max(map(len, prefixes), default=0)), -1)
    for row, prefix in enumerate(prefixes):
        forced[row, : len(prefix)] = torch.tensor(prefix, dtype=torch.int64)
    scores = torch.zeros(size, beam, dtype=torch.float64, device=device)
    uniform = None
    if options.sampling is not None:
        seeds = seeds or range(size)
        uniform = draw_uniform(options.sampling.seed, seeds, max_lengths, beam).to(device)
    return SearchState(
        sentences=torch.arange(size, device=device),
        over=torch.zeros(size, dtype=torch.bool, device=device),
        tokens=torch.full((size, beam, 1), symbols.start, device=device),
        scores=scores,
        limits=torch.tensor(max_lengths, dtype=torch.int64, device=device),
        least_limit=min(max_lengths, default=0),
        forced=forced.to(device),
        num_finished=torch.zeros(size, dtype=torch.int64, device=device),
        any_finished=False,
        best=torch.full((size, options.nbest), -torch.inf, dtype=torch.float64, device=device),
        uniform=uniform,
    )


def draw_uniform(seed: int, sentences: Sequence[int], limits: Sequence[int], beam: int) -> Tensor:
    """Random numbers [B, K, longest] that depend on seed and sentence, not on the batch."""
    numbers = torch.zeros(len(limits), beam, max(limits, default=0) + 1, dtype=torch.float64)
    for row, (sentence, limit) in enumerate(zip(sentences, limits, strict=True)):
        drawn = np.random.default_rng([seed, sentence]).random((limit + 1, beam))
        numbers[row, :, : limit + 1] = torch.from_numpy(drawn).T
    return numbers


def constrain(
    logits: Tensor,
    normalizer: Tensor,
    state: SearchState,
    symbols: Symbols,
    length: int,
    *,
    least: int,
) -> None:
    """Set the logits of what may not come after `length` tokens to -inf, in place.

    An output does not end before it has `least` tokens.
    """
    # Whether a sentence is forced is looked up only when one of them may be.
    may_force = length < state.forced.shape[1] or length >= state.least_limit
    forced = force(logits, normalizer, state, symbols.end, length) if may_force else None
    never = [*symbols.never, *([symbols.end] if length < least else [])]
    if never:
        logits.index_fill_(2, index(tuple(never), logits.device), -torch.inf)
    if forced is not None:
        rows, only = forced
        logits[rows] = only


@cache
def index(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """A tensor of some numbers, made once: every step of a search takes the same."""
    return torch.tensor(numbers, device=device)


def force(
    logits: Tensor, normalizer: Tensor, state: SearchState, end: int, length: int
) -> tuple[Tensor, Tensor]:
    """The sentences [F] without a choice after `length` tokens, by their prefix or their limit.

    With them their logits [F, K, V], -inf but for the token that has to come.
    """
    forced = torch.full_like(state.limits, -1)
    if length < state.forced.shape[1]:
        forced = state.forced[:, length]
    forced = forced.masked_fill((forced < 0) & (state.limits <= length), end)
    rows = (forced >= 0).nonzero()[:, 0]
    index = forced[rows][:, None, None].expand(-1, logits.shape[1], 1)
    kept = logits[rows].gather(2, index)
    possible = normalizer[rows][:, :, None].isfinite()
    floor = normalizer[rows][:, :, None] + FORCED_ZERO
    kept = torch.where(possible & kept.isinf(), floor, kept)
    return rows, torch.full_like(logits[rows], -torch.inf).scatter(2, index, kept)


def record(
    results: list[list[Hypothesis]],
    state: SearchState,
    finished: Candidates,
    options: SearchOptions,
    length: int,
) -> None:
    """Store the hypotheses that ended after `length` tokens, and their scores in the state."""
    ended = finished.scores > -torch.inf
    if not bool(ended.any()):
        return
    penalty = length_penalty(length + 1, options.length_penalty).to(finished.scores.device)
    scores = finished.scores / penalty
    state.any_finished = True
    state.num_finished += ended.sum(dim=1)
    state.best = torch.cat([state.best, scores], dim=1).topk(options.nbest, dim=1).values
    rows, ranks = ended.nonzero(as_tuple=True)
    columns = zip(
        state.sentences[rows].tolist(),
        state.tokens[rows, finished.parents[rows, ranks], 1:].tolist(),
        finished.scores[rows, ranks].tolist(),
        scores[rows, ranks].tolist(),
        strict=True,
    )
    for sentence, tokens, log_probability, score in columns:
        results[sentence].append(Hypothesis(tuple(tokens), log_probability, score))


def advance(step: StepFunction, state: SearchState, live: Candidates) -> None:
    """Make the chosen continuations the live hypotheses."""
    own = torch.arange(state.tokens.shape[1], device=live.parents.device)
    if live.parents.shape[1] != len(own) or not bool((live.parents == own).all()):
        step.reorder(live.parents)
        index = live.parents[:, :, None].expand(-1, -1, state.tokens.shape[2])
        state.tokens = state.tokens.gather(1, index)
    state.tokens = torch.cat([state.tokens, live.tokens[:, :, None]], dim=2)
    state.scores = live.scores


def mark_over(state: SearchState, options: SearchOptions, length: int) -> None:
    """Mark the sentences of which nothing better can come after `length + 1` tokens.

    A log probability only falls, so what a live hypothesis can reach at most is its present one
    over the penalty of the longest output it may become (of the shortest, for a negative power).
    """
    live = state.scores.amax(dim=1)
    state.over |= live == -torch.inf
    if not state.any_finished:
        return
    if options.sampling is not None or options.beam == 1:
        state.over |= state.num_finished >= options.width
        return
    live.clamp_(max=0.0)
    power = options.length_penalty
    soonest = max(length + 2, options.min_length + 1)  # with the end token
    longest = state.limits + 1
    if options.early_stop == "likely":
        ahead = max(LIKELY_TOKENS, int(LIKELY_SHARE * soonest))
        longest = longest.clamp(max=soonest + ahead)
    reached = live / length_penalty(longest, power)
    if power < 0.0:
        reached = live / length_penalty(soonest, power).to(live.device)
    state.over |= (state.num_finished >= options.nbest) & (state.best[:, -1] >= reached)


def drop_over(step: StepFunction, state: SearchState, batch_multiple: int) -> None:
    """Let sentences that are over leave the batch, as far as `batch_multiple` allows."""
    size = len(state.over)
    going_on = (~state.over).nonzero()[:, 0]
    keep = -(-len(going_on) // batch_multiple) * batch_multiple
    if keep >= size:
        return
    filling = state.over.nonzero()[: keep - len(going_on), 0]
    rows = torch.cat([going_on, filling])
    step.select(rows)
    state.select(rows)
