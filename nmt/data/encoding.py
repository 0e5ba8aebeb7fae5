"""Counting words and encoding pairs in several processes, with the results of a single process.

The processes are spawned, so that they import neither torch nor what the main process has loaded.
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

from nmt.data.codec import Codec, SideCodec
from nmt.data.corpus import Tokens, token_type
from nmt.data.ragged import Integers
from nmt.data.text import EMPTY, SIDES, Pair, Side
from nmt.data.tokenizer import TokenizerSpec, count_tokens, make_tokenizer
from nmt.errors import DataError

CHUNK_PAIRS = 5_000
CHUNK_CHARACTERS = 2_000_000  # of both sides; long lines make chunks of fewer pairs
# Word types kept per side while counting, about 130 MB; beyond that the rarest are dropped. Only
# far more frequent words decide about subwords.
MAX_WORD_TYPES = 1_000_000

Result = TypeVar("Result")


class Chunk(NamedTuple):
    """Consecutive pairs; the lines of each side are one string, which is fast to pickle."""

    source: str
    target: str

    def pairs(self) -> Iterator[tuple[str, str]]:
        """The lines of both sides."""
        return zip(self.source.split("\n"), self.target.split("\n"), strict=True)


@dataclass(frozen=True)
class EncodedChunk:
    """The pairs of a chunk that were kept, and the number of those left out, by reason."""

    tokens: dict[Side, Tokens]
    lengths: dict[Side, Integers]
    left_out: Counter[str]

    @property
    def read(self) -> int:
        """The number of pairs of the chunk."""
        return len(self.lengths["source"]) + self.left_out.total()


@dataclass(frozen=True)
class LengthLimits:
    """The pairs that are kept, by their lengths in subwords without EOS."""

    longest: int | None = None
    ratio: float = 0.0  # of the longer to the shorter side; 0: any
    empty: bool = False  # keep sentences that are empty after tokenization

    def objection(self, source: int, target: int) -> str | None:
        """The reason to leave out a pair with these lengths, or None."""
        if not self.empty and min(source, target) == 0:
            return EMPTY
        if self.longest is not None and max(source, target) > self.longest:
            return "longer than max_length"
        if self.ratio and max(source, target) > self.ratio * min(source, target):
            return "over max_ratio"
        return None


def chunked(pairs: Iterable[Pair]) -> Iterator[Chunk]:
    """The pairs in chunks; their bounds depend only on the pairs."""
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
    """The counts of words on each side; `advance` is called with the number of pairs counted."""
    totals: dict[Side, Counter[str]] = {side: Counter() for side in SIDES}
    for read, counts in map_chunks(partial(make_counter, tokenizers), pairs, workers=workers):
        for side in SIDES:
            totals[side].update(counts[side])
            if len(totals[side]) > MAX_WORD_TYPES:
                drop_rare(totals[side], MAX_WORD_TYPES // 2)
        advance(read)
    return totals


def drop_rare(counts: Counter[str], limit: int) -> None:
    """Drop the rarest words until at most `limit` types are left."""
    threshold = 1
    while len(counts) > limit:
        for word in [word for word, count in counts.items() if count <= threshold]:
            del counts[word]
        threshold *= 2


def make_counter(
    specs: dict[Side, TokenizerSpec],
) -> Callable[[Chunk], tuple[int, dict[Side, Counter[str]]]]:
    """A function that counts the pairs and the words of a chunk."""
    tokenizers = {side: make_tokenizer(*specs[side]) for side in SIDES}

    def count(chunk: Chunk) -> tuple[int, dict[Side, Counter[str]]]:
        lines: dict[Side, list[str]] = {
            side: text.split("\n") for side, text in zip(SIDES, chunk, strict=True)
        }
        counts = {side: count_tokens(lines[side], tokenizers[side]) for side in SIDES}
        return len(lines["source"]), counts

    return count


def encode_pairs(
    pairs: Iterable[Pair], codec_directory: Path, limits: LengthLimits, *, workers: int
) -> Iterator[EncodedChunk]:
    """The ids of all pairs within the limits, chunk by chunk in order."""
    return map_chunks(partial(make_encoder, codec_directory, limits), pairs, workers=workers)


def make_encoder(codec_directory: Path, limits: LengthLimits) -> Callable[[Chunk], EncodedChunk]:
    """A function that encodes a chunk with the codec of a directory."""
    codec = Codec.load(codec_directory)
    types = token_types(codec)

    def encode(chunk: Chunk) -> EncodedChunk:
        rows: dict[Side, list[list[int]]] = {side: [] for side in SIDES}
        left_out: Counter[str] = Counter()
        for left, right in chunk.pairs():
            source, target = codec.source.encode(left), codec.target.encode(right)
            objection = limits.objection(len(source) - 1, len(target) - 1)
            if objection is not None:
                left_out[objection] += 1
                continue
            rows["source"].append(source)
            rows["target"].append(target)
        return EncodedChunk(
            {side: np.fromiter(chain.from_iterable(rows[side]), types[side]) for side in SIDES},
            {side: np.fromiter(map(len, rows[side]), np.int64) for side in SIDES},
            left_out,
        )

    return encode


def token_types(codec: Codec) -> dict[Side, str]:
    """The integer type of the ids of each side."""
    sides: dict[Side, SideCodec] = {"source": codec.source, "target": codec.target}
    return {side: token_type(len(sides[side].vocabulary)) for side in SIDES}


def map_chunks(
    make: Callable[[], Callable[[Chunk], Result]], pairs: Iterable[Pair], *, workers: int
) -> Iterator[Result]:
    """The results for all chunks, in order, of the function that `make` makes once per process.

    A single worker or a single chunk needs no other process. Only a few chunks are in memory.
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
            message = "a process that encodes text died, perhaps because memory ran out"
            raise DataError(f"{message}; try again with fewer data.workers") from None
        finally:
            pool.shutdown(cancel_futures=True)


_make: Callable[[], Callable[[Chunk], Any]] | None = None
_function: Callable[[Chunk], Any] | None = None


def _start_worker(make: Callable[[], Callable[[Chunk], Any]]) -> None:
    global _make
    _make = make
    # Ctrl-C reaches all processes of the terminal; the main process handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # If the main process was killed, this one would wait for work for ever.
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(chunk: Chunk) -> Any:
    global _function
    if _function is None:  # made here, so that an error reaches the main process
        assert _make is not None
        _function = _make()
    return _function(chunk)


def available_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
