"""Linear layers, and two of them with an activation between.

The kernels in C compute the gradients of inputs and the first layer of the feed-forward sublayer.
The other products and the gradients of weights are torch's, which is as fast or faster there.
N rows, D width, F width inside.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from nmt.ops import cuda
from nmt.ops.backend import Call, Implementation, Operation
from nmt.ops.dropout import draw_mask, dropout, keep_scale
from nmt.ops.half_linear import (
    HalfPrecisionLayer,
    as_rows,
    half_feed_forward_native,
    half_relu_linear,
)
from nmt.ops.half_linear import native_refusal as half_refusal
from nmt.ops.kernels import native_refusal
from nmt.ops.native.training import multiply


class NativeLinear(torch.autograd.Function):
    """x weight^T + bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_output = as_rows(grad_outputs[0])
        grad_input = None
        if ctx.needs_input_grad[0]:
            grad_input = multiply(grad_output, weight).view(x.shape)
        if not any(ctx.needs_input_grad[1:]):  # frozen
            return grad_input, None, None
        return grad_input, grad_output.t() @ as_rows(x), grad_output.sum(0)


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[..., F] for x [..., D], weight [F, D] and bias [F]."""
    return functional.linear(x, weight, bias)


def linear_native(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[..., F] for x [..., D], weight [F, D] and bias [F], by the kernels in C."""
    result: Tensor = NativeLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


def refuses_weights(x: Tensor, *weights: Tensor) -> str | None:
    """Why the kernels cannot multiply with these weights here, or None."""
    if not all(weight.is_contiguous() for weight in weights):
        return "expected contiguous weights"
    return native_refusal(x, *weights)


def linear_example(device: torch.device) -> Call:
    """A layer of 8 inputs and outputs in training."""
    x = torch.ones(2, 8, device=device, requires_grad=True)
    return (x, torch.ones(8, 8, device=device), torch.ones(8, device=device)), {}


linear = Operation(
    "linear layer",
    linear_reference,
    [
        Implementation(
            "native",
            "C kernels",
            linear_native,
            accepts=lambda x, weight, _bias: refuses_weights(x, weight),
            prefers=lambda _x, _weight, _bias: (
                None if torch.is_grad_enabled() else "without gradients it is torch's product"
            ),
        )
    ],
    example=linear_example,
)


class NativeFeedForward(torch.autograd.Function):
    """Linear, ReLU, dropout, linear; dropped hidden units are 0 like those that ReLU cuts."""

    @staticmethod
    def forward(ctx: Any, rate: float, x: Tensor, *parameters: Tensor) -> Tensor:
        weight, bias, output_weight, output_bias = parameters
        rows = as_rows(x)
        mask = draw_mask(len(rows) * len(weight), rate)
        hidden = multiply(rows, weight, transposed=True, bias=bias, relu=True, mask=mask)
        ctx.save_for_backward(rows, hidden, weight, output_weight)
        ctx.scale = keep_scale(rate)
        return functional.linear(hidden.view(*x.shape[:-1], -1), output_weight, output_bias)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        rows, hidden, weight, output_weight = ctx.saved_tensors
        grad_output = as_rows(grad_outputs[0])
        grad_hidden = multiply(grad_output, output_weight, scale=ctx.scale, where=hidden)
        grad_input = None
        if ctx.needs_input_grad[1]:
            grad_input = multiply(grad_hidden, weight).view(grad_outputs[0].shape)
        if not any(ctx.needs_input_grad[2:]):  # frozen
            return None, grad_input, None, None, None, None
        return (
            None,
            grad_input,
            grad_hidden.t() @ rows,
            grad_hidden.sum(0),
            grad_output.t() @ hidden,
            grad_output.sum(0),
        )


Layer = Callable[[Tensor], Tensor]
Activation = Literal["relu", "gelu", "swish"]
ACTIVATIONS: dict[Activation, Layer] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "swish": functional.silu,
}


def feed_forward_native(
    x: Tensor, first: Layer, last: Layer, *, rate: float, **_options: object
) -> Tensor:
    """[..., D] for x [..., D] through the feed-forward sublayer with ReLU, by the kernels in C."""
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    if half_weight(first) is not None:
        return half_feed_forward_native(x, first, last, rate)
    result: Tensor = NativeFeedForward.apply(  # type: ignore[no-untyped-call]
        rate, x, first.weight, first.bias, last.weight, last.bias
    )
    return result


