"""Beam search by the engine in C over numpy arrays: the search of search.py, without torch.

Shapes: B sentences, K hypotheses per sentence (one before the first step), V vocabulary.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.config.search_options import SearchOptions
from nmt.decoding.engine import Engine, EngineBatch
from nmt.decoding.search_record import (
    ChosenStep,
    Hypothesis,
    Integers,
    Scores,
    SearchRecord,
    Symbols,
)
from nmt.ops.native import interface
from nmt.ops.native.interface import address

FORCED_ZERO = -1e4
LARGEST_LOG = 69.0

Floats = npt.NDArray[np.float32]


@dataclass
class ArrayState:
    """The sentences that are still in the batch."""

    tokens: Integers  # [B, K]
    scores: Scores  # [B, K]
    places: Integers  # [B] of the beam that `narrow` has left
    limits: Integers  # [B]
    forced: Integers  # [B, P] prefixes; -1 where the choice is free

    def select(self, rows: Integers) -> None:
        """Keep these rows of the batch."""
        for name in ("tokens", "scores", "places", "limits", "forced"):
            setattr(self, name, getattr(self, name)[rows])


def search_arrays(
    engine: Engine,
    sources: Sequence[Sequence[int]],
    options: SearchOptions,
    symbols: Symbols,
    *,
    max_lengths: Sequence[int],
    prefixes: Sequence[Sequence[int]],
    threads: int,
) -> list[list[Hypothesis]]:
    """The `nbest` best finished hypotheses of each sentence, best first."""
    batch = EngineBatch(
        engine, sources, beam=options.beam, max_length=max(max_lengths), threads=threads
    )
    state = start_state(options, symbols, max_lengths, prefixes)
    record = SearchRecord(options, max_lengths, len(max_lengths))
    rows: Integers | None = None
    for length in range(max(max_lengths) + 1):
        logits = batch.step(state.tokens)
        chosen = choose(engine, logits, state, options, symbols, length, threads)
        record.add(replace(chosen, rows=rows))
        if record.is_complete:
            break
        parents = chosen.live_parents
        if parents.shape != state.tokens.shape or (parents != np.arange(parents.shape[1])).any():
            batch.reorder(parents)
        state.tokens, state.scores = chosen.live_tokens, chosen.live_scores
        rows = record.leaving(1)
        if rows is not None:
            batch.select(rows)
            state.select(rows)
    return record.results()


def start_state(
    options: SearchOptions,
    symbols: Symbols,
    max_lengths: Sequence[int],
    prefixes: Sequence[Sequence[int]],
) -> ArrayState:
    """The state before the first step: one live hypothesis per sentence."""
    size = len(max_lengths)
    forced = np.full((size, max(map(len, prefixes), default=0)), -1)
    for row, prefix in enumerate(prefixes):
        forced[row, : len(prefix)] = prefix
    return ArrayState(
        tokens=np.full((size, 1), symbols.start),
        scores=np.zeros((size, 1)),
        places=np.full(size, options.beam),
        limits=np.array(max_lengths, dtype=np.int64),
        forced=forced,
    )


def choose(
    engine: Engine,
    logits: Floats,
    state: ArrayState,
    options: SearchOptions,
    symbols: Symbols,
    length: int,
    threads: int,
) -> ChosenStep:
    """The candidates that end after `length` tokens and those that live on, [B, beam] each."""
    normalizer = normalize(engine.kernels, logits, threads)
    constrain(logits, normalizer, state, symbols, length, least=options.min_length)
    finished, live = choose_beam(
        engine.kernels, logits, normalizer, state.scores, options.beam, symbols.end, threads
    )
    ended, going_on = finished[2], live[2]
    if options.early_stop == "narrow":
        both = np.concatenate([ended, going_on], axis=1)
        ranks = np.argsort(np.argsort(-both, axis=1, kind="stable"), axis=1, kind="stable")
        both[ranks >= state.places[:, None]] = -np.inf
        ended, going_on = both[:, : options.beam].copy(), both[:, options.beam :].copy()
        state.places = state.places - np.isfinite(ended).sum(axis=1)
    return ChosenStep(None, finished[0], ended, live[0], live[1], going_on)


def normalize(kernels: ctypes.CDLL, logits: Floats, threads: int) -> Floats:
    """The log of the sum of exponentials [B, K] of logits, in which NaN becomes -inf."""
    rows = logits.reshape(-1, logits.shape[-1])
    normalizer, beyond = np.empty(len(rows), dtype=np.float32), ctypes.c_int64()
    kernels.normalize(
        address(rows), *rows.shape, address(normalizer), ctypes.byref(beyond), threads
    )
    if beyond.value > 0:
        for row in np.flatnonzero(~(np.abs(normalizer) < LARGEST_LOG)):
            numbers = rows[row]
            numbers[~np.isfinite(numbers)] = -np.inf
            largest = numbers.max()
            if largest == -np.inf:
                normalizer[row] = np.inf
            else:
                normalizer[row] = largest + np.log(np.exp(numbers - largest).sum())
    return normalizer.reshape(logits.shape[:2])


def choose_beam(
    kernels: ctypes.CDLL,
    logits: Floats,
    normalizer: Floats,
    scores: Scores,
    beam: int,
    end: int,
    threads: int,
) -> tuple[tuple[npt.NDArray[Any], ...], ...]:
    """Parents, tokens and scores [B, beam] of the candidates that end, and of those that do not."""
    batch, width, vocabulary = logits.shape
    made = tuple(
        tuple(np.empty((batch, beam), dtype) for dtype in (np.int64, np.int64, np.float64))
        for _ in range(2)
    )
    finished, live = (
        interface.CandidateArrays(*(array.ctypes.data for array in arrays)) for arrays in made
    )
    kernels.choose_beam(
        address(logits),
        address(normalizer, (batch, width)),
        address(np.ascontiguousarray(scores), (batch, width), np.float64),
        *(batch, width, vocabulary, beam, end),
        ctypes.byref(finished),
        ctypes.byref(live),
        threads,
    )
    return made


def constrain(
    logits: Floats,
    normalizer: Floats,
    state: ArrayState,
    symbols: Symbols,
    length: int,
    *,
    least: int,
) -> None:
    """Set the logits of what may not come after `length` tokens to -inf, in place."""
    in_prefix = length < state.forced.shape[1]
    tokens = state.forced[:, length] if in_prefix else np.full(len(state.limits), -1)
    tokens = np.where((tokens < 0) & (state.limits <= length), symbols.end, tokens)
    rows = np.flatnonzero(tokens >= 0)
    kept = logits[rows, :, tokens[rows]]
    normal = normalizer[rows]
    kept = np.where(np.isfinite(normal) & np.isinf(kept), normal + np.float32(FORCED_ZERO), kept)
    never = [*symbols.never, *([symbols.end] if length < least else [])]
    logits[:, :, never] = -np.inf
    logits[rows] = -np.inf
    logits[rows, :, tokens[rows]] = kept
