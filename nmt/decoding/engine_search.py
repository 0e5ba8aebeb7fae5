"""Whole searches by the engine in C: the same outputs and score bits as search.py over its steps.

One call decodes several positions: tokens are embedded, continuations ranked and recorded, and
sentences that are over removed in C. Imports no torch.

Shapes: B sentences, K hypotheses per sentence (the beam), N wanted results, V vocabulary.
"""

import ctypes
import math
from array import array
from collections.abc import Sequence
from ctypes import byref, c_void_p
from functools import lru_cache
from itertools import accumulate, chain
from typing import get_args

import numpy as np

from nmt.config.search_options import DecodeConfig, EarlyStop, Normalization, SearchOptions
from nmt.decoding.engine import Engine, EngineBatch, MemoryBlock, integers
from nmt.decoding.search_record import Hypothesis, Symbols
from nmt.ops.native import interface
from nmt.ops.native.interface import address

EARLY_STOPS = {name: number for number, name in enumerate(get_args(EarlyStop))}

ENDING = np.dtype(interface.Ending)

# Products of the decoder after which a call returns, so that signals are handled: some 20 ms.
PRODUCTS_PER_CALL = 1 << 30


def search_refusal(engine: Engine, options: SearchOptions) -> str | None:
    """Why a search cannot run in C, or None."""
    if options.sampling is not None:
        return "samples are drawn in Python"
    most = int(engine.kernels.most_beam())
    return (
        None if options.beam <= most else f"expected a beam of at most {most}, got {options.beam}"
    )


@lru_cache(maxsize=16)
def divisors(normalization: Normalization, power: float, size: int) -> "array[float]":
    """The divisors of log probabilities by length, up to `size`; that of length 0 is not used."""
    options = DecodeConfig(normalization=normalization, length_penalty=power)
    return array("d", [math.inf, *map(options.divisor, range(1, size))])


class Rules:
    """The rules of a search, and the arrays that hold them."""

    def __init__(
        self,
        options: SearchOptions,
        symbols: Symbols,
        max_lengths: Sequence[int],
        prefixes: Sequence[Sequence[int]],
    ) -> None:
        for limit, prefix in zip(max_lengths, prefixes, strict=True):
            if len(prefix) > limit:
                raise ValueError(f"expected a prefix of at most {limit} tokens, got {len(prefix)}")
        self.never = integers(symbols.never)
        self.limits = integers(max_lengths)
        self.starts = integers(accumulate(map(len, prefixes), initial=0))
        self.prefixes = integers(chain.from_iterable(prefixes))
        size = max(options.min_length, max(max_lengths)) + 3
        self.divisors = divisors(
            options.normalization,
            options.length_penalty,
            1 << (size - 1).bit_length(),  # few sizes, so that tables are found again
        )
        self.nbest = options.nbest
        self.fields = interface.SearchRules(
            beam=options.beam,
            kept=options.num_compared,
            min_length=options.min_length,
            early_stop=EARLY_STOPS[options.early_stop],
            negative_penalty=int(options.length_penalty < 0.0),
            end=symbols.end,
            num_never=len(self.never),
            num_divisors=len(self.divisors),
            never=self.never.buffer_info()[0],
            divisors=self.divisors.buffer_info()[0],
            limits=self.limits.buffer_info()[0],
            prefix_starts=self.starts.buffer_info()[0],
            prefixes=self.prefixes.buffer_info()[0],
        )


