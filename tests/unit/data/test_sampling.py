"""Subword sampling of batches: a function of the update and the row, within bounds of memory."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.runs import tiny_config, write_run

from nmt.config.loading import load_config
from nmt.data.batching import STREAM_START, Batch, BatchStream, Update
from nmt.data.prepare import Prepared, prepare
from nmt.data.sampling import MOST_GROWTH, even_cuts
from nmt.training.stream import training_stream


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(load_config(write(tmp_path_factory.mktemp("run"))))


def write(directory: Path) -> Path:
    config = tiny_config(directory)
    config["data"]["subword"] = {"kind": "bpe", "merges": 20, "dropout": 0.5}
    return write_run(directory, config)


def make_stream(prepared: Prepared, *overrides: str) -> BatchStream:
    config = load_config(prepared.directory.parent / "config.yaml", overrides)
    return training_stream(config, prepared)


def ids(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """The ids of both sides of each row, without padding."""
    rows = zip(
        batch.source, batch.source_visible, batch.target_output, batch.target_visible, strict=True
    )
    return [(source[seen].tolist(), target[shown].tolist()) for source, seen, target, shown in rows]


def rows(updates: list[Update]) -> list[list[tuple[list[int], list[int]]]]:
    return [[row for batch in update.batches for row in ids(batch)] for update in updates]


def first(stream: BatchStream, count: int) -> list[Update]:
    return list(itertools.islice(stream.updates(), count))


def test_each_update_segments_anew_and_the_text_stays(prepared: Prepared) -> None:
    stream = make_stream(prepared)
    plain = replace(stream, sampling=None)
    seen: dict[int, set[tuple[int, ...]]] = {}
    for sampled, usual in zip(first(stream, 60), first(plain, 60), strict=True):
        assert sampled.following == usual.following
        indices = [i for batch in sampled.batches for i in batch.indices.tolist()]
        assert indices == [i for batch in usual.batches for i in batch.indices.tolist()]
        for index, own, other in zip(indices, *map(rows_of, (sampled, usual)), strict=True):
            assert prepared.codec.source.decode(own[0]) == prepared.codec.source.decode(other[0])
            assert prepared.codec.target.decode(own[1]) == prepared.codec.target.decode(other[1])
            seen.setdefault(index, set()).add(tuple(own[0]))
        assert sampled.tokens == sum(batch.num_target_tokens for batch in sampled.batches)
    assert max(map(len, seen.values())) > 2


def rows_of(update: Update) -> list[tuple[list[int], list[int]]]:
    return rows([update])[0]


def test_the_stream_resumes_anywhere_and_does_not_depend_on_threads(prepared: Prepared) -> None:
    stream = make_stream(prepared)
    reference = first(stream, 40)
    assert rows(first(replace(stream, prefetch=3), 40)) == rows(reference)
    state = STREAM_START
    for done, update in enumerate(reference):
        assert rows([next(stream.updates(state, done=done))]) == rows([update])
        state = update.following


@pytest.mark.parametrize("world_size", [2, 5])
def test_processes_have_the_rows_of_one(prepared: Prepared, world_size: int) -> None:
    alone = replace(make_stream(prepared), accumulate=4)
    shares = [replace(alone, rank=rank, world_size=world_size) for rank in range(world_size)]
    updates = zip(first(alone, 15), *(first(share, 15) for share in shares), strict=True)
    for whole, *parts in updates:
        assert {part.tokens for part in parts} == {whole.tokens}
        assert [row for part in parts for row in rows_of(part)] == rows_of(whole)
        for part in parts:
            for batch, share in zip(part.batches, part.shares, strict=True):
                assert len(batch.indices) == share.end - share.start


@pytest.mark.parametrize("side", ["source", "target"])
def test_one_side_alone(prepared: Prepared, side: str) -> None:
    other = {"source": "target", "target": "source"}[side]
    stream = make_stream(prepared, f"data.subword.dropout={{{side}: 0.5, {other}: 0}}")
    usual = rows(first(replace(stream, sampling=None), 20))
    sampled = rows(first(stream, 20))
    index = ["source", "target"].index(side)
    assert [[row[1 - index] for row in update] for update in sampled] == [
        [row[1 - index] for row in update] for update in usual
    ], f"the {other} side changed"
    assert sampled != usual


def test_batches_and_sentences_stay_within_their_limits(prepared: Prepared) -> None:
    """Dropout of 0.95 makes almost every word a row of characters."""
    longest = 14
    stream = make_stream(prepared, "data.subword.dropout=0.95", f"data.max_length={longest}")
    updates = first(stream, 60)
    sizes, lengths = [], []
    for update in updates:
        assert update.tokens == sum(batch.num_target_tokens for batch in update.batches)
        for batch in update.batches:
            sizes.append(
                len(batch.indices) * max(batch.source.shape[1], batch.target_output.shape[1])
            )
            lengths += [len(side) for row in ids(batch) for side in row]
    assert max(sizes) <= MOST_GROWTH * stream.batch_tokens
    assert max(lengths) <= longest + 1
    assert max(len(update.batches) for update in updates) > stream.accumulate  # some were divided


def test_without_dropout_there_is_no_sampling(prepared: Prepared) -> None:
    assert make_stream(prepared, "data.subword.dropout=0").sampling is None


def test_cuts_are_even_and_as_few_as_possible() -> None:
    lengths = np.array([10, 10, 10, 10, 20, 20])
    assert even_cuts(lengths, most=120) == [0, 6]
    assert even_cuts(lengths, most=119) == [0, 3, 6]
    assert even_cuts(lengths, most=40) == [0, 2, 4, 6]
    assert even_cuts(lengths, most=5) == [0, 1, 2, 3, 4, 5, 6]
