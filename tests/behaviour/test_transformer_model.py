"""The whole model: sizes, ties, starts, observation and modes."""

import math
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.attention_cases import CASES, HEADS
from support.transformers import MODELS, everywhere, make_model, make_source, make_target
from torch import Tensor

from nmt.config.config import AttentionConfig, AttentionTypesConfig, ModelConfig
from nmt.errors import ConfigError
from nmt.model.attention import SelfAttention
from nmt.model.observe import Site, learned_parameters, observe_attention
from nmt.model.summary import summarize
from nmt.model.transformer import Transformer


def base_parameters(kind: str) -> int:
    config = ModelConfig(attention=everywhere(AttentionConfig(kind)))
    with torch.device("meta"):
        model = Transformer(config, source_vocabulary_size=1000, target_vocabulary_size=900)
    return summarize(model).total


def test_rela_adds_what_the_paper_says_to_the_base_model() -> None:
    sublayers = 18
    softmax = base_parameters("softmax")
    assert base_parameters("rela-i") == softmax + sublayers * 512
    assert base_parameters("rela-g") == softmax + sublayers * 2 * 512
    assert base_parameters("entmax15") == softmax


def test_the_summary_counts_every_part() -> None:
    layer, feed_forward = 4 * (512 * 512 + 512), 2 * 512 * 2048 + 2048 + 512
    with torch.device("meta"):
        model = Transformer(ModelConfig(), source_vocabulary_size=1000, target_vocabulary_size=900)
    summary = summarize(model)
    assert summary.parts == {
        "source embeddings": 1000 * 512,
        "target embeddings": 900 * 512,
        "encoder self-attention": 6 * layer,
        "encoder feed-forward": 6 * feed_forward,
        "decoder self-attention": 6 * layer,
        "decoder cross-attention": 6 * layer,
        "decoder feed-forward": 6 * feed_forward,
        "layer norms": (6 * 2 + 6 * 3) * 2 * 512,
        "output": 0,
    }
    assert summary.total == sum(parameter.numel() for parameter in model.parameters())
    assert "tied to the target embeddings" in str(summary)
    assert f"{summary.total:,}" in str(summary)


@pytest.mark.parametrize(("initializer", "smaller"), [("xavier", 1), ("uniform_unit_scaling", 2)])
def test_projections_start_with_the_bounds_of_their_initializer(
    initializer: Literal["xavier", "uniform_unit_scaling"], smaller: int
) -> None:
    """Variance scaling by the mean of inputs and outputs, of D x D or of D x 3D in one matrix."""
    torch.manual_seed(3)
    config = ModelConfig(dim=64, heads=4, feed_forward_dim=128, initializer=initializer)
    model = Transformer(config, source_vocabulary_size=500, target_vocabulary_size=400)
    wide, narrow = math.sqrt(6 / 128), math.sqrt(6 / 192)
    for attention in model.attentions().values():
        if isinstance(attention, SelfAttention):
            expected, fused = wide / math.sqrt(smaller), attention.query_key_value
        else:
            expected, fused = wide, attention.key_value
            assert_uniform(attention.query.weight, wide)
        for block in fused.weight.view(-1, 64, 64):
            assert_uniform(block, expected)
        assert_uniform(attention.output.weight, wide)
    for name, weight in model.named_parameters():
        if weight.shape in ((128, 64), (64, 128)) and "feed_forward" in name:
            assert_uniform(weight, narrow)
        if name.endswith(".bias"):
            assert not weight.any()
    for table in (model.source_embedding, model.output_weight):
        assert table.std().item() == pytest.approx(64**-0.5, rel=0.02)


