"""Scores of pairs, areas under curves with ties, and the best pairs."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.attention import loaded_model, observe_pairs
from translation_models import make_codec, make_config, make_model, random_lines

from nmt.analysis.filtering import (
    ALL_KINDS,
    PairScores,
    area_under_curve,
    areas_by_label,
    best_pairs,
    coverage,
    length_deviations,
    length_ratio,
    score_batch,
    score_columns,
    with_deviations,
)
from nmt.analysis.pairs import map_pairs
from nmt.data.text import INVALID_UTF8, BadLine
from nmt.errors import DataError


def scores_of(kind: str, pairs: list[tuple[str, str]], *, batch_tokens: int) -> list[PairScores]:
    config = make_config(kind, subword="bpe")
    codec = make_codec(config)
    model = make_model(config, codec)
    return list(
        map_pairs(
            loaded_model(config, codec, model),
            pairs,
            lambda batch: score_batch(model, batch),
            lambda problem: PairScores.unscored(problem, layers=2),
            batch_tokens=batch_tokens,
        )
    )


PAIRS = [
    (source, target.upper())
    for source, target in zip(random_lines(12, seed=8), random_lines(12, seed=9), strict=True)
]


def test_scores_are_those_of_the_pair_alone() -> None:
    together = scores_of("rela-g", PAIRS, batch_tokens=4000)
    assert together == scores_of("rela-g", PAIRS, batch_tokens=1)
    assert len({scores.null_rate for scores in together}) > 3
    assert all(len(scores.null_rate_by_layer) == 2 for scores in together)


def test_scores_by_another_way() -> None:
    """Null rate and coverage from the weights of each pair, log probability by plain softmax."""
    config = make_config("rela-g", subword="bpe")
    codec = make_codec(config)
    model = make_model(config, codec)
    found = scores_of("rela-g", PAIRS, batch_tokens=4000)
    for seen in observe_pairs(loaded_model(config, codec, model), PAIRS):
        pair, cross = seen.pair, seen.cross()
        scores = found[pair.index]
        null = (cross == 0).all(axis=-1).mean(axis=(1, 2))
        assert scores.null_rate_by_layer == pytest.approx(null.tolist(), abs=1e-12)
        assert scores.null_rate == pytest.approx(null.mean(), abs=1e-12)
        covered = [
            len({pair.source.word_of_piece[k] for k in head[:-1, :-1].any(axis=0).nonzero()[0]})
            for head in cross.reshape(-1, *cross.shape[2:])
        ]
        expected = np.mean(covered) / len(pair.source.words)
        assert scores.coverage == pytest.approx(expected, abs=1e-12)
        source, target = (torch.tensor([side.ids]) for side in (pair.source, pair.target))
        start = torch.cat([torch.tensor([[1]]), target[:, :-1]], dim=1)
        with torch.inference_mode():
            logits = model.logits(model(source, torch.ones_like(source).bool(), start))
        chosen = logits.log_softmax(-1).gather(2, target[..., None])
        assert scores.log_probability == pytest.approx(chosen.mean().item(), rel=1e-5)


def test_softmax_is_never_null_and_covers_everything() -> None:
    for scores in scores_of("softmax", PAIRS, batch_tokens=500):
        assert scores.null_rate == 0.0
        assert scores.coverage == 1.0


def test_coverage_by_hand() -> None:
    """Two heads, three words of which the second has two subwords; the last key is EOS."""
    keys = np.array([[[True, False, True, False, True], [False, False, False, False, True]]])
    assert coverage(keys, [0, 1, 1, 2], 3) == pytest.approx((2 / 3 + 0) / 2)
    assert coverage(keys[..., -1:], [], 0) == 0.0


def test_length_ratio() -> None:
    assert length_ratio(4, 2) == length_ratio(2, 4) == 0.5
    assert length_ratio(0, 3) == 0.0
    assert length_ratio(3, 3) == length_ratio(0, 0) == 1.0


def test_length_deviations_by_hand() -> None:
    """Ratios of 2, twice 2, half of 2 and 2 again; the median distance is that of a factor of 2."""
    texts = [("ab", "a cd"), ("ab", "a" * 8), ("abcd", "ab c"), (" ab ", "abcd"), ("a", "b" * 8)]
    found = length_deviations(texts)
    assert found == pytest.approx(np.array([0, 1, 1, 0, 2]) * math.log(2))
    bad = BadLine(INVALID_UTF8, 1, 0)
    with_bad = length_deviations([("ab", " "), *texts, (bad, "ab")])
    assert with_bad[1:-1] == pytest.approx(found)
    assert np.isnan(with_bad[[0, -1]]).all()


def test_half_and_double_deviate_alike_and_a_minority_moves_nothing() -> None:
    clean = [("a" * 100, "b" * length) for length in (80, 90, 100, 110, 125) for _ in range(4)]
    bad = [("a" * 100, "b" * length) for length in (50, 200) for _ in range(4)]
    alone, found = length_deviations(clean), length_deviations([*clean, *bad])
    assert found[20:] == pytest.approx(np.full(8, found[20]))
    assert found[20] > 2 * found[:20].max()
    assert alone[0] > found[0] > alone[0] / 3


def test_text_of_equal_lengths_and_text_without_lines_have_deviations() -> None:
    assert length_deviations([("ab", "cd")] * 3).tolist() == [0, 0, 0]
    assert np.isfinite(length_deviations([*[("ab", "cd")] * 3, ("ab", "cde")])).all()
    assert len(length_deviations([])) == 0
    assert np.isnan(length_deviations([("", "a")])).all()


def test_text_that_changes_while_it_is_read_is_an_error() -> None:
    scores = PairScores((0.1,), -1.0, 0.9, 0.9)
    path = Path("web.en")
    (found,) = with_deviations([scores], np.array([2.0]), path)
    assert (found.length_deviation, found.combined) == (2.0, -3.0)
    for deviations in (np.array([]), np.array([0.0, 0.0])):
        with pytest.raises(DataError, match=r"web\.en: changed while it was read"):
            list(with_deviations([scores], deviations, path))


def test_area_with_ties_by_hand() -> None:
    """Six comparisons: 3 > 1, 3 > 2, 2 > 1, 2 = 2, 0 < 1, 0 < 2."""
    assert area_under_curve(np.array([3.0, 2.0, 0.0]), np.array([1.0, 2.0])) == 3.5 / 6
    assert area_under_curve(np.array([1.0]), np.array([1.0, 1.0])) == 0.5
    assert area_under_curve(np.array([1.0]), np.array([-math.inf])) == 1.0


values = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=15)


@given(good=values, bad=values)
def test_area_counts_the_comparisons_that_are_won(good: list[float], bad: list[float]) -> None:
    won = sum((a > b) + 0.5 * (a == b) for a, b in itertools.product(good, bad))
    area = area_under_curve(np.array(good), np.array(bad))
    assert area == won / (len(good) * len(bad))
    assert area == pytest.approx(1 - area_under_curve(np.array(bad), np.array(good)))


def test_areas_are_by_score_and_label() -> None:
    goodness = {"a": np.array([3.0, 1.0, 0.0, 2.0]), "b": np.zeros(4)}
    areas = areas_by_label(goodness, ["good", "x", "y", "good"], clean_label="good")
    assert areas == {
        "a": {"x": 1.0, "y": 1.0, ALL_KINDS: 1.0},
        "b": {"x": 0.5, "y": 0.5, ALL_KINDS: 0.5},
    }


def test_every_column_is_higher_for_better_pairs() -> None:
    better = PairScores((0.1, 0.1), -1.0, 0.9, 0.9, length_deviation=0.5)
    worse = PairScores((0.3, 0.2), -2.0, 0.5, 0.4, length_deviation=1.5)
    unscored = PairScores.unscored("empty line", layers=2)
    for column in score_columns(2):
        assert column.goodness(better) > column.goodness(worse) > column.goodness(unscored)
    assert [column.name for column in score_columns(2)][:3] == [
        "null_rate",
        "null_rate_layer_0",
        "null_rate_layer_1",
    ]
    assert score_columns(2)[2].value(worse) == 0.2


def test_the_best_come_in_their_order_and_of_equals_the_first() -> None:
    goodness = np.array([0.1, 0.9, 0.5, 0.5, -math.inf, 0.5])
    assert best_pairs(goodness, 0.5).tolist() == [1, 2, 3]
    assert best_pairs(goodness, 1.0).tolist() == [0, 1, 2, 3, 5]
    assert best_pairs(goodness, 0.05).tolist() == []
