"""Two directions become one: a worked example, and what must hold for any links."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nmt.analysis.symmetrization import (
    SYMMETRIZATIONS,
    grow_diag,
    grow_diag_final,
    intersection,
    union,
)

# Both agree on 0-0 and 3-3.
FORWARD = {(0, 0), (1, 1), (2, 2), (3, 3)}
REVERSE = {(0, 0), (2, 1), (3, 3), (5, 5), (0, 1)}


def test_intersection_and_union() -> None:
    assert intersection(FORWARD, REVERSE) == ((0, 0), (3, 3))
    assert union(FORWARD, REVERSE) == tuple(sorted(FORWARD | REVERSE))


def test_grow_diag_step_by_step() -> None:
    """Each link of one direction only is taken or left out for a reason.

    0-0 has the neighbour 0-1 (target word 1 had no link) and by a corner 1-1 (source word 1 had
    none); 1-1 has the neighbours 2-1 and, by a corner, 2-2. 2-1 comes first, as source word 2 has
    no link yet; then 2-2, as target word 2 has none. 5-5 touches nothing.
    """
    assert grow_diag(FORWARD, REVERSE) == ((0, 0), (0, 1), (1, 1), (2, 1), (2, 2), (3, 3))


def test_a_link_between_words_that_have_links_is_not_added() -> None:
    forward, reverse = {(0, 0), (1, 1), (0, 1)}, {(0, 0), (1, 1), (1, 0)}
    assert grow_diag_final(forward, reverse) == ((0, 0), (1, 1))


def test_final_adds_what_has_a_word_without_link() -> None:
    grown = grow_diag(FORWARD, REVERSE)
    assert grow_diag_final(FORWARD, REVERSE) == (*grown, (5, 5))


def test_without_agreement_only_the_final_step_adds() -> None:
    assert grow_diag({(0, 0)}, {(1, 1)}) == ()
    assert grow_diag_final({(0, 0)}, {(1, 1)}) == ((0, 0), (1, 1))
    # The second finds both words linked.
    assert grow_diag_final({(0, 0), (1, 1)}, {(0, 1)}) == ((0, 0), (1, 1))


links = st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)))


@pytest.mark.parametrize("method", SYMMETRIZATIONS.values())
@given(forward=links, reverse=links)
def test_every_method_lies_between_intersection_and_union(
    method: object, forward: set[tuple[int, int]], reverse: set[tuple[int, int]]
) -> None:
    assert callable(method)
    found = method(forward, reverse)
    assert set(intersection(forward, reverse)) <= set(found) <= set(union(forward, reverse))
    assert list(found) == sorted(set(found))
    assert method(forward, forward) == tuple(sorted(forward))


@given(forward=links, reverse=links)
def test_final_leaves_no_linkable_word_without_link(
    forward: set[tuple[int, int]], reverse: set[tuple[int, int]]
) -> None:
    found = grow_diag_final(forward, reverse)
    everything = union(forward, reverse)
    for side in (0, 1):
        assert {link[side] for link in found} == {link[side] for link in everything}
