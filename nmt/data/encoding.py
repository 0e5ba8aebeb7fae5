"""Counting words and encoding pairs with several processes; the results are those of one, in order.

The processes are started afresh: they import neither torch nor what the main program has loaded.
"""

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nmt.data.codec import Codec, TokenizerSpec, count_words, forget_rare
from nmt.data.corpus import SIDES, Integers, Side, Tokens, token_type
from nmt.data.text import EMPTY, Pair
from nmt.data.tokenizer import make_tokenizer
from nmt.errors import DataError

CHUNK_PAIRS = 5_000
CHUNK_CHARACTERS = 2_000_000  # of source text; long lines make chunks of fewer pairs
# Word types that are kept a side while counting, about 130 MB; beyond that the rarest are
# forgotten. Subwords are decided by words far more frequent.
MOST_TYPES = 1_000_000

TOO_LONG = "longer than max_length"
RATIO = "over max_ratio"

Result = TypeVar("Result")


class Chunk(NamedTuple):
    """Some consecutive pairs; each side is one string of lines, which travels quickly."""

    source: str
    target: str


@dataclass(frozen=True)
class EncodedChunk:
    """The pairs of a chunk that were kept, and how many were left out for which reason."""

    tokens: dict[Side, Tokens]
    lengths: dict[Side, Integers]
    left_out: Counter[str]
    read: int


@dataclass(frozen=True)
class LengthLimits:
    """Which pairs are kept; lengths count subwords without the EOS."""

    longest: int | None = None
    ratio: float = 0.0  # of the longer to the shorter side; 0: any
    empty: bool = False  # keep sentences of which the tokenizer leaves nothing

    def objection(self, source: int, target: int) -> str | None:
        """Why a pair with these lengths is left out, None when it is kept."""
        if not self.empty and min(source, target) == 0:
            return EMPTY
        if self.longest is not None and max(source, target) > self.longest:
            return TOO_LONG
        if self.ratio and max(source, target) > self.ratio * min(source, target):
            return RATIO
        return None


def chunked(pairs: Iterable[Pair]) -> Iterator[Chunk]:
    """The pairs in chunks whose bounds depend on nothing but the pairs."""
    source: list[str] = []
    target: list[str] = []
    characters = 0
    for pair in pairs:
        source.append(pair.source)
        target.append(pair.target)
        characters += len(pair.source) + len(pair.target)
        if len(source) == CHUNK_PAIRS or characters > CHUNK_CHARACTERS:
            yield Chunk("\n".join(source), "\n".join(target))
            source, target, characters = [], [], 0
    if source:
        yield Chunk("\n".join(source), "\n".join(target))


def count_both_sides(
    pairs: Iterable[Pair],
    tokenizers: dict[Side, TokenizerSpec],
    *,
    workers: int,
    advance: Callable[[int], object],
) -> dict[Side, Counter[str]]:
    """How often each word occurs on either side; `advance` hears how many pairs were counted."""
    totals: dict[Side, Counter[str]] = {side: Counter() for side in SIDES}
    for read, counts in map_chunks(partial(make_counter, tokenizers), pairs, workers=workers):
        for side in SIDES:
            totals[side].update(counts[side])
            if len(totals[side]) > MOST_TYPES:
                forget_rare(totals[side], MOST_TYPES)
        advance(read)
    return totals


def make_counter(
    specs: dict[Side, TokenizerSpec],
) -> Callable[[Chunk], tuple[int, dict[Side, Counter[str]]]]:
    """A function that counts the words of a chunk."""
    tokenizers = {side: make_tokenizer(specs[side].kind, specs[side].language) for side in SIDES}

    def count(chunk: Chunk) -> tuple[int, dict[Side, Counter[str]]]:
        lines: dict[Side, list[str]] = {
            "source": chunk.source.split("\n"),
            "target": chunk.target.split("\n"),
        }
        counts = {side: count_words(lines[side], tokenizers[side]) for side in SIDES}
        return len(lines["source"]), counts

    return count


def encode_pairs(
    pairs: Iterable[Pair], codec_directory: Path, limits: LengthLimits, *, workers: int
) -> Iterator[EncodedChunk]:
    """All pairs within the limits as numbers, chunk by chunk in their order."""
    return map_chunks(partial(make_encoder, codec_directory, limits), pairs, workers=workers)


def make_encoder(codec_directory: Path, limits: LengthLimits) -> Callable[[Chunk], EncodedChunk]:
    """A function that encodes a chunk with the codec of a directory."""
    codec = Codec.load(codec_directory)
    types = {
        "source": token_type(len(codec.source.vocabulary)),
        "target": token_type(len(codec.target.vocabulary)),
    }

    def encode(chunk: Chunk) -> EncodedChunk:
        ids: dict[Side, list[int]] = {side: [] for side in SIDES}
        lengths: dict[Side, list[int]] = {side: [] for side in SIDES}
        left_out: Counter[str] = Counter()
        read = 0
        for left, right in zip(chunk.source.split("\n"), chunk.target.split("\n"), strict=True):
            read += 1
            source, target = codec.source.encode(left), codec.target.encode(right)
            objection = limits.objection(len(source) - 1, len(target) - 1)
            if objection is not None:
                left_out[objection] += 1
                continue
            ids["source"] += source
            ids["target"] += target
            lengths["source"].append(len(source))
            lengths["target"].append(len(target))
        return EncodedChunk(
            {side: np.array(ids[side], dtype=types[side]) for side in SIDES},
            {side: np.array(lengths[side], dtype=np.int64) for side in SIDES},
            left_out,
            read,
        )

    return encode


def map_chunks(
    make: Callable[[], Callable[[Chunk], Result]], pairs: Iterable[Pair], *, workers: int
) -> Iterator[Result]:
    """The results of the function that `make` makes (once a process) for each chunk, in order.

    One worker, or one chunk: all happens in this process. Only a few chunks are in memory.
    """
    chunks = chunked(pairs)
    beginning = list(islice(chunks, 2))
    if workers == 1 or len(beginning) < 2:
        yield from map(make(), chain(beginning, chunks))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start_worker, (make,)) as pool:
        pending: deque[Future[Result]] = deque()
        try:
            for chunk in chain(beginning, chunks):
                pending.append(pool.submit(_work, chunk))
                if len(pending) > 2 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            message = "a process that reads the text died, perhaps for want of memory"
            raise DataError(f"{message}; try again with fewer data.workers") from None
        finally:
            pool.shutdown(cancel_futures=True)


_make: Callable[[], Callable[[Chunk], Any]] | None = None
_function: Callable[[Chunk], Any] | None = None


def _start_worker(make: Callable[[], Callable[[Chunk], Any]]) -> None:
    global _make
    _make = make
    # Ctrl-C reaches every process of the terminal; the main one decides what happens.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Were the main process killed, this one would wait for work for ever.
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(chunk: Chunk) -> Any:
    global _function
    if _function is None:  # here and not at the start, so that an error reaches the main process
        assert _make is not None
        _function = _make()
    return _function(chunk)


def available_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))
