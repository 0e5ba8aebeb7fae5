"""Choosing a head with gold and without."""

import random
from pathlib import Path

import numpy as np
import pytest

from nmt.analysis.alignment import HeadGrid
from nmt.analysis.gold import Gold, GoldLinks, count_links
from nmt.analysis.head_choice import (
    GoldComparison,
    GridCounts,
    LinkInformation,
    best_choice,
    elsewhere,
    link_information,
)
from nmt.analysis.pairs import SegmentedPair
from nmt.data.codec import Segmentation
from nmt.decoding.alignment import NO_LINK, AlignmentHead

GRID = HeadGrid(layers=1, heads=2)
DIAGONAL = GoldLinks(frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (1, 1), (2, 2)}))


def grid_words(rows: dict[tuple[int, int], list[int]], *, width: int = 3) -> np.ndarray:
    """Links [1, 3, 2, width] with the given (head, step) rows and none elsewhere."""
    words = np.full((*GRID.shape, width), NO_LINK)
    for (head, step), row in rows.items():
        words[0, head, step] = row
    return words


def test_grid_counts_are_those_of_every_head_by_itself() -> None:
    counts = GridCounts(GRID)
    words = grid_words({(0, 0): [0, 1, 2], (1, 1): [0, 0, NO_LINK], (2, 0): [2, 2, 2]})
    counts.add(words, DIAGONAL)
    for choice in GRID.choices():
        row = words[GRID.place(choice)]
        links = [(int(word), target) for target, word in enumerate(row) if word != NO_LINK]
        rate = counts.error_rates()[GRID.place(choice)]
        assert rate == pytest.approx(count_links(links, DIAGONAL).error_rate, abs=1e-15)
    assert best_choice(GRID, counts.error_rates()) == AlignmentHead(0, 0, shifted=False)
    shifted = best_choice(GRID, counts.error_rates(), shifted=True)
    assert shifted == AlignmentHead(0, 1, shifted=True)


def test_the_table_reports_the_head_that_development_chose() -> None:
    comparison = GoldComparison(GRID, Gold([DIAGONAL] * 2, Path("gold"), development=1))
    sentence = Segmentation(["a", "b", "c"], [], [0, 1, 2])
    development = {(0, 1): [0, 1, 2], (1, 1): [2, 2, 1]}
    rest = {(0, 1): [1, 1, NO_LINK], (1, 1): [0, 1, 2], (2, 1): [0, 1, 0]}
    for index, words in enumerate((development, rest)):
        comparison.add(SegmentedPair(index, sentence, sentence), grid_words(words))
    shifted = comparison.table()["shifted"]
    (row,) = shifted["layers"]
    assert row["best_head"] == 0
    assert row["best_head_aer"] == pytest.approx(1 - (1 + 1) / (2 + 2))
    assert row["heads"] == pytest.approx([0.5, 0.0])
    assert row["layer_attention"] == pytest.approx(1 - (2 + 2) / (3 + 2))
    assert shifted["AoH"] == row["best_head_aer"]
    assert shifted["AoL"] == row["layer_attention"]


def test_elsewhere_leaves_out_the_own_sentence() -> None:
    values = np.array([7, 7, 8, 7, 8, 9])
    sentences = np.array([0, 0, 0, 1, 1, 1])
    assert elsewhere(values, sentences).tolist() == [1, 1, 1, 2, 1, 0]


def test_information_by_hand() -> None:
    """Two sentences, two words each, always linked alike: of 3 source and 5 target words."""
    sources, targets = np.array([0, 1, 0, 1]), np.array([2, 3, 2, 3])
    sentences = np.array([0, 0, 1, 1])
    by_chance = (1 + 1) / (2 + 3)
    expected = np.log(((1 + by_chance) / (1 + 1)) / by_chance)
    found = link_information(sources, targets, sentences, vocabulary=(3, 5))
    assert found == pytest.approx([expected] * 4)
    none = np.full(4, NO_LINK)
    assert link_information(none, targets, sentences, vocabulary=(3, 5)).tolist() == [0.0] * 4


def test_the_head_that_aligns_tells_most() -> None:
    """Against heads that look at the same place, at the last word, one word off, and at random."""
    random.seed(3)
    grid = HeadGrid(layers=1, heads=4)
    information = LinkInformation(grid)
    vocabulary = [f"w{number}" for number in range(40)]
    for _ in range(150):
        source = random.choices(vocabulary, weights=range(1, 41), k=random.randint(4, 12))
        order = list(range(len(source)))
        random.shuffle(order)
        target = [f"T{source[place]}" for place in order]
        words = np.full((*grid.shape, len(source)), NO_LINK)
        words[0, 0, :] = np.arange(len(source))
        words[0, 1, :] = len(source) - 1
        words[0, 2, 0] = order
        words[0, 2, 1] = [(place + 1) % len(source) for place in order]
        words[0, 3, :] = [random.randrange(len(source)) for _ in source]
        pieces = list(range(len(source)))
        information.add(
            SegmentedPair(0, Segmentation(source, [], pieces), Segmentation(target, [], pieces)),
            words,
        )
    scores = information.scores()
    assert best_choice(grid, information.costs()) == AlignmentHead(0, 2, shifted=False)
    others = np.delete(scores.flatten(), 4)
    assert scores[0, 2, 0] > 1.5
    assert others.max() < 0.3


def test_a_head_without_links_is_not_chosen() -> None:
    """Random links tell less than nothing; still they are links."""
    generator = random.Random(5)
    grid = HeadGrid(layers=1, heads=2)
    information = LinkInformation(grid)
    for index in range(50):
        words = [f"w{generator.randrange(30)}" for _ in range(8)]
        links = np.full((*grid.shape, 8), NO_LINK)
        links[0, 1:] = [[[generator.randrange(8) for _ in words] for _ in range(2)] for _ in "ab"]
        sentence = Segmentation(words, [], list(range(8)))
        information.add(SegmentedPair(index, sentence, sentence), links)
    scores = information.scores()
    assert scores[0, 1:].max() < scores[0, 0, 0] == 0.0
    assert best_choice(grid, information.costs()).head != 0


def test_without_any_sure_link_a_head_without_links_is_the_worst() -> None:
    counts = GridCounts(GRID)
    counts.add(grid_words({(0, 0): [0, 1, 2]}), GoldLinks(frozenset(), DIAGONAL.possible))
    assert best_choice(GRID, counts.error_rates(), shifted=False).head == 0


def test_without_text_the_usual_head_is_taken() -> None:
    grid = HeadGrid(layers=6, heads=8)
    chosen = best_choice(grid, LinkInformation(grid).costs())
    assert chosen == AlignmentHead(2, None, shifted=True)
