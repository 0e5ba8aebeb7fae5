"""Layers in half precision that need a kernel in Triton for their backward pass."""

import torch
from torch import Tensor
from torch.nn import functional

from nmt.ops.half_linear import HalfPrecisionLayer, half_relu_linear
from nmt.ops.shared_vectors import vectors_of_one_pass


def test_relu_in_the_product() -> None:
    torch.manual_seed(1)
    layer = HalfPrecisionLayer(24, 40)
    x, grad = torch.randn(3, 5, 24, requires_grad=True), torch.randn(3, 5, 40).half()
    layer.half_weight, layer.half_bias = layer.weight.detach().half(), layer.bias.detach().half()
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, layer.weight, layer.bias)]
    expected = functional.linear(*exact).relu()
    expected.backward(grad.double())
    results: list[list[Tensor]] = []
    for together in (False, True):
        layer.zero_grad()
        with vectors_of_one_pass([layer.bias] if together else []):
            output = half_relu_linear(x, layer)
        gradients = torch.autograd.grad(output, [x, layer.weight, layer.bias], grad)
        results.append([output, *gradients])
        wanted = [expected, *(tensor.grad for tensor in exact)]
        for found, right in zip(results[-1], wanted, strict=True):
            assert right is not None
            assert (found - right).abs().max() < 4e-3 * right.abs().max()
    assert all(found.dtype == torch.float32 for found in results[-1][1:])
