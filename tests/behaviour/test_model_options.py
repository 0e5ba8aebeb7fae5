"""Options of the model that models of other toolkits need: the engine, the loss and positions."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.decoding_walks import engine_walk, torch_walk
from support.kernels import every_build
from support.transformers import OUR_MODELS, SOURCE_SIZE, TARGET_SIZE, make_model, make_target
from torch.nn import functional

from nmt.config.config import ModelConfig
from nmt.model.embeddings import sinusoids
from nmt.model.transformer import Transformer
from nmt.ops.backend import force_backend
from nmt.training.loss import TranslationLoss

OPTIONS: dict[str, dict[str, Any]] = {
    "gelu": {"feed_forward_activation": "gelu"},
    "swish": {"feed_forward_activation": "swish"},
    "bias": {"output_bias": True},
    "epsilon": {"norm_epsilon": 0.1},
    "unscaled": {"scale_embeddings": False},
    "exclusive": {"position_wavelengths": "exclusive"},
    "pre, all": {"norm": "pre", "feed_forward_activation": "swish", "output_bias": True},
}


def model_with(**options: Any) -> Transformer:
    """A model whose biases are not 0, and whose output distributions are far from uniform."""
    config = replace(make_model(OUR_MODELS["softmax"]).config, **options)
    torch.manual_seed(2)
    model = Transformer(
        config, source_vocabulary_size=SOURCE_SIZE, target_vocabulary_size=TARGET_SIZE
    ).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.3 * torch.randn(weight.shape))
    return model


@every_build
@pytest.mark.parametrize("name", OPTIONS)
def test_the_engine_has_every_option(build: str, name: str) -> None:
    model = model_with(**OPTIONS[name])
    expected = torch_walk(model)
    for found, wanted in zip(engine_walk(build, model), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    for found, wanted in zip(engine_walk(build, model, int8=True), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=0.3, rtol=0.0)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_changes_the_output(name: str) -> None:
    plain, other = model_with(), model_with(**OPTIONS[name])
    other.load_state_dict({**other.state_dict(), **plain.state_dict()}, strict=False)
    found, before = torch_walk(other)[3], torch_walk(plain)[3]
    assert (found - before).abs().max() > 1e-3


@pytest.mark.parametrize("backend", ["reference", "torch", "native"])
def test_loss_with_an_output_bias(backend: str) -> None:
    """The losses and the gradients are those of logits with the bias."""
    model = model_with(output_bias=True)
    target = make_target(3, 8)
    source, visible = target % SOURCE_SIZE, torch.ones(3, 8, dtype=torch.bool)
    logits = model.logits(model(source, visible, target)).flatten(0, 1)
    gold = target.flatten().roll(1)
    expected = functional.cross_entropy(logits, gold, reduction="sum", label_smoothing=0.1)
    expected.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad()
    with force_backend(backend):
        loss, likelihood = TranslationLoss(model, smoothing=0.1)(
            source, visible, target, torch.arange(24), gold
        )
        loss.backward()
    wanted = functional.cross_entropy(logits, gold, reduction="sum")
    torch.testing.assert_close(loss.float(), expected.detach())
    torch.testing.assert_close(likelihood.float(), wanted.detach())
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.grad, gradients[name], atol=1e-4, rtol=1e-4)


def test_exclusive_wavelengths_are_those_of_the_paper() -> None:
    """Position p has the angles p / 10000^(2i / D) of Vaswani et al. 2017, section 3.5."""
    config = ModelConfig(dim=10, heads=2, position_wavelengths="exclusive")
    angles = np.arange(40)[:, None] / np.power(10000.0, np.arange(0, 10, 2) / 10)
    expected = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    np.testing.assert_allclose(sinusoids(torch.arange(40), config).numpy(), expected, atol=1e-6)