def half_weight(layer: Layer) -> Tensor | None:
    """The weight that a layer multiplies with, if that is in half precision."""
    return layer.half_weight if isinstance(layer, HalfPrecisionLayer) else None


def feed_forward_reference(
    x: Tensor,
    first: Layer,
    last: Layer,
    *,
    activation: Activation,
    rate: float,
    training: bool,  # noqa: ARG001
) -> Tensor:
    """[..., D] for x [..., D] through a layer to F, an activation, dropout, and a layer back."""
    hidden = ACTIVATIONS[activation](first(x))
    return last(hidden if rate == 0.0 else dropout(hidden, rate))


def feed_forward_cuda(x: Tensor, first: Layer, last: Layer, **_options: object) -> Tensor:
    """[..., D] for x [..., D] through the feed-forward sublayer with ReLU, in half precision."""
    assert isinstance(first, HalfPrecisionLayer)
    return last(half_relu_linear(x, first))


def refuses_feed_forward_cuda(
    x: Tensor,
    first: Layer,
    _last: Layer,
    *,
    activation: Activation,
    rate: float,
    **_options: object,
) -> str | None:
    """Why ReLU cannot be a part of the product and of the bias's gradient, or None."""
    if activation != "relu" or rate > 0.0:
        return f"expected relu without dropout, got {activation} with a rate of {rate}"
    if half_weight(first) is None or not x.is_cuda:
        return "expected products in half precision on a GPU"
    return cuda.triton_refusal(x)


def feed_forward_without_gradients(
    x: Tensor, first: Layer, last: Layer, **_options: object
) -> Tensor:
    """[..., D] for x [..., D] through the feed-forward sublayer; the first product cuts below 0."""
    assert isinstance(first, nn.Linear)
    hidden = torch._addmm_activation(first.bias, as_rows(x), first.weight.t())
    return last(hidden.view(*x.shape[:-1], -1))


def refuses_without_gradients(
    x: Tensor,
    first: Layer,
    _last: Layer,
    *,
    activation: Activation,
    rate: float,
    **_options: object,
) -> str | None:
    """Why ReLU cannot be a part of the product, or None."""
    if activation != "relu" or rate > 0.0:
        return f"expected relu without dropout, got {activation} with a rate of {rate}"
    if torch.is_grad_enabled() or not x.is_cuda or torch.compiler.is_compiling():
        return "expected a GPU without gradients"
    if not isinstance(first, nn.Linear) or half_weight(first) is not None:
        return "expected a layer in one type"
    return None


def refuses_feed_forward(
    x: Tensor, first: Layer, last: Layer, *, activation: Activation, **_options: object
) -> str | None:
    """Why the kernels cannot be taken, or None."""
    if activation != "relu":
        return f"the kernels train with relu, got {activation}"
    if not isinstance(first, nn.Linear) or not isinstance(last, nn.Linear):
        return "the layers were packed for decoding"
    copy = half_weight(first)
    if copy is not None:
        return half_refusal(x, copy)
    return refuses_weights(x, first.weight, last.weight)


def slower_feed_forward(
    _x: Tensor, first: Layer, _last: Layer, *, training: bool, **_options: object
) -> str | None:
    """Why another implementation is better than the kernels, or None."""
    if training or half_weight(first) is not None:
        return None
    return "outside training torch's products are as fast"


def feed_forward_example(device: torch.device) -> Call:
    """A sublayer of width 8 in training."""
    layer = nn.Linear(8, 8, device=device)
    options = {"activation": "relu", "rate": 0.1, "training": True}
    return (torch.ones(1, 8, device=device), layer, layer), options


feed_forward = Operation(
    "feed-forward sublayer",
    feed_forward_reference,
    [
        Implementation(
            "triton",
            "ReLU in the product, its derivative in Triton",
            feed_forward_cuda,
            accepts=refuses_feed_forward_cuda,
        ),
        Implementation(
            "torch",
            "ReLU in the product",
            feed_forward_without_gradients,
            accepts=refuses_without_gradients,
        ),
        Implementation(
            "native",
            "C kernels",
            feed_forward_native,
            accepts=refuses_feed_forward,
            prefers=slower_feed_forward,
        ),
    ],
    example=feed_forward_example,
)
