"""A whole model by the kernels in Triton learns like the reference, for every attention kind."""

import pytest
import torch
from support.transformers import OUR_MODELS, SOURCE_SIZE, TARGET_SIZE, make_model

from nmt.ops.backend import force_backend
from nmt.training.loss import TranslationLoss


SMALLEST = min(SOURCE_SIZE, TARGET_SIZE)


def losses(kind: str, backend: str, *, updates: int) -> list[float]:
    torch.manual_seed(0)
    model = make_model(OUR_MODELS[kind])
    loss = TranslationLoss(model, smoothing=0.1)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    found = []
    with force_backend(backend):
        for _ in range(updates):
            source = torch.randint(4, SMALLEST, (3, 6), generator=generator)
            visible = torch.arange(6)[None] < torch.tensor([[6], [5], [3]])
            positions = torch.arange(18)
            value, _ = loss(source, visible, source.flip(1), positions, source.flatten())
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            found.append(float(value))
    return found


FUSED = [name for name in OUR_MODELS if "topk" not in name and name != "mixed"]


@pytest.mark.parametrize("kind", FUSED)
def test_learning_curve_of_the_reference(kind: str) -> None:
    torch.testing.assert_close(
        losses(kind, "triton", updates=3), losses(kind, "reference", updates=3), atol=0, rtol=1e-4
    )
