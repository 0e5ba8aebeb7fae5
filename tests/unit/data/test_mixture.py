"""Mixtures of corpora: shares, windows, and an order that depends on nothing else."""

import itertools

import numpy as np
import pytest
from encoded_corpora import random_sentences, write_corpus

from nmt.config.config import TrainingCorpus
from nmt.data.batching import STREAM_START, BatchStream, StreamState, Update
from nmt.data.corpus import EncodedCorpus
from nmt.data.mixture import Mixture, describe_mixture
from nmt.errors import ConfigError, DataError

SIZES = [30, 120, 50]  # of 200 pairs
NAMES = ["small", "large", "late"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> EncodedCorpus:
    return write_corpus(tmp_path_factory.mktemp("corpus"), *random_sentences(200))


def mixture(*settings: dict[str, float]) -> Mixture:
    corpora = [
        TrainingCorpus((), (), name=name, **own)  # type: ignore[arg-type]
        for name, own in zip(NAMES, settings, strict=False)
    ]
    return Mixture.of(corpora, SIZES[: len(corpora)])


def counts(pairs: np.ndarray, sizes: list[int] = SIZES) -> list[int]:
    """The pairs of each corpus."""
    return np.bincount(
        np.searchsorted(np.cumsum(sizes), pairs, side="right"), minlength=len(sizes)
    ).tolist()


def indices(updates: list[Update]) -> list[list[int]]:
    return [[i for batch in update.batches for i in batch.indices.tolist()] for update in updates]


def first(stream: BatchStream, count: int) -> list[Update]:
    return list(itertools.islice(stream.updates(), count))


def test_without_weights_and_windows_nothing_changes(corpus: EncodedCorpus) -> None:
    """One corpus, or several without weights: the batches of all pairs in a row."""
    plain = indices(first(BatchStream(corpus, 100, seed=4), 90))
    alone = Mixture.of([TrainingCorpus((), (), weight=7.0)], [200])
    for mixed in (alone, mixture({}, {}, {})):
        assert indices(first(BatchStream(corpus, 100, seed=4, mixture=mixed), 90)) == plain


def test_an_epoch_has_the_shares_and_every_pair_is_used_equally_often() -> None:
    mixed = mixture({"weight": 3.0}, {"weight": 1.0}, {"weight": 1.0})
    epochs = [mixed.pairs_of_epoch(epoch, done=0, seed=1) for epoch in range(15)]
    for pairs in epochs:
        assert pairs is not None
        assert counts(pairs) == [120, 40, 40]
    used = np.bincount(np.concatenate([pairs for pairs in epochs if pairs is not None]))
    assert set(used[:30]) == {60}  # 15 epochs of 120 from 30 pairs
    assert set(used[30:150]) == {5}  # 15 epochs of 40 from 120 pairs
    assert set(used[150:]) == {12}
    assert not np.array_equal(epochs[0], epochs[3])


def test_fractions_of_a_pair_add_up() -> None:
    mixed = mixture({"weight": 1.0}, {"weight": 2.0})  # epochs of 150 pairs: 50 and 100
    thirds = mixture({"weight": 1.0}, {"weight": 0.7})
    drawn = [thirds.pairs_of_epoch(epoch, done=0, seed=1) for epoch in range(170)]
    total = np.concatenate([pairs for pairs in drawn if pairs is not None])
    assert counts(total, SIZES[:2]) == [15000, 10500]
    half = mixed.pairs_of_epoch(0, done=0, seed=1)
    assert half is not None
    assert counts(half, SIZES[:2]) == [50, 100]


def test_the_default_weight_is_the_size() -> None:
    mixed = mixture({}, {"weight": 60.0})  # 30 to 60
    pairs = mixed.pairs_of_epoch(0, done=0, seed=1)
    assert pairs is not None
    assert counts(pairs, SIZES[:2]) == [50, 100]


def test_windows_begin_and_end_with_their_updates(corpus: EncodedCorpus) -> None:
    mixed = mixture({"until_update": 7}, {"from_update": 3}, {"from_update": 7, "weight": 400.0})
    assert mixed.starts() == [0, 3, 7]
    stream = BatchStream(corpus, 100, seed=4, mixture=mixed, accumulate=2)
    updates = first(stream, 40)
    used = [
        {int(np.searchsorted([30, 150], i, side="right")) for i in own} for own in indices(updates)
    ]
    assert used[:3] == [{0}] * 3
    assert set.union(*used[3:7]) <= {0, 1}
    assert set.union(*used[7:]) == {1, 2}
    assert [update.epoch for update in updates[:8]] == sorted(
        update.epoch for update in updates[:8]
    )
    assert updates[2].following == StreamState(updates[2].epoch + 1, 0)
    assert updates[6].following == StreamState(updates[6].epoch + 1, 0)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_stream_resumes_anywhere(corpus: EncodedCorpus, prefetch: int) -> None:
    mixed = mixture({"until_update": 9, "weight": 90.0}, {}, {"from_update": 5})
    stream = BatchStream(corpus, 100, seed=4, mixture=mixed, prefetch=prefetch, accumulate=2)
    reference = first(stream, 60)
    state = STREAM_START
    for done, update in enumerate(reference):
        resumed = stream.updates(state, done=done)
        assert indices([next(resumed)]) == indices([update])
        resumed.close()  # type: ignore[attr-defined]
        state = update.following


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_pairs_of_an_update_do_not_depend_on_the_processes(
    corpus: EncodedCorpus, world_size: int
) -> None:
    mixed = mixture({"until_update": 9, "weight": 90.0}, {}, {"from_update": 5})
    alone = BatchStream(corpus, 100, seed=4, mixture=mixed, accumulate=4)
    shares = [
        BatchStream(
            corpus, 100, seed=4, mixture=mixed, accumulate=4, rank=rank, world_size=world_size
        )
        for rank in range(world_size)
    ]
    together = zip(*(indices(first(share, 20)) for share in shares), strict=True)
    assert [list(itertools.chain(*parts)) for parts in together] == indices(first(alone, 20))


def test_a_corpus_whose_weight_gives_it_no_pair_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"data\.train: small: its weight is so small"):
        mixture({"weight": 1e-3}, {"weight": 1.0})


def test_after_the_last_window_there_is_nothing(corpus: EncodedCorpus) -> None:
    stream = BatchStream(corpus, 100, seed=4, mixture=mixture({"until_update": 2}), prefetch=2)
    updates = stream.updates()
    assert [next(updates).epoch, next(updates).epoch] == [0, 0]
    with pytest.raises(DataError, match="no corpus is used after update 2"):
        next(updates)


def test_shares_are_described() -> None:
    lines = describe_mixture(mixture({"weight": 3.0, "until_update": 10}, {"weight": 1.0}))
    assert lines[0] == "small: 30 pairs; 75.0% of the pairs drawn from update 1 to update 10"
    assert lines[1].endswith(
        "25.0% of the pairs drawn from update 1, 100.0% of the pairs drawn from update 11"
    )
    assert describe_mixture(mixture({})) == []


def test_the_order_is_the_recorded_one() -> None:
    """Another version must draw the same pairs, or runs that are resumed change under way."""
    mixed = mixture({"weight": 2.0}, {"weight": 1.0}, {"weight": 1.0})
    pairs = mixed.pairs_of_epoch(1, done=0, seed=11)
    assert pairs is not None
    assert pairs[[0, 40, 99, 100, 101, 149, 150, 199]].tolist() == [4, 20, 1, 44, 66, 59, 150, 199]
