"""Each attention kind is what its name says."""

import math

import pytest
import torch
from support.attention_cases import weigh

from nmt.config.config import AttentionConfig, ModelConfig
from nmt.errors import ConfigError
from nmt.model.attention import AttentionCore, SelfAttention
from nmt.model.norms import HeadNorm
from nmt.ops.score_mappings import TopK


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ConfigError, match=r"expected one of softmax, .*got 'softmx'"):
        AttentionCore(8, 2, attention=AttentionConfig("softmx"), dropout=0.0)


@pytest.mark.parametrize("kind", ["rela-i", "rela-g"])
def test_rela_is_what_the_paper_says(kind: str) -> None:
    torch.manual_seed(1)
    dim, heads, length = 32, 4, 6
    attention = SelfAttention(ModelConfig(dim=dim, heads=heads), AttentionConfig(kind)).eval()
    x = torch.randn(2, length, dim)
    query, key, value = attention.query_key_value(x).chunk(3, dim=-1)
    outputs = []
    for head in range(heads):
        part = slice(head * dim // heads, (head + 1) * dim // heads)
        scores = query[..., part] @ key[..., part].transpose(1, 2) / math.sqrt(dim // heads)
        outputs.append(torch.relu(scores) @ value[..., part])
    z = torch.cat(outputs, dim=-1)
    norm = attention.core.norm
    assert isinstance(norm, HeadNorm)
    assert norm.gain is not None
    normed = z / (z.square().mean(-1, keepdim=True) + 1e-8).sqrt() * norm.gain
    if kind == "rela-g":
        normed = torch.sigmoid(norm.gate * z) * normed
    found = attention(x, None).x
    torch.testing.assert_close(found, attention.output(normed), atol=1e-5, rtol=1e-4)


def test_gains_and_gates_start_as_the_paper_says() -> None:
    torch.manual_seed(1)
    dim = 512
    bound = math.sqrt(3.0 / dim)
    small = AttentionCore(dim, 8, attention=AttentionConfig("rela-i"), dropout=0.0).norm
    gated = AttentionCore(dim, 8, attention=AttentionConfig("rela-g"), dropout=0.0).norm
    assert isinstance(small, HeadNorm)
    assert isinstance(gated, HeadNorm)
    assert small.gate is None
    assert small.gain is not None
    assert gated.gain is not None
    assert gated.gate is not None
    assert (gated.gain == 1.0).all()
    for uniform in (small.gain, gated.gate):
        assert uniform.abs().max() <= bound
        assert abs(uniform.std().item() - bound / math.sqrt(3.0)) < 0.1 * bound
        assert uniform.min() < -0.9 * bound


def test_a_learned_threshold_is_a_number_per_head() -> None:
    config = AttentionConfig("rela-g", threshold="learned")
    core = AttentionCore(12, 3, attention=config, dropout=0.0)
    scores = torch.randn(2, 3, 4, 5)
    assert torch.equal(weigh(core, scores, None), torch.relu(scores))
    with torch.no_grad():
        core.get_parameter("weights.threshold").copy_(torch.tensor([-1.0, 0.0, 0.5]))
    expected = torch.relu(scores - torch.tensor([-1.0, 0.0, 0.5])[:, None, None])
    weights = weigh(core, scores, None)
    assert torch.equal(weights, expected)
    assert (weights[:, 0] > 0).sum() > (weights[:, 2] > 0).sum()
    assert core.weights.report()["threshold"].tolist() == [-1.0, 0.0, 0.5]


def test_topk_keeps_the_k_highest_visible_scores() -> None:
    scores = torch.tensor([[[[3.0, 1.0, 2.0, 9.0, 0.0]]]])
    visible = torch.tensor([True, True, True, False, True])
    weights = TopK(2).weights(scores, visible)[0, 0, 0]
    expected = torch.softmax(torch.tensor([3.0, 2.0]), dim=0)
    torch.testing.assert_close(weights[[0, 2]], expected)
    assert (weights[[1, 3, 4]] == 0.0).all()


def test_topk_keeps_ties_and_takes_fewer_keys_than_k() -> None:
    tied = TopK(2).weights(torch.tensor([[[[1.0, 5.0, 1.0, 0.0]]]]), None)[0, 0, 0]
    assert tied[0] == tied[2] > 0.0
    assert tied[3] == 0.0
    few = TopK(3).weights(torch.zeros(1, 1, 1, 5), torch.tensor([True, True, False, False, False]))
    torch.testing.assert_close(few[0, 0, 0], torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0]))
