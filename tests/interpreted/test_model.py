"""A whole model by the kernels in Triton learns like the reference."""

import pytest
import torch
from support.transformers import MODELS_IN_C, OUR_MODELS

from nmt.config.config import AttentionTypesConfig, ModelConfig
from nmt.model.transformer import Transformer
from nmt.ops.backend import force_backend
from nmt.ops.triton import rows
from nmt.training.loss import TranslationLoss

WORDS = 10
FUSED = [name for name in MODELS_IN_C if name != "mixed"]
KINDS = ["softmax", "sparsemax", "entmax15", "entmax learned", "rela-i", "rela-g", "topk 2"]
# One kind per family in the ordinary suite; the interpreter takes seconds for each.
QUICK = ["entmax", "rela-g"]


@pytest.fixture(autouse=True)
def few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over rows in 8 parts instead of 512: the interpreter runs the program of each part, and
    a batch of these models has 8 rows. test_rows.py has the kernels with all parts."""
    monkeypatch.setattr(rows, "PARTS", 8)


def losses(
    attention: AttentionTypesConfig, backend: str, *, updates: int, dim: int = 32, heads: int = 2
) -> list[float]:
    """The losses of a tiny model that learns two sentences by heart.

    Where a query of ReLA attends to almost nothing, its norm makes rounding errors large. With
    this seed no query does: the reference in float32 stays within 1e-4 of that in float64.
    """
    torch.manual_seed(2)
    config = ModelConfig(
        dim=dim,
        heads=heads,
        encoder_layers=1,
        decoder_layers=1,
        feed_forward_dim=2 * dim,
        dropout=0.0,
        attention=attention,
    )
    model = Transformer(config, source_vocabulary_size=WORDS, target_vocabulary_size=WORDS)
    loss = TranslationLoss(model.eval(), smoothing=0.1)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3, eps=1e-4)
    generator = torch.Generator().manual_seed(1)
    visible = torch.arange(4)[None] < torch.tensor([[4], [2]])
    positions = visible.flatten().nonzero()[:, 0]
    source = torch.randint(4, WORDS, (2, 4), generator=generator)
    gold = source.flatten()[positions]
    found = []
    with force_backend(backend):
        for _ in range(updates):
            value, _ = loss(source, visible, source.flip(1), positions, gold)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            found.append(float(value.detach()))
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
@pytest.mark.timeout(1800)  # the interpreter takes a minute for each, more on a busy machine
@pytest.mark.parametrize("kind", KINDS)
def test_learning_curve_of_200_updates(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Rounding errors grow while a model learns, so that the end is compared more loosely."""
    found, expected = (
        losses(OUR_MODELS[kind], backend, updates=200, dim=16, heads=1)
        for backend in ("auto", "reference")
    )
    pairs = list(zip(found, expected, strict=True))
    worst = [max(abs(a - b) / b for a, b in part) for part in (pairs[:50], pairs)]
    with capsys.disabled():
        print(f"{kind}: loss {found[0]:.2f} to {found[-1]:.2f}; largest relative difference", worst)
    assert worst[0] < 1e-4
    assert worst[1] < 1e-2
    assert sum(found[-20:]) < 0.6 * sum(found[:20])
