"""Planted heads, whose attention is made by hand, are found by the measures of roles and sinks."""

import itertools
import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from translation_models import make_config

from nmt.analysis.alignment import HeadGrid, all_links
from nmt.analysis.head_choice import LinkInformation
from nmt.analysis.key_classes import BatchPositions, line_tokens
from nmt.analysis.measures import head_diversity
from nmt.analysis.pairs import PairBatch, SegmentedPair, split_attention
from nmt.analysis.roles import AlignmentRoles, RoleStatistics
from nmt.analysis.sinks import SinkFreeStatistics
from nmt.data.codec import Codec
from nmt.model.observe import Site

SYLLABLES = ("ka", "lo", "mi", "nu", "re", "so", "ti")
WORDS = ["".join(parts) for parts in itertools.product(SYLLABLES, SYLLABLES)]


def sentences(count: int) -> list[tuple[str, str]]:
    """Pairs of a sentence and its words in capitals and in another order, with punctuation."""
    chosen = random.Random(5)
    pairs = []
    for number in range(count):
        words = chosen.sample(WORDS, k=chosen.randint(6, 10))
        order = chosen.sample(words, k=len(words))
        end = "?" if number % 3 == 0 else "."
        comma = [","] if number % 3 else []
        source = [*words[:3], *comma, *words[3:], end]
        target = [*(word.upper() for word in order[:3]), *comma]
        target += [*(word.upper() for word in order[3:]), end]
        pairs.append((" ".join(source), " ".join(target)))
    return pairs


@pytest.fixture(scope="module")
def planted() -> tuple[PairBatch, Codec]:
    """Sentences whose words have several subwords."""
    pairs = sentences(90)
    config = make_config("rela-g", subword="bpe")
    codec = Codec.learn(config.data, pairs)
    segmented = [
        SegmentedPair(index, codec.source.segment(source), codec.target.segment(target))
        for index, (source, target) in enumerate(pairs)
    ]
    return PairBatch.of(segmented, "cpu"), codec


def pieces_of(pair: SegmentedPair, codec: Codec, side: str) -> list[tuple[str, int]]:
    """The token and its index of each subword of a side, without the end symbol."""
    tokens = line_tokens(getattr(pair, side), getattr(codec, side))
    return [(tokens.texts[number], number) for number in tokens.of_piece]


def chosen_keys(role: str, query: int, tokens: list[tuple[str, int]], visible: int) -> list[int]:
    """The keys of a planted head for a query; none if it has no such key.

    `tokens` are those of the positions that are text, and `visible` the number of visible keys.
    """
    places = {
        "previous": [query - 1] if query else [],
        "next": [query + 1] if query + 1 < visible else [],
        "itself": [query],
        "end": [visible - 1],
        "first": [0],
        "same word": [
            place
            for place, (_, number) in enumerate(tokens)
            if query < len(tokens) and number == tokens[query][1] >= 0 and place != query
        ],
        "punctuation": [place for place, (text, _) in enumerate(tokens) if text in {",", ".", "?"}],
        "question mark": [place for place, (text, _) in enumerate(tokens) if text == "?"],
    }
    return [place for place in places[role] if place < visible]


def row(keys: list[int], visible: int, width: int, generator: random.Random) -> list[float]:
    """Weights of which 80 % are on some keys, and all at random without any."""
    noise = [generator.random() for _ in range(visible)]
    values = [0.2 * value / sum(noise) for value in noise]
    if keys:
        for key in keys:
            values[key] += 0.8 / len(keys)
    else:
        values = [5 * value for value in values]
    return values + [0.0] * (width - visible)


def found(summary: dict[str, Any], type_: str) -> dict[int, list[str]]:
    roles: dict[int, list[str]] = {}
    for one in summary[type_]["layer_0"]["roles"]:
        roles.setdefault(one["head"], []).append(one["role"])
    return roles


def encoder_weights(batch: PairBatch, codec: Codec, roles: list[str]) -> Tensor:
    """[B, H, S, S] of planted heads; others attend at random, to all alike, to nothing."""
    generator = random.Random(7)
    length = batch.source.shape[1]
    weights = torch.zeros(len(batch.pairs), len(roles) + 3, length, length)
    for number, pair in enumerate(batch.pairs):
        tokens, visible = pieces_of(pair, codec, "source"), len(pair.source.ids)
        for query in range(visible):
            for head, role in enumerate(roles):
                keys = chosen_keys(role, query, tokens, visible)
                weights[number, head, query] = torch.tensor(row(keys, visible, length, generator))
            weights[number, len(roles), query] = torch.tensor(row([], visible, length, generator))
            weights[number, len(roles) + 1, query, :visible] = 1 / visible
    return weights


