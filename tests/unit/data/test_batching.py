"""Batches: every pair once, a pure function of seed and epoch, little padding, any world size."""

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from encoded_corpora import random_sentences, write_corpus
from hypothesis import given
from hypothesis import strategies as st

from nmt.data.batching import (
    STREAM_START,
    BatchStream,
    EpochPlan,
    StreamState,
    ahead,
    make_batch,
    plan_epoch,
    validation_batches,
)
from nmt.data.corpus import EncodedCorpus
from nmt.data.vocabulary import BOS, EOS, PAD
from nmt.errors import DataError

length_pairs = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=80)


def plan_of(pairs: list[tuple[int, int]], batch_tokens: int, seed: int, epoch: int) -> EpochPlan:
    source, target = np.array(pairs, dtype=np.int64).T
    return plan_epoch(source, target, batch_tokens=batch_tokens, seed=seed, epoch=epoch)


def as_lists(plan: EpochPlan) -> list[list[int]]:
    return [batch.tolist() for batch in plan]


@given(length_pairs, st.integers(1, 500), st.integers(0, 2**40), st.integers(0, 1000))
def test_an_epoch_holds_each_pair_once_within_the_token_limit(pairs, batch_tokens, seed, epoch):
    plan = plan_of(pairs, batch_tokens, seed, epoch)
    assert sorted(itertools.chain(*as_lists(plan))) == list(range(len(pairs)))
    for batch in plan:
        longest = max(max(pairs[index]) for index in batch)
        assert len(batch) * longest <= batch_tokens or len(batch) == 1


@given(length_pairs, st.integers(1, 500), st.integers(0, 2**40), st.integers(0, 1000))
def test_a_plan_depends_on_its_arguments_alone(pairs, batch_tokens, seed, epoch):
    first = as_lists(plan_of(pairs, batch_tokens, seed, epoch))
    np.random.seed(epoch)
    assert as_lists(plan_of(pairs, batch_tokens, seed, epoch)) == first


def test_the_order_is_the_one_it_has_always_been():
    # A change here means that running trainings would resume with other data.
    plan = plan_of([(n % 7 + 1, n % 5 + 1) for n in range(24)], 16, 3, 2)
    assert as_lists(plan) == [
        [0, 21, 1],
        [6, 13],
        [19, 12],
        [8, 23, 3, 17],
        [15, 16, 2, 22, 7],
        [5, 20],
        [10, 11, 18],
        [4, 9, 14],
    ]


def test_epochs_and_seeds_differ_in_order_and_in_who_meets_whom():
    lengths = np.random.default_rng(0).integers(2, 40, size=(2, 2000))
    plans = [
        plan_epoch(*lengths, batch_tokens=400, seed=seed, epoch=epoch)
        for seed, epoch in [(1, 0), (1, 1), (2, 0)]
    ]
    for one, other in itertools.combinations(plans, 2):
        assert as_lists(one) != as_lists(other)
        companies = [{frozenset(batch) for batch in as_lists(plan)} for plan in (one, other)]
        assert len(companies[0] & companies[1]) < 0.2 * len(companies[0])


def test_padding_is_small_when_lengths_spread_like_captions():
    random = np.random.default_rng(0)
    source = random.normal(14.7, 4.5, 29_000).clip(4, 49).astype(np.int64)
    target = (source * random.normal(1.03, 0.15, 29_000)).clip(3, 52).astype(np.int64)
    batches = list(plan_epoch(source, target, batch_tokens=4096, seed=1, epoch=0))
    padded = {
        "source": sum(len(batch) * source[batch].max() for batch in batches),
        "target": sum(len(batch) * target[batch].max() for batch in batches),
    }
    assert 1 - target.sum() / padded["target"] < 0.06
    assert 1 - (source.sum() + target.sum()) / sum(padded.values()) < 0.06


def test_a_batch_holds_the_sentences_padded_and_shifted(tmp_path: Path):
    corpus = write_corpus(tmp_path, [[5, 6, EOS], [7, EOS]], [[9, EOS], [8, 9, 10, EOS]])
    batch = make_batch(corpus, np.array([1, 0]))
    assert batch.source.tolist() == [[7, EOS, PAD], [5, 6, EOS]]
    assert batch.source_visible.tolist() == [[True, True, False], [True, True, True]]
    assert batch.target_input.tolist() == [[BOS, 8, 9, 10], [BOS, 9, PAD, PAD]]
    assert batch.target_output.tolist() == [[8, 9, 10, EOS], [9, EOS, PAD, PAD]]
    assert batch.target_visible.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.indices.tolist() == [1, 0]
    assert batch.num_target_tokens == 6
    assert batch.source.dtype == batch.target_input.dtype == torch.int64


