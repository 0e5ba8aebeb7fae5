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
fewer steps, and hardly ever another output). With `narrow` every hypothesis that ends takes a place
of the beam, and a sentence is over when no place is left: this is the search of Marian, which finds
less. `current` and `full` are the search of `generate` of Hugging Face: a sentence is over when K
hypotheses have ended and (`current`) no live one would rank among the best K by its score at its
present length. There, an output that reaches the maximum length ends at no cost.
The logits and the scores of hypotheses stay on the device. The host follows by a record of what was
chosen (search_record.py), for which it waits once per step. On a GPU it waits for the step before
the last, while the GPU is already computing the next one: sentences that are over leave one step
later, with the same results.
A finished hypothesis scores log p / ((5 + n) / 6)^length_penalty (Wu et al. 2016, equation 14), or
log p / n^length_penalty with `normalization: length`; its length n counts the end token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from nmt.config.search_options import FREE_END, SearchOptions
from nmt.data.ragged import Integers
from nmt.decoding.choices import choose_samples
from nmt.decoding.search_record import (
    ChosenStep,
    Hypothesis,
    SearchRecord,
    Symbols,
)
from nmt.ops.beam import Candidates, choose_beam, normalize

__all__ = ["Hypothesis", "StepFunction", "Symbols", "search"]

# A token that search is forced to take (of a prefix, or the end at the maximum length) although its
# probability is 0 costs this much instead of the whole hypothesis.
FORCED_ZERO = -1e4


class StepFunction(Protocol):
    """Computes the next logits of every hypothesis, and remembers what each has read so far."""

    def __call__(self, tokens: Tensor) -> Tensor:
        """Read tokens [B, K], return logits [B, K, V] of the next; the caller may modify them."""

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis k of sentence b goes on from the old hypothesis parents[b, k]."""

    def select(self, sentences: Tensor) -> None:
        """Keep these sentences [B'] of the batch, in this order."""


@dataclass
class BeamState:
    """The sentences that are still in the batch: live hypotheses, and what they have to obey."""

    tokens: Tensor  # [B, K] the last of each live hypothesis
    scores: Tensor  # [B, K] float64 log probability of each live hypothesis; -inf: no hypothesis
    uniform: Tensor | None  # [B, K, limit + 1] random numbers for sampling
    places: Tensor  # [B] of the beam that `narrow` has left
    limits: Integers  # [B] most tokens before the end token
    least_limit: int  # of all sentences that were in the batch
    forced: Integers  # [B, P] prefixes; -1 where the choice is free

    def select(self, rows: Integers, index: Tensor) -> None:
        """Keep these rows [B'] of the batch; `index` has them on the device."""
        self.tokens = self.tokens.index_select(0, index)
        self.scores = self.scores.index_select(0, index)
        self.places = self.places.index_select(0, index)
        if self.uniform is not None:
            self.uniform = self.uniform.index_select(0, index)
        self.limits, self.forced = self.limits[rows], self.forced[rows]


class Choice:
    """The choices of a step, on their way to the host."""

    def __init__(self, finished: Candidates, live: Candidates, rows: Integers | None) -> None:
        self.rows = rows
        self.event: torch.cuda.Event | None = None
        self.parts = [finished.parents, finished.scores, live.parents, live.tokens, live.scores]
        if finished.scores.is_cuda:
            # All as bits of one type, so that it is one launch and one copy.
            whole = torch.cat([part.view(torch.float64) for part in self.parts], dim=1)
            arriving = torch.empty(whole.shape, dtype=torch.float64, pin_memory=True)
            arriving.copy_(whole, non_blocking=True)
            self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.event.record()
            self.parts = [arriving]

    def read(self) -> ChosenStep:
        """The choice as the host needs it; waits until it has arrived."""
        if self.event is None:
            return ChosenStep(self.rows, *(part.numpy() for part in self.parts))
        self.event.synchronize()
        parts = np.split(self.parts[0].numpy(), 5, axis=1)
        numbers = [parts[index].view(np.int64) for index in (0, 2, 3)]
        return ChosenStep(self.rows, numbers[0], parts[1], numbers[1], numbers[2], parts[4])


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
    lagging: bool | None = None,
) -> list[list[Hypothesis]]:
    """The `nbest` best finished hypotheses of each sentence, best first.

    A sentence for which every number the step function returned was NaN gets an empty list.
    `max_lengths` counts tokens before the end token, and the step function was made for as many;
    `prefixes`, which are no longer, are tokens each output has to start with; `seeds` number the
    sentences for sampling; the last `num_padding` sentences only fill up the batch and have no
    result. The size of the batch stays a multiple of `batch_multiple` while sentences leave.
    `lagging` says whether the host follows one step behind: by default on a GPU.
    """
    lagging = torch.device(device).type == "cuda" if lagging is None else lagging
    state = start_state(
        options, symbols, max_lengths=max_lengths, prefixes=prefixes, seeds=seeds, device=device
    )
    record = SearchRecord(options, max_lengths, len(max_lengths) - num_padding)
    waiting: Choice | None = None
    rows: Integers | None = None
    for length in range(max(max_lengths) + 1 if record.endings else 0):
        logits = step(state.tokens)
        if waiting is not None:
            record.add(waiting.read())
            if record.is_complete:
                break
        finished, live = choose(logits, state, options, symbols, length)
        waiting = Choice(finished, live, rows)
        if not lagging:
            record.add(waiting.read())
            waiting = None
            if record.is_complete:
                break
        advance(step, state, live, options)
        # While the record is behind by a selection, its rows are not those of the state.
        rows = record.leaving(batch_multiple) if len(record.over) == len(state.limits) else None
        if rows is not None:
            index = on_device(rows, state.tokens.device)
            step.select(index)
            state.select(rows, index)
    else:
        if waiting is not None:
            record.add(waiting.read())
    return record.results()