class EngineSearch:
    """The search for outputs of a batch: its hypotheses, and the record of what was chosen."""

    def __init__(self, batch: EngineBatch, rules: Rules, start: int) -> None:
        self.batch, self.rules = batch, rules
        engine, sentences = batch.engine, batch.num_sentences
        beam, kept = rules.fields.beam, rules.fields.kept
        rows = sentences * beam
        self.links: list[MemoryBlock] = []  # of each chunk so far
        memory = self.memory = MemoryBlock(
            tokens=8 * rows,
            scores=8 * rows,
            live_scores=8 * rows,
            over=8 * sentences,
            places=8 * sentences,
            num_finished=8 * sentences,
            endings=ctypes.sizeof(interface.Ending) * sentences * kept,
            normalizer=4 * rows,
            found=ctypes.sizeof(interface.Logit) * rows * (beam + 1),
        )
        self.state = interface.SearchState(**memory.addresses)
        memory.view("tokens", np.int64)[:] = start
        memory.view("scores", np.float64)[:] = 0.0
        memory.view("places", np.int64)[:] = beam
        memory.view("num_finished", np.int64)[:] = 0
        batch.descent = np.empty((sentences, beam, 0), dtype=np.int32)
        batch.state.batch, batch.state.width = sentences, 1
        batch.state.rows = address(batch.rows, (sentences,), np.int64)
        self.steps = max(1, PRODUCTS_PER_CALL // max(1, rows * engine.products))

    def run(self) -> None:
        """Search until no sentence is left."""
        batch, engine = self.batch, self.batch.engine
        while batch.state.batch > 0:
            if batch.state.position == batch.state.most_positions:
                self.open_chunk()
            engine.kernels.search_steps(
                byref(engine.decoder),
                byref(engine.target_input.at_least(batch.state.most_positions)),
                byref(engine.output),
                byref(batch.state),
                byref(self.rules.fields),
                byref(self.state),
                byref(batch.work.fields),
                self.steps,
            )

    def open_chunk(self) -> None:
        """Allocate memory for the next positions."""
        batch, beam = self.batch, self.rules.fields.beam
        left, positions = batch.state.batch, batch.state.most_positions
        batch.descent = batch.descent.reshape(-1)[: left * beam * positions]
        batch.descent = batch.descent.reshape(left, beam, positions)
        batch.open_chunk()
        batch.state.descent = address(batch.descent, dtype=np.int32)
        size = ctypes.sizeof(interface.Link) * batch.num_sentences * batch.engine.chunk * beam
        self.links.append(MemoryBlock(links=size, descent=4 * beam * batch.state.most_positions))
        addresses = [memory.addresses["links"] for memory in self.links]
        self.chunks = (c_void_p * len(addresses))(*addresses)
        rows = batch.num_sentences * beam
        batch.make_room(rows, batch.engine.kernels.search_rows(rows, batch.threads))
        self.state.links = ctypes.addressof(self.chunks)
        self.state.descent = self.links[-1].addresses["descent"]
        self.state.hidden = batch.outputs.addresses["hidden"]
        self.state.logits = batch.outputs.addresses["logits"]

    def results(self) -> list[list[Hypothesis]]:
        """The N best finished hypotheses of each sentence, best first."""
        batch, nbest = self.batch, self.rules.nbest
        shape = (batch.num_sentences, self.rules.fields.kept)
        endings = self.memory.view("endings", ENDING).reshape(shape)
        numbers = np.minimum(self.memory.view("num_finished", np.int64), nbest)
        tokens = np.empty((*shape, batch.state.position), dtype=np.int64)
        batch.engine.kernels.read_hypotheses(
            byref(batch.state),
            byref(self.rules.fields),
            byref(self.state),
            tokens.shape[2],
            address(tokens, dtype=np.int64),
        )
        return [
            [
                Hypothesis(tuple(ids[:length]), log_probability, score)
                for ids, (score, log_probability, length, _) in zip(
                    tokens[row, :number].tolist(), endings[row, :number].tolist(), strict=True
                )
            ]
            for row, number in enumerate(numbers.tolist())
        ]


def search_by_engine(
    engine: Engine,
    sources: Sequence[Sequence[int]],
    options: SearchOptions,
    symbols: Symbols,
    *,
    max_lengths: Sequence[int],
    prefixes: Sequence[Sequence[int]] | None = None,
    threads: int,
) -> list[list[Hypothesis]]:
    """The `nbest` best finished hypotheses of each source (with its end token), best first.

    As `nmt.decoding.search.search`, for options that `search_refusal` accepts.
    """
    if not sources:
        return []
    rules = Rules(options, symbols, max_lengths, prefixes or [()] * len(sources))
    batch = EngineBatch(
        engine, sources, beam=options.beam, max_length=max(max_lengths), threads=threads
    )
    search = EngineSearch(batch, rules, symbols.start)
    search.run()
    return search.results()