def test_planted_heads_of_the_encoder_are_found(planted: tuple[PairBatch, Codec]) -> None:
    batch, codec = planted
    roles = ["previous", "next", "itself", "same word", "punctuation", "question mark"]
    roles += ["end", "first"]
    weights = encoder_weights(batch, codec, roles)
    statistics = RoleStatistics()
    observe = statistics.observer(batch, BatchPositions.of(batch, codec))
    observe(Site("encoder_self", 0), weights, batch.source_visible[:, None, None])
    summary: dict[str, Any] = {"encoder_self": {"layer_0": {}}}
    statistics.add_to(summary)
    expected = [role if role not in ("end", "first") else "sink" for role in roles]
    assert found(summary, "encoder_self") == {head: [role] for head, role in enumerate(expected)}
    shares = summary["encoder_self"]["layer_0"]["shares"]
    assert shares["end symbol"][6] > 0.8
    assert shares["first token"][7] > 0.8
    first = summary["encoder_self"]["layer_0"]["roles"][5]  # the head of question marks
    assert first["score"] > first["threshold"]
    assert len(first["examples"]) == 3
    assert all("?" in example["text"] for example in first["examples"])
    assert first["examples"][0]["score"] >= first["examples"][1]["score"]
    assert json.loads(json.dumps(summary)) == summary


def test_weights_need_no_sum_of_one_and_padding_is_invisible(
    planted: tuple[PairBatch, Codec],
) -> None:
    batch, codec = planted
    weights = encoder_weights(batch, codec, ["previous", "punctuation"])
    scaled = weights * torch.rand(weights.shape[:3], generator=torch.manual_seed(1))[..., None] * 9
    scaled[~batch.source_visible[:, None, :, None].expand_as(scaled)] = 3.0
    summaries = []
    for values in (weights, scaled):
        statistics = RoleStatistics()
        observe = statistics.observer(batch, BatchPositions.of(batch, codec))
        observe(Site("encoder_self", 0), values, batch.source_visible[:, None, None])
        summaries.append({"encoder_self": {"layer_0": {}}})
        statistics.add_to(summaries[-1])
    one, other = (summary["encoder_self"]["layer_0"]["shares"] for summary in summaries)
    for name in one:
        assert one[name] == pytest.approx(other[name], abs=1e-5)


def test_planted_heads_of_the_decoder_are_found(planted: tuple[PairBatch, Codec]) -> None:
    """Its queries read the start symbol first, and see no later position."""
    batch, codec = planted
    roles = ["previous", "itself", "same word", "punctuation", "first"]
    generator = random.Random(7)
    length = batch.target_input.shape[1]
    weights = torch.zeros(len(batch.pairs), len(roles) + 1, length, length)
    for number, pair in enumerate(batch.pairs):
        tokens = [("", -1), *pieces_of(pair, codec, "target")]
        for query in range(len(pair.target.ids)):
            for head, role in enumerate([*roles, "none"]):
                keys = chosen_keys(role, query, tokens, query + 1) if role != "none" else []
                values = row(keys, query + 1, length, generator)
                weights[number, head, query] = torch.tensor(values)
    statistics = RoleStatistics()
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    observe = statistics.observer(batch, BatchPositions.of(batch, codec))
    observe(Site("decoder_self", 0), weights, causal & batch.target_visible[:, None, None])
    summary: dict[str, Any] = {"decoder_self": {"layer_0": {}}}
    statistics.add_to(summary)
    assert found(summary, "decoder_self") == {
        **{head: [role] for head, role in enumerate(roles[:4])},
        4: ["sink"],
    }
    assert "end symbol" not in summary["decoder_self"]["layer_0"]["shares"]


def test_a_query_without_a_choice_does_not_count(planted: tuple[PairBatch, Codec]) -> None:
    """A head that attends to itself only at the start symbol, which sees nothing else."""
    batch, codec = planted
    length = batch.target_input.shape[1]
    weights = torch.zeros(len(batch.pairs), 2, length, length)
    weights[:, :, 0, 0] = 1.0
    weights[:, 0, 1:, 0] = 1.0
    statistics = RoleStatistics()
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    observe = statistics.observer(batch, BatchPositions.of(batch, codec))
    observe(Site("decoder_self", 0), weights, causal & batch.target_visible[:, None, None])
    summary: dict[str, Any] = {"decoder_self": {"layer_0": {}}}
    statistics.add_to(summary)
    assert summary["decoder_self"]["layer_0"]["shares"]["itself"] == [0.0, None]
    assert found(summary, "decoder_self") == {0: ["sink"]}


