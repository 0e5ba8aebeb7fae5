"""Norm-based weights against what a key really adds to the output of the sublayer."""

import pytest
import torch
from support.attention import loaded_model
from translation_models import make_codec, make_config, make_model, random_lines

from nmt.analysis.aligner import Aligner
from nmt.analysis.norm_weights import transformed_norms, weight_by_norm
from nmt.analysis.pairs import PairBatch, SegmentedPair, batch_attention
from nmt.decoding.alignment import AlignmentHead
from nmt.model.attention import CrossAttention
from nmt.model.observe import Site

PAIRS = list(zip(random_lines(6, seed=3, longest=7), random_lines(6, seed=4), strict=True))


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["softmax", "rela-i"])
def test_the_norm_is_the_length_of_what_a_key_adds(kind: str) -> None:
    """One head and one key at a time, through the values, the gain and the output projection."""
    config = make_config(kind)
    model = make_model(config, make_codec(config))
    attention = model.attentions()[Site("cross", 1)]
    assert isinstance(attention, CrossAttention)
    memory = torch.randn(1, 3, 32)
    norms = transformed_norms(attention, memory)
    assert norms.shape == (1, 4, 3)
    value = attention.project(memory).value
    for head in range(4):
        for key in range(3):
            joined = torch.zeros(32)
            joined[8 * head : 8 * head + 8] = value[0, head, key]
            if attention.core.norm is not None:
                assert attention.core.norm.gain is not None
                joined = joined * attention.core.norm.gain
            added = attention.output(joined) - attention.output(torch.zeros(32))
            assert float(norms[0, head, key]) == pytest.approx(float(added.norm()), rel=1e-4)


def test_links_are_those_of_the_weighted_attention() -> None:
    config = make_config("softmax")
    codec = make_codec(config)
    model = make_model(config, codec)
    loaded = loaded_model(config, codec, model)
    pairs = [
        SegmentedPair(index, codec.source.segment(source), codec.target.segment(target.upper()))
        for index, (source, target) in enumerate(PAIRS)
    ]
    batch = PairBatch.of(pairs, "cpu")
    plain = batch_attention(model, batch, types=("cross",))
    weighted = weight_by_norm(model, batch, plain)
    site = Site("cross", 0)
    for one, other in zip(plain, weighted, strict=True):
        factors = other.weights[site] / one.weights[site]
        assert (factors > 0).all()
        assert factors.std(axis=1).max() < 1e-4  # the same for all queries
        assert factors.std(axis=2).min() > 1e-2  # and another one for every key
    lines = [(source, target.upper()) for source, target in PAIRS]
    head = AlignmentHead(0, 1, shifted=True)
    by_attention = list(Aligner(loaded).links(lines, head))
    by_norm = list(Aligner(loaded, weighting="norm").links(lines, head))
    expected = [[int(row[:-1].argmax()) for row in one.weights[site][1, 1:]] for one in weighted]
    assert by_norm == [
        tuple(sorted((source, target) for target, source in enumerate(links))) for links in expected
    ]
    assert by_attention != by_norm