@pytest.mark.parametrize("initializer", ["xavier", "uniform_unit_scaling"])
def test_initial_score_scale_changes_the_queries_alone(
    initializer: Literal["xavier", "uniform_unit_scaling"],
) -> None:
    def weights(scale: float) -> dict[str, Tensor]:
        torch.manual_seed(3)
        config = ModelConfig(dim=16, heads=2, initializer=initializer, initial_score_scale=scale)
        model = Transformer(config, source_vocabulary_size=9, target_vocabulary_size=9)
        return model.state_dict()

    plain, scaled = weights(1.0), weights(0.125)
    assert sum("query" in name and "weight" in name for name in plain) == 6 + 6 + 6
    for name, expected in plain.items():
        if "query" in name:
            expected[:16] /= 8
        assert torch.equal(scaled[name], expected), name


def assert_uniform(weight: Tensor, bound: float) -> None:
    assert bound * 0.99 < weight.abs().max().item() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize("tie", ["none", "target", "all"])
def test_ties_share_one_tensor_and_survive_a_file(tie: str, tmp_path: Path) -> None:
    config = ModelConfig(
        dim=16, heads=2, encoder_layers=1, decoder_layers=1, feed_forward_dim=32, tie_embeddings=tie
    )  # type: ignore[arg-type]
    model = Transformer(config, source_vocabulary_size=20, target_vocabulary_size=20).eval()
    assert (model.output_weight is model.target_embedding) == (tie != "none")
    assert (model.source_embedding is model.target_embedding) == (tie == "all")
    tables = {"none": 3, "target": 2, "all": 1}[tie]
    shapes = [tuple(value.shape) for value in model.state_dict().values()]
    assert shapes.count((20, 16)) == tables
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other = Transformer(config, source_vocabulary_size=20, target_vocabulary_size=20).eval()
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    source, visible = make_source(5, 3, width=5)
    inputs = (source % 20, visible, make_target(2, 4) % 20)
    assert torch.equal(other.logits(other(*inputs)), model.logits(model(*inputs)))


def test_tying_all_needs_one_vocabulary() -> None:
    with pytest.raises(ConfigError, match="tie_embeddings"):
        Transformer(
            ModelConfig(tie_embeddings="all"), source_vocabulary_size=5, target_vocabulary_size=6
        )


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ConfigError, match=r"model\.heads: expected a divisor of .* got 7"):
        Transformer(ModelConfig(heads=7), source_vocabulary_size=5, target_vocabulary_size=6)


def test_weights_start_as_in_the_original() -> None:
    torch.manual_seed(1)
    model = Transformer(
        ModelConfig(encoder_layers=1, decoder_layers=1),
        source_vocabulary_size=400,
        target_vocabulary_size=400,
    )
    assert abs(model.target_embedding.std().item() * math.sqrt(512) - 1.0) < 0.02
    square, tall = math.sqrt(6.0 / 1024), math.sqrt(6.0 / (512 + 2048))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0.0).all(), name
        elif "attention" in name and parameter.dim() == 2:  # fused blocks count as squares
            assert 0.99 * square < parameter.abs().max().item() <= square, name
        elif "feed_forward" in name and parameter.dim() == 2:
            assert 0.99 * tall < parameter.abs().max().item() <= tall, name


@pytest.mark.parametrize("attention", MODELS.values(), ids=MODELS)
def test_observing_sees_every_site_and_changes_nothing(attention: AttentionTypesConfig) -> None:
    model = make_model(attention)
    source, visible = make_source(6, 4, width=6)
    target = make_target(2, 5)
    seen: dict[Site, tuple[Tensor, Tensor]] = {}

    def observer(site: Site, weights: Tensor, visible: Tensor) -> None:
        assert site not in seen
        seen[site] = (weights, visible)

    with torch.no_grad():
        expected = model(source, visible, target)
        with observe_attention(model, observer):
            watched = model(source, visible, target)
        assert torch.equal(model(source, visible, target), expected)
    assert torch.equal(watched, expected)
    queries_keys = {"encoder_self": (6, 6), "decoder_self": (5, 5), "cross": (5, 6)}
    assert set(seen) == {Site(kind, layer) for kind in queries_keys for layer in (0, 1)}  # type: ignore[arg-type]
    for site, (weights, mask) in seen.items():
        assert weights.shape == (2, HEADS, *queries_keys[site.type])
        hidden = ~mask.expand_as(weights)
        assert (weights[hidden] == 0.0).all()
        assert (weights[~hidden] != 0.0).any()
    assert not seen[Site("decoder_self", 0)][1].expand(2, HEADS, 5, 5)[0, 0, 0, 1]
    assert not seen[Site("cross", 1)][1].expand(2, HEADS, 5, 6)[1, 0, 0, 4]


