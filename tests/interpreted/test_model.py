"""A whole model by the kernels in Triton learns like the reference."""

import pytest
import torch
from support.transformers import MODELS_IN_C, OUR_MODELS, SOURCE_SIZE, TARGET_SIZE

from nmt.config.config import AttentionTypesConfig, ModelConfig
from nmt.model.transformer import Transformer
from nmt.ops.backend import force_backend
from nmt.training.loss import TranslationLoss

SMALLEST = min(SOURCE_SIZE, TARGET_SIZE)
FUSED = [name for name in MODELS_IN_C if name != "mixed"]
# One kind per family in the ordinary suite; the interpreter takes seconds for each.
QUICK = ["entmax", "rela-g"]


def losses(attention: AttentionTypesConfig, backend: str, *, updates: int) -> list[float]:
    torch.manual_seed(0)
    config = ModelConfig(
        dim=32,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        feed_forward_dim=64,
        dropout=0.0,
        attention=attention,
    )
    model = Transformer(
        config, source_vocabulary_size=SOURCE_SIZE, target_vocabulary_size=TARGET_SIZE
    )
    loss = TranslationLoss(model.eval(), smoothing=0.1)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    found = []
    with force_backend(backend):
        for _ in range(updates):
            source = torch.randint(4, SMALLEST, (2, 5), generator=generator)
            visible = torch.arange(5)[None] < torch.tensor([[5], [3]])
            value, _ = loss(source, visible, source.flip(1), torch.arange(10), source.flatten())
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            found.append(float(value))
    return found


@pytest.mark.parametrize(
    "kind",
    [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in FUSED],
)
def test_learning_curve_of_the_reference(kind: str) -> None:
    """In the interpreter the kernels come first; what they refuse goes the ordinary way."""
    found = losses(OUR_MODELS[kind], "auto", updates=3)
    expected = losses(OUR_MODELS[kind], "reference", updates=3)
    torch.testing.assert_close(found, expected, atol=0, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(3600)  # the interpreter takes minutes for each
@pytest.mark.parametrize("kind", FUSED)
def test_learning_curve_of_200_updates(kind: str) -> None:
    """Rounding errors grow while a model learns, so that the end is compared more loosely."""
    found = losses(OUR_MODELS[kind], "auto", updates=200)
    expected = losses(OUR_MODELS[kind], "reference", updates=200)
    torch.testing.assert_close(found[:50], expected[:50], atol=0, rtol=1e-3)
    torch.testing.assert_close(found, expected, atol=0, rtol=2e-2)
    assert found[-1] < 0.8 * found[0]