def start_state(
    options: SearchOptions,
    symbols: Symbols,
    *,
    max_lengths: Sequence[int],
    prefixes: Sequence[Sequence[int]] | None,
    seeds: Sequence[int] | None,
    device: torch.device | str,
) -> BeamState:
    """The state before the first step: one live hypothesis per sentence, `beam` if sampling."""
    size, beam = len(max_lengths), 1 if options.sampling is None else options.width
    prefixes = prefixes or [()] * size
    forced = np.full((size, max(map(len, prefixes), default=0)), -1)
    for row, (limit, prefix) in enumerate(zip(max_lengths, prefixes, strict=True)):
        if len(prefix) > limit:
            raise ValueError(f"expected a prefix of at most {limit} tokens, got {len(prefix)}")
        forced[row, : len(prefix)] = prefix
    uniform = None
    if options.sampling is not None:
        seeds = seeds or range(size)
        uniform = draw_uniform(options.sampling.seed, seeds, max_lengths, beam).to(device)
    return BeamState(
        tokens=torch.full((size, beam), symbols.start, device=device),
        scores=torch.zeros(size, beam, dtype=torch.float64, device=device),
        uniform=uniform,
        places=torch.full((size,), options.beam, device=device),
        limits=np.array(max_lengths, dtype=np.int64),
        least_limit=min(max_lengths, default=0),
        forced=forced,
    )


def draw_uniform(seed: int, sentences: Sequence[int], limits: Sequence[int], beam: int) -> Tensor:
    """Random numbers [B, K, longest] that depend on seed and sentence, not on the batch."""
    numbers = torch.zeros(len(limits), beam, max(limits, default=0) + 1, dtype=torch.float64)
    for row, (sentence, limit) in enumerate(zip(sentences, limits, strict=True)):
        drawn = np.random.default_rng([seed, sentence]).random((limit + 1, beam))
        numbers[row, :, : limit + 1] = torch.from_numpy(drawn).T
    return numbers