def test_hypotheses_are_the_queries_that_are_observed_while_decoding() -> None:
    model = make_model(everywhere(CASES["softmax"])).eval()
    source, visible = make_source(6, 4, width=6)
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def observer(site: Site, weights: Tensor, visible: Tensor) -> None:
        seen[site.type] = (weights, visible.expand_as(weights))

    with torch.inference_mode():
        cache = model.start(model.encode(source, visible), visible, beam=3, max_length=5)
        model.step(torch.ones(2, 1, dtype=torch.int64), cache)
        cache.reorder(torch.zeros(2, 3, dtype=torch.int64))
        with observe_attention(model, observer):
            model.step(torch.ones(2, 3, dtype=torch.int64), cache)
    assert seen["cross"][0].shape == (2, HEADS, 3, 6)
    weights, shown = seen["decoder_self"]
    assert weights.shape == (2, HEADS, 3, 16)  # slots
    assert (shown.sum(-1) == 2).all()
    assert torch.equal(shown, weights > 0.0)


def test_observers_nest_and_leave_after_an_error() -> None:
    model = make_model(everywhere(CASES["softmax"]))
    source, visible = make_source(6, 4, width=6)
    calls: list[str] = []

    def watch_and_fail() -> None:
        with observe_attention(model, lambda *_: calls.append("inner")):
            model.encode(source, visible)
            raise RuntimeError("enough")

    with observe_attention(model, lambda *_: calls.append("outer")):
        with pytest.raises(RuntimeError, match="enough"):
            watch_and_fail()
        model.encode(source, visible)
    model.encode(source, visible)
    assert calls == ["inner", "inner", "outer", "outer"]


def test_learned_parameters_are_found_by_site() -> None:
    model = make_model(MODELS["mixed"])
    found = learned_parameters(model)
    assert set(found) == {Site("decoder_self", 0)}
    alpha = found[Site("decoder_self", 0)]["alpha"]
    assert alpha.shape == (HEADS,)
    assert not alpha.requires_grad
    assert ((alpha > 1.0) & (alpha <= 2.0)).all()
    assert learned_parameters(make_model(MODELS["softmax"])) == {}


def test_exceptions_by_layer_reach_their_layer() -> None:
    names = {
        site: type(a.core.mapping).__name__
        for site, a in make_model(MODELS["mixed"]).attentions().items()
    }
    assert names == {
        Site("encoder_self", 0): "Softmax",
        Site("encoder_self", 1): "Pointwise",
        Site("decoder_self", 0): "Entmax",
        Site("decoder_self", 1): "TopK",
        Site("cross", 0): "Entmax",
        Site("cross", 1): "Pointwise",
    }


def test_dropout_is_for_training_only() -> None:
    model = make_model(MODELS["mixed"])
    source, visible = make_source(6, 4, width=6)
    target = make_target(2, 5)
    assert torch.equal(model(source, visible, target), model(source, visible, target))
    model.train()
    assert not torch.equal(model(source, visible, target), model(source, visible, target))


def test_positions_are_computed_and_reach_any_length() -> None:
    model = make_model(MODELS["softmax"])
    assert not any("table" in name for name in model.state_dict())
    positions = model.source_input.positions(1500)
    assert positions.shape == (1500, 32)
    torch.testing.assert_close(
        positions[1499, 0], torch.tensor(1499.0, dtype=torch.float64).sin().float()
    )
    torch.testing.assert_close(positions[:, 16], torch.arange(1500).double().cos().float())
    source = torch.full((1, 600), 4)
    assert model.encode(source, torch.ones(1, 600, dtype=torch.bool)).isfinite().all()
