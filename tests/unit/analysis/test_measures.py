"""Every measure against numbers worked out by hand."""

import math

import pytest
import torch
from translation_models import KINDS, make_codec, make_config, make_model

from nmt.analysis.measures import (
    Density,
    attention_entropy,
    count_heads,
    distributions,
    head_density,
    head_diversity,
    unnormalised_sites,
)
from nmt.config.attention_kinds import ATTENTION_KINDS
from nmt.model.observe import Site

# One sentence, two heads, three queries of which the last is padding, three keys of which the last
# is hidden. Head 0 is null at query 1; what is hidden or padding has weights that must not count.
WEIGHTS = torch.tensor(
    [
        [
            [[0.5, 1.5, 9.0], [0.0, 0.0, 9.0], [7.0, 0.0, 0.0]],
            [[0.0, 2.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]],
        ]
    ]
)
VISIBLE = torch.tensor([True, True, False])[None, None, None, :]
QUERIES = torch.tensor([[True, True, False]])


def entropy(*shares: float) -> float:
    return -sum(share * math.log(share) for share in shares if share > 0)


def test_sparsity_and_null_rate() -> None:
    counts = count_heads(WEIGHTS, VISIBLE, QUERIES)
    assert counts.visible.tolist() == [4, 4]
    assert counts.zero.tolist() == [2, 1]
    assert counts.sparsity.tolist() == [0.5, 0.25]
    assert counts.queries.tolist() == [2, 2]
    assert counts.null_rate.tolist() == [0.5, 0.0]


def test_a_query_without_visible_key_does_not_count() -> None:
    counts = count_heads(WEIGHTS, torch.zeros(1, 1, 1, 3, dtype=torch.bool), QUERIES)
    assert counts.queries.tolist() == [0, 0]
    assert counts.null_rate.tolist() == [0.0, 0.0]


def test_causal_masks_are_broadcast() -> None:
    causal = torch.ones(3, 3, dtype=torch.bool).tril()
    counts = count_heads(WEIGHTS, causal, torch.tensor([[True, True, True]]))
    assert counts.visible.tolist() == [6, 6]  # 1 + 2 + 3
    assert counts.zero.tolist() == [4, 4]
    assert counts.null.tolist() == [1, 2]


def test_density_counts_weights_that_are_not_zero() -> None:
    density = head_density(WEIGHTS, VISIBLE, QUERIES)
    assert density.counts.tolist() == [[1, 0, 1], [0, 1, 1]]


def test_densities_of_different_widths_add_up() -> None:
    total = Density(torch.tensor([[1, 2]])) + Density(torch.tensor([[1, 0, 5]]))
    assert total.counts.tolist() == [[2, 2, 5]]


def test_entropy_is_of_shares_and_over_queries_that_attend() -> None:
    mean = attention_entropy(WEIGHTS, VISIBLE, QUERIES)
    assert mean.count.tolist() == [1, 2]
    expected = [entropy(0.25, 0.75), (0.0 + math.log(2)) / 2]
    torch.testing.assert_close(mean.value, torch.tensor(expected, dtype=torch.float64))


def test_a_head_that_never_attends_has_no_entropy() -> None:
    weights = torch.cat([WEIGHTS, torch.zeros(1, 1, 3, 3)], dim=1)
    mean = attention_entropy(weights, VISIBLE, QUERIES)
    first, second = attention_entropy(WEIGHTS, VISIBLE, QUERIES).value.tolist()
    assert mean.by_head() == [first, second, None]
    assert mean.over_heads() == pytest.approx((first + second) / 2)
    assert attention_entropy(torch.zeros(1, 2, 3, 3), VISIBLE, QUERIES).over_heads() == 0.0


def test_entropy_of_normalised_weights_is_their_own() -> None:
    weights = torch.tensor([[[[0.2, 0.3, 0.5]]]], dtype=torch.float64)
    everything = torch.ones(1, 1, 1, 3, dtype=torch.bool)
    mean = attention_entropy(weights, everything, torch.tensor([[True]]))
    assert mean.value.item() == pytest.approx(entropy(0.2, 0.3, 0.5), abs=1e-15)


