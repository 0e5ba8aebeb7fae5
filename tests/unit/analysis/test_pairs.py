"""Streaming pairs: order, padding and batches change nothing; positions are what they are said."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.attention import corpus_statistics, loaded_model, observe_pairs
from translation_models import KINDS, make_codec, make_config, make_model, random_lines

from nmt.analysis.pairs import (
    PairBatch,
    derangement,
    map_pairs,
    read_side_by_side,
    shuffle_targets,
)
from nmt.data.text import BadLine, read_lines
from nmt.data.vocabulary import BOS, EOS
from nmt.errors import DataError, UserError
from nmt.model.observe import Site

PAIRS = list(
    zip(random_lines(23, seed=3), (x.upper() for x in random_lines(23, seed=4)), strict=True)
)


@pytest.mark.parametrize("kind", ["softmax", "rela-g", "entmax15"])
def test_batches_padding_and_order_change_no_number(kind: str) -> None:
    config = make_config(kind, subword="bpe")
    codec = make_codec(config)
    loaded = loaded_model(config, codec, make_model(config, codec))
    one_by_one = corpus_statistics(loaded, PAIRS, batch_tokens=1)
    together = corpus_statistics(loaded, PAIRS[::-1], batch_tokens=4000)
    assert len(together.sites) == 6
    for site, expected in one_by_one.sites.items():
        got = together.sites[site]
        for name in ("visible", "zero", "queries", "null"):
            assert torch.equal(getattr(got.counts, name), getattr(expected.counts, name))
        assert torch.equal(got.density.counts, expected.density.counts)
        torch.testing.assert_close(got.entropy.value, expected.entropy.value, rtol=1e-12, atol=0)
        for key, mean in expected.diversity.items():
            torch.testing.assert_close(got.diversity[key].value, mean.value, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_of_a_pair_does_not_depend_on_its_company(kind: str) -> None:
    config = make_config(kind, subword="bpe")
    codec = make_codec(config)
    loaded = loaded_model(config, codec, make_model(config, codec))
    together = observe_pairs(loaded, PAIRS)
    assert [one.pair.index for one in together] == list(range(len(PAIRS)))
    for index, pair in enumerate(PAIRS):
        (alone,) = observe_pairs(loaded, [pair])
        for site, weights in alone.weights.items():
            np.testing.assert_array_equal(weights, together[index].weights[site])


def test_weights_have_the_shape_of_the_sentences() -> None:
    config = make_config("softmax")
    codec = make_codec(config)
    loaded = loaded_model(config, codec, make_model(config, codec))
    (seen,) = observe_pairs(loaded, [("the dog sees", "A CAT")])
    assert seen.weights[Site("encoder_self", 0)].shape == (4, 4, 4)
    assert seen.weights[Site("decoder_self", 1)].shape == (4, 3, 3)
    assert seen.cross().shape == (2, 4, 3, 4)
    for weights in seen.weights.values():
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-5)


def test_inputs_are_the_outputs_one_step_later() -> None:
    config = make_config()
    codec = make_codec(config)
    loaded = loaded_model(config, codec, make_model(config, codec))
    batches: list[PairBatch] = []

    def keep(batch: PairBatch) -> list[None]:
        batches.append(batch)
        return [None] * len(batch.pairs)

    pairs = [("the dog", "A CAT"), ("the", "THE OLD MAN")]
    assert list(map_pairs(loaded, pairs, keep, lambda _problem: None)) == [None, None]
    (batch,) = batches
    for row, pair in enumerate(batch.pairs):
        length = len(pair.target.ids)
        assert batch.target_output[row, :length].tolist() == pair.target.ids
        assert batch.target_input[row, :length].tolist() == [BOS, *pair.target.ids[:-1]]
        assert batch.target_output[row, length - 1] == EOS
        assert batch.target_visible[row].sum() == length


def test_results_come_in_order_with_a_reason_where_there_is_none() -> None:
    config = make_config()
    codec = make_codec(config)
    bad = BadLine("invalid UTF-8", 3, 7)
    pairs = [("the dog sees a cat", "A"), ("the", "A"), ("a", bad), ("the " * 9, "A"), ("", "")]
    results = map_pairs(
        loaded_model(config, codec, make_model(config, codec)),
        pairs,
        lambda batch: [" ".join(pair.source.words) for pair in batch.pairs],
        lambda reason: f"<{reason}>",
        batch_tokens=16,
        max_length=8,
        window=2,
    )
    assert list(results) == [
        "the dog sees a cat",
        "the",
        "<invalid UTF-8>",
        "<longer than 8 subwords>",
        "",
    ]


def test_files_of_different_length_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n\n3\n", encoding="utf-8")
    (tmp_path / "b").write_text("x\ny\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"a has 3 lines but .*b has 2"):
        list(read_side_by_side(tmp_path / "a", tmp_path / "b", read_lines))


@given(count=st.integers(2, 60), seed=st.integers(0, 2**32))
def test_derangements_move_everything(count: int, seed: int) -> None:
    order = derangement(count, seed=seed)
    assert sorted(order.tolist()) == list(range(count))
    assert not (order == np.arange(count)).any()


def test_shuffled_targets_go_by_the_seed() -> None:
    pairs = [(f"s{i}", f"t{i}") for i in range(9)]
    shuffled = shuffle_targets(pairs, seed=1)
    assert [pair.source for pair in shuffled] == [source for source, _ in pairs]
    assert all(pair.source[1:] != pair.target[1:] for pair in shuffled)
    assert shuffled == shuffle_targets(pairs, seed=1) != shuffle_targets(pairs, seed=2)
    with pytest.raises(UserError, match="at least 2"):
        shuffle_targets(pairs[:1], seed=1)
