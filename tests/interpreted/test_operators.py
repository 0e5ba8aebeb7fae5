"""Every operator passes torch's own checks: schema, fake tensors, derivative, tracing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nmt.ops.triton import operators, products


def variable(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


SEED = torch.tensor([7])
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "self-attention": (
        operators.attention,
        (
            [variable(2, 5, 96)],
            None,
            variable(2),
            SEED,
            *(2, 4, 0.25, 0.0, 0.2, True),
        ),
    ),
    "cross-attention": (
        operators.attention,
        (
            [variable(2, 5, 32), variable(2, 7, 64)],
            torch.rand(2, 1, 1, 7) > 0.3,
            torch.tensor([0.3, 0.6], requires_grad=True),
            None,
            *(2, 3, 0.25, 0.0, 0.0, False),
        ),
    ),
    "attention while decoding": (
        operators.cached_attention,
        (
            *(torch.randn(2, 2, size, 16) for size in (3, 7, 7)),
            torch.rand(2, 1, 1, 7) > 0.3,
            *(None, 4, 0.25, 0.1),
        ),
    ),
    "attention to a growing past": (
        operators.growing_attention,
        (
            torch.randn(2, 3, 96),
            torch.randn(2, 2, 2, 7, 16),
            torch.rand(2, 1, 3, 7) > 0.3,
            *(None, 2, 2, 4, 0.25, 0.1),
        ),
    ),
    "gated norm": (operators.gated_norm, (variable(6, 20), variable(20), variable(20), 1e-8)),
    "norm": (operators.gated_norm, (variable(6, 20), variable(20), None, 1e-8)),
    "add norm": (
        operators.add_norm,
        (variable(6, 20), variable(6, 20), *(variable(20) for _ in range(3)), SEED, 0.2, 1e-5),
    ),
    "add norm without dropout": (
        operators.add_norm,
        (variable(6, 20), variable(6, 20), variable(20), variable(20), None, None, 0.0, 1e-5),
    ),
    "product and norms": (
        products.product_norm,
        (
            *(torch.randn(size) for size in ((6, 20), (24, 20), (24,), (6, 24), (24,), (24,))),
            *(torch.randn(20), torch.randn(20), 1e-5),
        ),
    ),
    "ReLU": (operators.relu_backward, (torch.randn(6, 20), torch.randn(6, 20))),
    "sums of parts": (operators.sum_parts, ([torch.randn(512, 5), torch.randn(512, 5)],)),
    "entmax": (
        operators.entmax_rows,
        (variable(2, 3, 4, 9), torch.tensor([0.2, 0.5, 1.0], requires_grad=True), 3),
    ),
    "loss": (
        operators.cross_entropy_,
        (torch.randn(5, 40), torch.randint(0, 40, (5,)), torch.empty(2, 5), 0.1, 1.0, True),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_operator(name: str) -> None:
    function, arguments = CALLS[name]
    assert set(torch.library.opcheck(function, arguments).values()) == {"SUCCESS"}