def test_renormalisation_is_the_softmax_of_powers_over_visible_keys() -> None:
    shares, dummy = distributions(WEIGHTS, VISIBLE, 0.5)
    high, low = math.exp(math.sqrt(1.5)), math.exp(math.sqrt(0.5))
    expected = [low / (low + high), high / (low + high), 0.0]
    torch.testing.assert_close(shares[0, 0, 0], torch.tensor(expected, dtype=torch.float64))
    # A weight of 0 keeps the share of exp(0).
    one = math.exp(math.sqrt(2.0))
    expected = [1 / (1 + one), one / (1 + one), 0.0]
    torch.testing.assert_close(shares[0, 1, 0], torch.tensor(expected, dtype=torch.float64))
    assert shares[0, 0, 1].tolist() == [0.0, 0.0, 0.0]  # null: all on the dummy
    assert dummy[0, :, :2].tolist() == [[0.0, 1.0], [0.0, 0.0]]


def test_negative_weights_keep_their_sign() -> None:
    weights = torch.tensor([[[[-4.0, 4.0]]]])
    shares, _ = distributions(weights, torch.ones(1, 1, 1, 2, dtype=torch.bool), 0.5)
    total = math.exp(-2) + math.exp(2)
    assert shares.flatten().tolist() == pytest.approx([math.exp(-2) / total, math.exp(2) / total])


def test_diversity_with_a_null_head() -> None:
    """Query 1: one head on the dummy, one even on two keys."""
    mean = head_diversity(
        WEIGHTS, VISIBLE, QUERIES[:, :] & torch.tensor([[False, True, True]]), temperature=1.0
    )
    expected = entropy(0.25, 0.25, 0.5) - (0.0 + math.log(2)) / 2
    assert mean.count.item() == 1
    assert mean.value.item() == pytest.approx(expected, abs=1e-12)


def test_diversity_is_0_for_agreement_and_log_of_the_heads_for_disagreement() -> None:
    one_hot = torch.eye(4)
    everything = torch.ones(1, 1, 1, 4, dtype=torch.bool)
    query = torch.tensor([[True]])
    apart = one_hot[None, :, None, :]
    agreed = one_hot[None, [2, 2, 2, 2], None, :]
    assert head_diversity(apart, everything, query, temperature=None).value.item() == pytest.approx(
        math.log(4)
    )
    assert head_diversity(agreed, everything, query, temperature=None).value.item() == 0.0
    nulls = torch.zeros(1, 4, 1, 4)
    assert head_diversity(nulls, everything, query, temperature=1.0).value.item() == 0.0


def test_diversity_falls_with_a_mild_temperature_for_peaked_weights() -> None:
    weights = 9.0 * torch.eye(3)[None, :, None, :]
    everything = torch.ones(1, 1, 1, 3, dtype=torch.bool)
    values = [
        head_diversity(weights, everything, torch.tensor([[True]]), temperature=tau).value.item()
        for tau in (1.0, 0.5, 0.25, 0.1)
    ]
    assert values == sorted(values, reverse=True)
    power = math.exp(9.0**0.1)
    shares = power / (power + 2), 1 / (power + 2), 1 / (power + 2)
    assert values[-1] == pytest.approx(math.log(3) - entropy(*shares))


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_whose_weights_do_not_sum_to_one_are_unnormalised(kind: str) -> None:
    config = make_config(kind)
    sites = unnormalised_sites(make_model(config, make_codec(config)))
    types = ("encoder_self", "decoder_self", "cross")
    expected = {Site(site, layer) for site in types for layer in (0, 1)}  # type: ignore[arg-type]
    assert sites == (set() if ATTENTION_KINDS[kind].sums_to_one else expected)
