"""From weights to words and links, by hand."""

import numpy as np
import pytest
import torch
from support.attention import loaded_model, observe_pairs
from translation_models import make_codec, make_config, make_model

from nmt.analysis.alignment import (
    HeadGrid,
    all_links,
    chosen_links,
    describe_head,
    format_links,
    word_attention,
)
from nmt.analysis.pairs import PairAttention, SegmentedPair
from nmt.data.codec import Segmentation
from nmt.decoding.alignment import (
    NO_LINK,
    AlignmentHead,
    links_of,
    merge_subwords,
    strongest,
)
from nmt.decoding.observation import link_words
from nmt.model.observe import Site

# Two source words, the first of two subwords; two target words, the second of two subwords.
PAIR = SegmentedPair(
    0,
    Segmentation(["under|stand", "me"], [10, 11, 12, 2], [0, 0, 1]),
    Segmentation(["mich", "ver|stehen"], [20, 21, 22, 2], [0, 1, 1]),
)
# Rows: queries that predict mich, ver, stehen, EOS; columns: under, stand, me, EOS.
ONE_HEAD = [
    [0.0, 0.0, 0.7, 0.3],
    [0.3, 0.3, 0.4, 0.0],
    [0.4, 0.2, 0.4, 0.0],
    [0.0, 0.1, 0.0, 0.9],
]
OTHER_HEAD = [
    [0.0, 0.0, 0.0, 0.0],
    [0.0, 0.0, 0.0, 0.0],
    [0.0, 0.0, 0.0, 2.0],
    [0.0, 0.0, 0.0, 0.0],
]


def attention() -> PairAttention:
    weights = np.array([ONE_HEAD, OTHER_HEAD], dtype=np.float32)
    return PairAttention(PAIR, {Site("cross", 0): weights})


def test_source_subwords_are_summed_and_target_subwords_averaged() -> None:
    merged = word_attention(attention())
    normal, shifted = merged[0, 0]
    np.testing.assert_allclose(normal, [[0.0, 0.7], [0.6, 0.4]], rtol=1e-6)
    # Shifted: mich by the query that reads it, the second; verstehen by the third and the last.
    np.testing.assert_allclose(shifted, [[0.6, 0.4], [0.35, 0.2]], rtol=1e-6)


def test_layer_attention_is_the_mean_of_the_heads() -> None:
    merged = word_attention(attention())
    np.testing.assert_allclose(merged[0, 2], merged[0, :2].mean(axis=0), rtol=1e-12)


def test_links_are_the_strongest_words_and_null_rows_have_none() -> None:
    links = all_links(attention())
    assert links[0, 0].tolist() == [[1, 0], [0, 0]]  # normal, shifted
    # Nothing but EOS is attended to: no link.
    assert links[0, 1].tolist() == [[NO_LINK, NO_LINK], [NO_LINK, NO_LINK]]
    assert links[0, 2].tolist() == links[0, 0].tolist()


def test_one_choice_gives_what_all_give() -> None:
    config = make_config("rela-g", subword="bpe")
    codec = make_codec(config)
    loaded = loaded_model(config, codec, make_model(config, codec))
    (seen,) = observe_pairs(loaded, [("the old dog sees", "A YOUNG CAT LIKES THE HOUSE")])
    grid = HeadGrid(2, 4)
    links = all_links(seen)
    assert links.shape == (*grid.shape, 6)
    choices = list(grid.choices())
    assert len(set(choices)) == len(choices) == 20
    for choice in choices:
        assert chosen_links(seen, choice).tolist() == links[grid.place(choice)].tolist()
    assert len({tuple(links[grid.place(choice)]) for choice in choices}) > 3


@pytest.mark.parametrize("kind", ["rela-g", "softmax", "sparsemax"])
def test_translations_are_aligned_alike(kind: str) -> None:
    """The links that come with a translation are those of the pair."""
    config = make_config(kind, subword="bpe")
    codec = make_codec(config)
    loaded = loaded_model(config, codec, make_model(config, codec))
    pair = ("the young woman likes the dog", "A TREE UNDER THE CAT")
    (seen,) = observe_pairs(loaded, [pair])
    for choice in HeadGrid(2, 4).choices():
        links = link_words(
            torch.from_numpy(seen.cross()),
            choice,
            source_words=seen.pair.source.word_of_piece,
            target_words=seen.pair.target.word_of_piece,
        )
        assert links_of(chosen_links(seen, choice)) == links


def test_the_usual_choice_comes_first() -> None:
    assert next(HeadGrid(6, 8).choices()) == AlignmentHead(2, None, shifted=True)
    assert (
        describe_head(AlignmentHead(2, None, shifted=True)) == "layer 2, mean of the heads, shifted"
    )
    assert describe_head(AlignmentHead(0, 3, shifted=False)) == "layer 0, head 3, normal"


def test_of_equal_weights_the_first_wins_and_a_pair_without_source_words_has_no_links() -> None:
    assert strongest(np.array([[0.5, 0.5], [0.0, 0.0]])).tolist() == [0, NO_LINK]
    assert strongest(np.zeros((3, 0))).tolist() == [NO_LINK] * 3
    assert strongest(np.array([[-0.5, 0.0], [-0.5, 0.25]])).tolist() == [NO_LINK, 1]


def test_a_word_without_subwords_is_linked_to_nothing() -> None:
    merged = merge_subwords(
        np.array([[1.0]]),
        source_words=[1],
        target_words=[0],
        num_source_words=2,
        num_target_words=2,
    )
    assert merged.tolist() == [[0.0, 1.0], [0.0, 0.0]]


def test_links_are_written_source_first() -> None:
    assert format_links(links_of(np.array([1, NO_LINK, 0]))) == "1-0 0-2"