def on_device(numbers: Integers, device: torch.device) -> Tensor:
    """Numbers of the host as a tensor, for which a GPU does not make the host wait."""
    made = torch.tensor(numbers)
    return made.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else made


def choose(
    logits: Tensor, state: BeamState, options: SearchOptions, symbols: Symbols, length: int
) -> tuple[Candidates, Candidates]:
    """The candidates that end after `length` tokens and those that live on, [B, K] each."""
    normalizer = normalize(logits)
    constrain(logits, normalizer, state, symbols, length, options)
    if state.uniform is None:
        chosen = choose_beam(logits, normalizer, state.scores, beam=options.beam, end=symbols.end)
        return narrow(*chosen, state) if options.early_stop == "narrow" else chosen
    assert options.sampling is not None
    return choose_samples(
        logits,
        normalizer,
        state.scores,
        end=symbols.end,
        sampling=options.sampling,
        uniform=state.uniform[:, :, length],
    )


def narrow(
    finished: Candidates, live: Candidates, state: BeamState
) -> tuple[Candidates, Candidates]:
    """The candidates that have a place: the best of both kinds; those that end take theirs."""
    beam = finished.scores.shape[1]
    both = torch.cat([finished.scores, live.scores], dim=1)
    ranks = both.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    both = both.masked_fill(ranks >= state.places[:, None], -torch.inf)
    ended, going_on = both[:, :beam].contiguous(), both[:, beam:].contiguous()
    state.places = state.places - ended.isfinite().sum(dim=1)
    return replace(finished, scores=ended), replace(live, scores=going_on)


def constrain(
    logits: Tensor,
    normalizer: Tensor,
    state: BeamState,
    symbols: Symbols,
    length: int,
    options: SearchOptions,
) -> None:
    """Set the logits of what may not come after `length` tokens to -inf, in place."""
    free = options.early_stop in FREE_END
    forced = force(logits, normalizer, state, symbols.end, length, free=free)
    never = [*symbols.never, *([symbols.end] if length < options.min_length else [])]
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
    logits: Tensor, normalizer: Tensor, state: BeamState, end: int, length: int, *, free: bool
) -> tuple[Tensor, Tensor] | None:
    """The sentences [F] without a choice after `length` tokens, by their prefix or their limit.

    With them their logits [F, K, V], -inf but for the token that has to come. If it is the end and
    `free`, its probability is 1.
    """
    in_prefix = length < state.forced.shape[1]
    if not in_prefix and length < state.least_limit:
        return None
    tokens = state.forced[:, length] if in_prefix else np.full(len(state.limits), -1)
    tokens = np.where((tokens < 0) & (state.limits <= length), end, tokens)
    chosen = np.flatnonzero(tokens >= 0)
    if len(chosen) == 0:
        return None
    rows = on_device(chosen, logits.device)
    wanted = on_device(tokens[chosen], logits.device)
    index = wanted[:, None, None].expand(-1, logits.shape[1], 1)
    kept = logits[rows].gather(2, index)
    possible = normalizer[rows][:, :, None].isfinite()
    floor = normalizer[rows][:, :, None] + FORCED_ZERO
    kept = torch.where(possible & kept.isinf(), floor, kept)
    if free:
        kept = torch.where(possible & (index[:, :, :1] == end), normalizer[rows][:, :, None], kept)
    return rows, torch.full_like(logits[rows], -torch.inf).scatter(2, index, kept)


def advance(step: StepFunction, state: BeamState, live: Candidates, options: SearchOptions) -> None:
    """Make the chosen continuations the live hypotheses."""
    if options.sampling is None and options.beam > 1 and is_reordered(live.parents, state.tokens):
        step.reorder(live.parents)
    state.tokens, state.scores = live.tokens, live.scores


def is_reordered(parents: Tensor, tokens: Tensor) -> bool:
    """Whether hypotheses do not each continue themselves; a GPU is not asked."""
    if parents.is_cuda or parents.shape != tokens.shape:
        return True
    return bool((parents.numpy() != np.arange(parents.shape[1])).any())