def test_planted_heads_of_cross_attention_are_found(planted: tuple[PairBatch, Codec]) -> None:
    """Heads that align by the step that predicts and by the one that reads, a sink, and others."""
    batch, codec = planted
    length, width = batch.target_input.shape[1], batch.source.shape[1]
    weights = torch.zeros(len(batch.pairs), 5, length, width)
    generator = random.Random(3)
    for number, pair in enumerate(batch.pairs):
        source, target = (pieces_of(pair, codec, side) for side in ("source", "target"))
        visible = len(source) + 1
        for query in range(len(pair.target.ids)):
            plans: list[list[int]] = []
            for place in (query, query - 1):
                text = target[place][0].lower() if 0 <= place < len(target) else ""
                plans.append([key for key, (word, _) in enumerate(source) if word == text])
            plans += [[visible - 1], [min(query, visible - 1)], []]
            for head, keys in enumerate(plans):
                weights[number, head, query] = torch.tensor(row(keys, visible, width, generator))
    statistics = RoleStatistics()
    observe = statistics.observer(batch, BatchPositions.of(batch, codec))
    observe(Site("cross", 0), weights, batch.source_visible[:, None, None])
    alignment = AlignmentRoles(LinkInformation(HeadGrid(1, 5)))
    for attention in split_attention(batch.pairs, {Site("cross", 0): weights.numpy()}):
        alignment.add(attention.pair, all_links(attention))
    summary: dict[str, Any] = {"cross": {"layer_0": {}}}
    statistics.add_to(summary)
    alignment.add_to(summary)
    assert found(summary, "cross") == {0: ["alignment"], 1: ["alignment"], 2: ["sink"]}
    scores = summary["cross"]["layer_0"]["shares"]["alignment"]
    assert min(scores[:2]) > 0.2
    assert max(scores[2:]) < 0.0
    best = summary["cross"]["layer_0"]["roles"][0]["examples"]
    assert [example["score"] for example in best] == sorted(
        (example["score"] for example in best), reverse=True
    )
    texts = [" ".join(pair.target.words) for pair in batch.pairs]
    assert all(texts[example["line"] - 1] == example["text"] for example in best)


def test_without_sinks_the_other_keys_share_all_weight(planted: tuple[PairBatch, Codec]) -> None:
    """Half of the weight is on the end symbol, the rest on two words: two heads that disagree."""
    batch, codec = planted
    width = batch.source.shape[1]
    weights = torch.zeros(len(batch.pairs), 2, batch.target_input.shape[1], width)
    for number, pair in enumerate(batch.pairs):
        weights[number, :, :, len(pair.source.ids) - 1] = 0.5
        weights[number, 0, :, 1:3] = 0.25
        weights[number, 1, :, 2:4] = 0.25
    statistics = SinkFreeStatistics(frozenset())
    observe = statistics.observer(batch, BatchPositions.of(batch, codec))
    visible = batch.source_visible[:, None, None]
    observe(Site("cross", 0), weights, visible)
    summary: dict[str, Any] = {"cross": {"layer_0": {}}}
    statistics.add_to(summary)
    layer = summary["cross"]["layer_0"]
    assert layer["without_sinks"]["entropy"] == pytest.approx(np.log(2))
    # Of two distributions over two of three keys each, one key of them common.
    expected = -2 * 0.25 * np.log(0.25) - 0.5 * np.log(0.5) - np.log(2)
    assert layer["without_sinks"]["diversity"] == pytest.approx(expected)
    plain = head_diversity(weights, visible, batch.target_visible, temperature=None)
    assert float(plain.value) == pytest.approx(expected / 2)
    assert layer["layer_null_rate"] == 0.0


def test_layer_attention_is_null_only_where_all_heads_are(planted: tuple[PairBatch, Codec]) -> None:
    batch, codec = planted
    weights = torch.zeros(len(batch.pairs), 2, batch.target_input.shape[1], batch.source.shape[1])
    weights[:, 0, 0, 1] = 1.0  # the first query attends by the first head
    weights[:, 1, 1, 1] = 2.0  # and the second one by the second head
    site = Site("cross", 0)
    statistics = SinkFreeStatistics(frozenset({site}))
    observe = statistics.observer(batch, BatchPositions.of(batch, codec))
    observe(site, weights, batch.source_visible[:, None, None])
    summary: dict[str, Any] = {"cross": {"layer_0": {}}}
    statistics.add_to(summary)
    queries = int(batch.target_visible.sum())
    rate = 1 - 2 * len(batch.pairs) / queries
    assert summary["cross"]["layer_0"]["layer_null_rate"] == pytest.approx(rate)