def test_a_batch_moves_as_a_whole(tmp_path: Path):
    corpus = write_corpus(tmp_path, [[5, EOS]], [[9, EOS]])
    batch = make_batch(corpus, np.array([0])).to("meta")
    tensors = [value for value in vars(batch).values() if isinstance(value, torch.Tensor)]
    assert len(tensors) == 5
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_validation_takes_every_pair_once_and_always_alike(tmp_path: Path):
    corpus = write_corpus(tmp_path, *random_sentences(300))
    runs = [
        [batch.indices.tolist() for batch in validation_batches(corpus, batch_tokens=120)]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert sorted(itertools.chain(*runs[0])) == list(range(300))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> EncodedCorpus:
    return write_corpus(tmp_path_factory.mktemp("corpus"), *random_sentences(150))


def taken(stream: BatchStream, start: StreamState, count: int) -> list[tuple[int, int, list[int]]]:
    updates = itertools.islice(stream.updates(start), count)
    return [
        (update.epoch, update.position, update.batches[0].indices.tolist()) for update in updates
    ]


@pytest.mark.parametrize("prefetch", [0, 1, 2, 4, 50])
def test_the_stream_does_not_depend_on_what_is_made_ahead(corpus: EncodedCorpus, prefetch: int):
    reference = taken(BatchStream(corpus, 100, seed=4), STREAM_START, 150)
    assert reference[-1][0] >= 2, "the comparison should cross the ends of epochs"
    stream = BatchStream(corpus, 100, seed=4, prefetch=prefetch)
    assert taken(stream, STREAM_START, 150) == reference
    for used in (1, 37, 100):
        epoch, position, _ = reference[used - 1]
        assert taken(stream, StreamState(epoch, position + 1), 150 - used) == reference[used:]


@pytest.mark.parametrize("accumulate", [1, 3, 8])
def test_updates_resume_where_they_say_and_use_each_pair_once_an_epoch(
    corpus: EncodedCorpus, accumulate: int
):
    stream = BatchStream(corpus, 100, seed=4, accumulate=accumulate, prefetch=2)
    state, seen = STREAM_START, []
    while state.epoch < 3:
        updates = stream.updates(state)  # as if every update came after a restart
        update = next(updates)
        updates.close()
        assert (update.epoch, update.position) == state
        seen += [index for batch in update.batches for index in batch.indices]
        state = update.following
    assert np.bincount(seen).tolist() == [3] * len(corpus)


@pytest.mark.parametrize("accumulate", [1, 4, 9])
@pytest.mark.parametrize("world_size", [2, 3, 6])
def test_ranks_share_every_update(corpus: EncodedCorpus, world_size: int, accumulate: int):
    """Each row once, in order; the same tokens and the same next update in every process."""
    alone = BatchStream(corpus, 100, seed=4, accumulate=accumulate)
    shares = [
        BatchStream(corpus, 100, seed=4, accumulate=accumulate, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    for update, *parts in itertools.islice(
        zip(alone.updates(), *(share.updates() for share in shares), strict=True), 40
    ):
        assert {part.following for part in parts} == {update.following}
        assert {part.tokens for part in parts} == {update.tokens}
        rows = [batch.indices.tolist() for batch in update.batches]
        for part in parts:
            for batch, (number, start, end) in zip(part.batches, part.shares, strict=True):
                assert batch.indices.tolist() == rows[number][start:end]
        together = [index for part in parts for batch in part.batches for index in batch.indices]
        assert together == list(itertools.chain(*rows))


def test_a_file_that_changes_is_noticed_at_the_next_epoch(tmp_path: Path):
    corpus = write_corpus(tmp_path, *random_sentences(20))
    updates = BatchStream(corpus, 1000, seed=1).updates()
    while next(updates).following.epoch == 0:
        pass
    tokens = tmp_path / "train.target.tokens.bin"
    content = bytearray(tokens.read_bytes())
    content[0] ^= 1
    tokens.write_bytes(content)
    with pytest.raises(DataError, match=r"train\.target\.tokens\.bin: changed"):
        next(updates)


def test_a_copy_of_a_file_is_as_good_as_the_file(tmp_path: Path):
    corpus = write_corpus(tmp_path, *random_sentences(20))
    tokens = tmp_path / "train.target.tokens.bin"
    copy = tokens.with_suffix(".copy")
    copy.write_bytes(tokens.read_bytes())
    copy.replace(tokens)
    corpus.check_unchanged()


def test_an_error_in_the_thread_reaches_the_reader_and_no_thread_stays():
    def items():
        yield 1
        raise DataError("spoilt")

    made = ahead(items(), depth=3)
    assert next(made) == 1
    with pytest.raises(DataError, match="spoilt"):
        next(made)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_closing_the_stream_ends_its_thread(corpus: EncodedCorpus):
    updates = BatchStream(corpus, 100, seed=4, prefetch=2).updates()
    next(updates)
    updates.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]
