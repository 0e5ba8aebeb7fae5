"""Windows of lines that do not wait for more than has arrived, and batches by length."""

import itertools
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.text import read_stream
from nmt.decoding.batching import length_batches, round_up
from nmt.decoding.lines import pair_up
from nmt.decoding.streaming import (
    LARGEST_WINDOW,
    ArrivingInput,
    LineSource,
    always,
    in_order,
    windows,
)
from nmt.decoding.translation import Line
from nmt.decoding.workers import ChunkSize, cut_chunks
from nmt.errors import DataError


@pytest.fixture
def pipe() -> Iterator[tuple[ArrivingInput, int]]:
    reading, writing = os.pipe()
    yield ArrivingInput(reading), writing
    os.close(reading)


def test_a_line_is_ready_when_it_has_arrived_whole(pipe: tuple[ArrivingInput, int]) -> None:
    arriving, writing = pipe
    assert not arriving.ready()
    os.write(writing, b"one\ntw")
    assert arriving.ready()
    assert arriving.readline(100) == b"one\n"
    assert not arriving.ready()
    os.write(writing, b"o\n\nlast")
    assert arriving.ready()
    assert arriving.readline(100) == b"two\n"
    assert arriving.ready()
    assert arriving.readline(100) == b"\n"
    assert not arriving.ready()
    os.close(writing)
    assert arriving.ready()
    assert arriving.readline(100) == b"last"
    assert arriving.readline(100) == b""


@given(text=st.binary(max_size=200), limit=st.integers(1, 50))
def test_arriving_input_reads_like_a_file(text: bytes, limit: int) -> None:
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    arriving = ArrivingInput(reading)
    lines = []
    while line := arriving.readline(limit):
        lines.append(line)
    os.close(reading)
    assert b"".join(lines) == text
    assert all(len(line) <= limit for line in lines)
    assert all(line.endswith(b"\n") or len(line) == limit for line in lines[:-1])
    assert all(b"\n" not in line[:-1] for line in lines)


def test_windows_end_where_one_would_wait(pipe: tuple[ArrivingInput, int]) -> None:
    arriving, writing = pipe
    groups = windows(read_stream(arriving, "pipe"), arriving.ready)  # type: ignore[arg-type]
    os.write(writing, b"a\nb\nc\nd")
    assert next(groups) == ["a", "b", "c"]
    os.write(writing, b"\n")
    assert next(groups) == ["d"]
    os.write(writing, b"e")
    os.close(writing)
    assert next(groups) == ["e"]
    assert next(groups, None) is None


def test_windows_grow_up_to_a_bound() -> None:
    sizes = [len(group) for group in windows(iter(range(20_000)), always)]
    assert sum(sizes) == 20_000
    assert sizes[0] == 32
    assert max(sizes) == LARGEST_WINDOW
    assert sizes[:-1] == sorted(sizes[:-1])


def test_windows_of_a_given_size_wait_for_it() -> None:
    groups = list(windows(iter(range(7)), lambda: False, size=3))
    assert groups == [[0, 1, 2], [3, 4, 5], [6]]


@given(st.permutations(range(8)))
def test_in_order_yields_as_soon_as_possible(order: list[int]) -> None:
    seen: list[int] = []

    def results() -> Iterator[tuple[int, int]]:
        for count, number in enumerate(order):
            first_missing = next(i for i in range(9) if i not in order[:count])
            assert seen == list(range(first_missing))
            yield number, number

    for result in in_order(results()):
        seen.append(result)
    assert seen == list(range(8))


@given(
    lengths=st.lists(st.integers(1, 60), max_size=50),
    batch_tokens=st.integers(1, 200),
    multiple=st.sampled_from([1, 16]),
)
def test_batches_hold_every_sentence_once_and_few_tokens(
    lengths: list[int], batch_tokens: int, multiple: int
) -> None:
    batches = length_batches(lengths, batch_tokens=batch_tokens, multiple=multiple)
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = round_up(max(lengths[position] for position in batch), multiple)
        assert len(batch) == 1 or len(batch) * longest <= batch_tokens


@given(texts=st.lists(st.text(max_size=20), max_size=30), count=st.integers(1, 4))
def test_workers_get_every_line_once(texts: list[str], count: int) -> None:
    lines = [Line(number, text) for number, text in enumerate(texts)]
    chunks = cut_chunks(lines, count, ChunkSize(lines=8, characters=40))
    assert sorted(position for chunk in chunks for position in chunk) == list(range(len(texts)))
    assert all(len(chunk) <= min(8, -(-len(texts) // count)) for chunk in chunks)
    sizes = [sum(len(texts[position]) for position in chunk) for chunk in chunks]
    assert all(size <= 40 for size in sizes)


def source(name: str, *lines: str) -> LineSource:
    return LineSource(iter(lines), name)


def test_pairs_of_unequal_length_are_an_error() -> None:
    pairs = pair_up(source("in", "a", ""), source("out", "b", "c"))
    assert list(pairs) == [("a", "b"), ("", "c")]
    with pytest.raises(DataError, match="out ends after line 1, but in goes on"):
        list(pair_up(source("in", "a", "b"), source("out", "c")))
    with pytest.raises(DataError, match="in ends after line 0, but out goes on"):
        list(pair_up(source("in"), source("out", "c")))


@pytest.mark.parametrize("size", [None, 1, 2, 100])
def test_what_came_before_an_error_comes_out_first(size: int | None) -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise DataError("the sixth is bad")

    seen: list[int] = []
    groups = windows(items(), always, size=size)
    with pytest.raises(DataError, match="sixth"):
        seen.extend(itertools.chain.from_iterable(groups))
    assert seen == [0, 1, 2, 3, 4]
