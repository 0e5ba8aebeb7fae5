"""Packed and 8-bit linear layers against the ordinary one."""

import pytest
import torch
from torch import Tensor, nn

from nmt.decoding.packing import Int8Linear, OneDnnLinear, can_pack

LAYERS = [
    Int8Linear,
    pytest.param(OneDnnLinear, marks=pytest.mark.skipif(not can_pack(), reason="x")),
]


def linear(inputs: int = 64, outputs: int = 96) -> nn.Linear:
    torch.manual_seed(1)
    return nn.Linear(inputs, outputs)


@pytest.mark.skipif(not can_pack(), reason="this torch was built without oneDNN")
def test_packed_linear_is_the_linear_layer() -> None:
    layer = linear()
    x = torch.randn(3, 5, 64)
    packed = OneDnnLinear(layer.weight, layer.bias)
    torch.testing.assert_close(packed(x), layer(x), atol=1e-5, rtol=1e-5)
    without = OneDnnLinear(layer.weight, None)
    torch.testing.assert_close(without(x), layer(x) - layer.bias, atol=1e-5, rtol=1e-5)


def test_int8_linear_is_near_the_linear_layer() -> None:
    layer = linear()
    x = torch.randn(3, 5, 64)
    near = Int8Linear(layer.weight, layer.bias)(x)
    exact = layer(x)
    assert (near - exact).abs().max() < 0.02 * exact.abs().max()
    assert (near - exact).abs().mean() < 0.005 * exact.abs().max()


def test_int8_linear_of_numbers_it_can_hold_is_exact() -> None:
    weight = torch.tensor([[127.0, -3.0], [0.0, 0.0], [-127.0, 64.0]])
    x = torch.tensor([[127.0, 5.0], [0.0, 0.0]])
    torch.testing.assert_close(Int8Linear(weight, None)(x), x @ weight.T)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_row_has_the_same_bits_whatever_the_rows_around_it(kind: type[nn.Module]) -> None:
    layer = kind(linear(2048, 500).weight, None)
    x = torch.randn(256, 2048)
    whole: Tensor = layer(x)
    for rows in (1, 2, 3, 4, 5, 7, 8, 11, 12, 20, 36, 64, 100):
        assert torch.equal(layer(x[:rows]), whole[:rows])
        assert torch.equal(layer(x[-rows:]), whole[-rows:])


def test_nan_does_not_become_a_number() -> None:
    x = torch.randn(2, 64)
    x[0, 3] = float("nan")
    output = Int8Linear(linear().weight, None)(x)
    assert output[0].isnan().all()
    assert output[1].isfinite().all()
