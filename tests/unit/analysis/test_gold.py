"""Gold links in the Pharaoh form, and the conventions of precision, recall and AER."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.analysis.gold import AlignmentCounts, Gold, GoldLinks, count_links, read_gold
from nmt.errors import DataError

GOLD = GoldLinks(
    sure=frozenset({(0, 0), (1, 2)}), possible=frozenset({(0, 0), (1, 2), (2, 1), (2, 2)})
)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_by_hand() -> None:
    """Four links: one sure, one only possible, two wrong; one sure link is missed."""
    counts = count_links([(0, 0), (2, 1), (3, 3), (1, 1)], GOLD)
    assert counts == AlignmentCounts(links=4, in_sure=1, in_possible=2, sure=2)
    assert counts.precision == 2 / 4
    assert counts.recall == 1 / 2
    assert counts.error_rate == 1 - (1 + 2) / (4 + 2)


def test_counts_of_sentences_add_up_before_they_are_divided() -> None:
    other = count_links([(0, 0)], GoldLinks(frozenset({(0, 0)}), frozenset({(0, 0)})))
    total = count_links([(5, 5)], GOLD) + other
    assert total.error_rate == 1 - (1 + 1) / (2 + 3)


links = st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 5)))


@given(sure=links, more=links)
def test_gold_has_no_error(
    sure: frozenset[tuple[int, int]], more: frozenset[tuple[int, int]]
) -> None:
    """Neither the sure links nor all possible ones are an error."""
    gold = GoldLinks(sure, sure | more)
    assert count_links(sure, gold).error_rate == 0.0
    assert count_links(gold.possible, gold).error_rate == 0.0


@given(found=links, sure=links, more=links)
def test_rates_are_rates(
    found: frozenset[tuple[int, int]],
    sure: frozenset[tuple[int, int]],
    more: frozenset[tuple[int, int]],
) -> None:
    counts = count_links(found, GoldLinks(sure, sure | more))
    for rate in (counts.precision, counts.recall, counts.error_rate):
        assert 0.0 <= rate <= 1.0


def test_nothing_found_is_all_error() -> None:
    counts = count_links([], GOLD)
    assert (counts.precision, counts.recall, counts.error_rate) == (0.0, 0.0, 1.0)


def test_reading_counts_from_1_and_english_first(tmp_path: Path) -> None:
    path = write(tmp_path / "gold", "1-1 2p3\n\n3-2\t3p1\n")
    forward = list(read_gold(path, first=1))
    assert forward[0] == GoldLinks(frozenset({(0, 0)}), frozenset({(0, 0), (1, 2)}))
    assert forward[1] == GoldLinks(frozenset(), frozenset())
    backward = list(read_gold(path, first=1, order="target-source"))
    assert backward[2] == GoldLinks(frozenset({(1, 2)}), frozenset({(1, 2), (0, 2)}))
    assert [one.swapped() for one in backward] == forward


def test_a_second_file_has_possible_links(tmp_path: Path) -> None:
    sure = write(tmp_path / "sure", "0-0\n1-1\n")
    possible = write(tmp_path / "possible", "0-0 0-1\n\n")
    first, second = read_gold(sure, possible)
    assert first == GoldLinks(frozenset({(0, 0)}), frozenset({(0, 0), (0, 1)}))
    assert second == GoldLinks(frozenset({(1, 1)}), frozenset({(1, 1)}))
    write(possible, "0-0\n")
    with pytest.raises(DataError, match=r"sure has 2 lines but .*possible has 1"):
        list(read_gold(sure, possible))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1-1\n0-x\n", r"gold:2: expected links like .*got '0-x'"),
        ("1-1 1:1\n", r"gold:1: expected links"),
        ("1-1 0-2\n", r"gold:1: 0-2 has a word below 1; give --gold-index 0"),
    ],
)
def test_what_is_no_link_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(read_gold(write(tmp_path / "gold", text), first=1))


def test_a_link_beyond_the_sentence_is_an_error_that_says_what_to_try() -> None:
    gold = Gold([GOLD] * 7, Path("g"))
    with pytest.raises(DataError, match=r"g:7: .*source word 1 .*target word 2,.*--gold-index 1"):
        gold.check(6, num_source=3, num_target=2)
    gold.check(6, num_source=3, num_target=3)
