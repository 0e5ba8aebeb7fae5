"""The measures as training and reports show them."""

import json
import math
from pathlib import Path

import pytest
import torch
from encoded_corpora import write_corpus
from support.attention import corpus_statistics, loaded_model
from translation_models import make_codec, make_config, make_model, random_lines

from nmt.analysis.measures import TEMPERATURES
from nmt.analysis.pairs import shuffle_targets
from nmt.analysis.statistics import attention_summary
from nmt.analysis.trajectories import read_trajectories
from nmt.config.config import SublayerAttentionConfig
from nmt.model.observe import Site

PAIRS = [
    (source, target.upper())
    for source, target in zip(random_lines(20, seed=5), random_lines(20, seed=6), strict=True)
]


def test_training_sees_what_a_report_sees(tmp_path: Path) -> None:
    config = make_config("rela-g")
    codec = make_codec(config)
    model = make_model(config, codec)
    corpus = write_corpus(
        tmp_path,
        [codec.source.encode(source) for source, _ in PAIRS],
        [codec.target.encode(target) for _, target in PAIRS],
    )
    summary = attention_summary(model, corpus, count=17)
    report = corpus_statistics(loaded_model(config, codec, model), PAIRS[:17]).summary()
    assert set(summary) == {"encoder_self", "decoder_self", "cross"}
    for name, layers in summary.items():
        for layer, values in layers.items():
            other = report[name][layer]
            for measure in ("sparsity", "null_rate", "entropy"):
                assert values[measure] == pytest.approx(other[measure], abs=1e-4)
            assert values["diversity"] == pytest.approx(other["diversity"]["1.0"], abs=1e-4)
    assert 0.2 < summary["encoder_self"]["layer_0"]["sparsity"] < 0.8


def test_learned_alphas_are_in_the_summary(tmp_path: Path) -> None:
    config = make_config("entmax")
    learned = SublayerAttentionConfig("entmax", alpha="learned")
    object.__setattr__(config.model.attention, "cross", learned)
    codec = make_codec(config)
    model = make_model(config, codec)
    corpus = write_corpus(tmp_path, [codec.source.encode("the dog")], [codec.target.encode("A")])
    summary = attention_summary(model, corpus, count=1)
    row = summary["cross"]["layer_1"]
    raw = model.attentions()[Site("cross", 1)].core.weights.raw_alpha
    assert isinstance(raw, torch.Tensor)
    expected = (1 + torch.sigmoid(raw)).tolist()
    assert [row[f"alpha_{head}"] for head in range(4)] == pytest.approx(expected, abs=1e-5)
    assert "alpha_0" not in summary["encoder_self"]["layer_0"]


def test_learned_thresholds_are_in_the_summary(tmp_path: Path) -> None:
    """So metrics.jsonl has them, and trajectories can be drawn."""
    config = make_config("rela-g")
    learned = SublayerAttentionConfig("rela-g", threshold="learned")
    object.__setattr__(config.model.attention, "decoder_self", learned)
    codec = make_codec(config)
    model = make_model(config, codec)
    raw = model.attentions()[Site("decoder_self", 0)].core.weights.threshold
    assert isinstance(raw, torch.Tensor)
    with torch.no_grad():
        raw.copy_(torch.tensor([0.5, -0.25, 0.0, 1.0]))
    corpus = write_corpus(tmp_path, [codec.source.encode("the dog")], [codec.target.encode("A")])
    record = {"event": "validation", "update": 7}
    record["attention"] = attention_summary(model, corpus, count=1)
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    found = [
        one
        for one in read_trajectories(tmp_path / "metrics.jsonl")
        if (one.type, one.layer) == ("decoder_self", 0)
    ]
    assert [(one.name, one.head, one.updates, one.values) for one in found] == [
        ("threshold", head, [7], [value]) for head, value in enumerate([0.5, -0.25, 0.0, 1.0])
    ]


def test_the_report_is_plain_json_with_a_number_for_each_temperature() -> None:
    config = make_config("rela-g")
    codec = make_codec(config)
    loaded = loaded_model(config, codec, make_model(config, codec))
    summary = corpus_statistics(loaded, PAIRS).summary()
    assert json.loads(json.dumps(summary)) == summary
    row = summary["cross"]["layer_0"]
    assert list(row["diversity"]) == [str(temperature) for temperature in TEMPERATURES]
    assert all(0 <= value <= math.log(4) for value in row["diversity"].values())
    density = row["heads"]["density"]
    target_tokens = sum(len(codec.target.encode(target)) for _, target in PAIRS)
    assert [sum(head) for head in density] == [target_tokens] * 4
    null_rates = [head[0] / target_tokens for head in density]
    assert row["heads"]["null_rate"] == pytest.approx(null_rates)


def test_softmax_is_dense_and_its_encoder_does_not_see_the_shuffled_targets() -> None:
    config = make_config("softmax")
    codec = make_codec(config)
    loaded = loaded_model(config, codec, make_model(config, codec))
    plain = corpus_statistics(loaded, PAIRS).summary()
    shuffled = corpus_statistics(loaded, shuffle_targets(PAIRS, seed=1)).summary()
    for layers in plain.values():
        for row in layers.values():
            assert row["sparsity"] == row["null_rate"] == 0.0
            assert list(row["diversity"]) == ["plain"]
    for layer, row in plain["encoder_self"].items():
        other = shuffled["encoder_self"][layer]
        assert other["entropy"] == pytest.approx(row["entropy"], rel=1e-12)
        cross = plain["cross"][layer]["entropy"]
        assert shuffled["cross"][layer]["entropy"] != pytest.approx(cross, rel=1e-6)
