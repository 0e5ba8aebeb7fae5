"""Linear layers whose products are in half precision, for training.

A layer keeps its weight in float32, where the optimizer changes it, and is given a copy in half
precision to multiply with. Sums are in float32, and so are the gradients of weight and bias. On a
CPU the output is in float32, as the kernels for all else expect it; on a GPU it is in half
precision, which takes half the memory traffic. N rows, D width, F width inside.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

from nmt.ops import cuda
from nmt.ops.backend import Call, Implementation, Operation
from nmt.ops.dropout import draw_mask, keep_scale
from nmt.ops.half_product import product
from nmt.ops.kernels import missing_kernels
from nmt.ops.native import bfloat16
from nmt.ops.shared_vectors import shared

if TYPE_CHECKING:
    from nmt.ops.head_norm import HeadNormArguments


class LastLayer(NamedTuple):
    """The layer that ends a sublayer, and the norm of the heads before it, if there is one."""

    layer: nn.Linear
    head_norm: "HeadNormArguments | None"


class SublayerOutput(NamedTuple):
    """The output [..., D] of a sublayer, and what its residual connection has yet to do.

    That is a bias [D] to add, or the last layer, of which x is the input then.
    """

    x: Tensor
    bias: Tensor | None
    last: LastLayer | None = None


class HalfPrecisionLayer(nn.Linear):
    """A linear layer that computes in half precision while it has copies of weight and bias."""

    half_weight: Tensor | None = None
    half_bias: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.half_weight is None:
            return self.full_precision(x)
        assert self.half_bias is not None
        return half_linear(x, self.weight, self.bias, self.half_weight, self.half_bias)

    def multiply(self, x: Tensor) -> Tensor:
        """The layer in half precision without its bias."""
        assert self.half_weight is not None
        return half_linear(x, self.weight, None, self.half_weight, None)

    def full_precision(self, x: Tensor) -> Tensor:
        """The layer in the type of its weight."""
        return super().forward(x)


def leaves_bias(layer: nn.Module, x: Tensor) -> bool:
    """Whether the last layer of a sublayer leaves its bias to the residual connection.

    That has the gradient of the bias at hand. It is so in half precision on a GPU.
    """
    return isinstance(layer, HalfPrecisionLayer) and layer.half_weight is not None and x.is_cuda


def leaves_layer(layer: nn.Module, x: Tensor) -> TypeGuard[nn.Linear]:
    """Whether a sublayer leaves its last layer to the residual connection.

    That can norm the output in the same launch. It is so without gradients on a GPU, in one type.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not isinstance(layer, nn.Linear):
        return False
    half = isinstance(layer, HalfPrecisionLayer) and layer.half_weight is not None
    return not half and cuda.triton_refusal(x) is None


def end_sublayer(layer: nn.Module, x: Tensor) -> SublayerOutput:
    """The output of the last layer of a sublayer, which may be packed for decoding."""
    if leaves_bias(layer, x):
        assert isinstance(layer, HalfPrecisionLayer)
        return SublayerOutput(layer.multiply(x), layer.bias)
    return SublayerOutput(layer(x), None)


def as_rows(x: Tensor) -> Tensor:
    """x [..., D] as contiguous [N, D]."""
    return x.reshape(-1, x.shape[-1]).contiguous()


class HalfLinear(torch.autograd.Function):
    """x weight^T + bias by torch."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        half_weight: Tensor,
        half_bias: Tensor | None,
    ) -> Tensor:
        rows = as_rows(x).to(half_weight.dtype)
        ctx.save_for_backward(rows, half_weight)
        ctx.input_type, ctx.weight_type = x.dtype, weight.dtype
        if x.is_cuda and half_bias is not None:
            output = torch.addmm(half_bias, rows, half_weight.t())
        else:
            dtype = half_weight.dtype if x.is_cuda else weight.dtype
            output = product(rows, half_weight.t(), dtype)
            output = output if bias is None else output + bias
        return output.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        rows, half_weight = ctx.saved_tensors
        exact = as_rows(grad_outputs[0])
        grad_output = exact.to(half_weight.dtype)
        grad_input = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_input = product(grad_output, half_weight, ctx.input_type)
            grad_input = grad_input.view(*grad_outputs[0].shape[:-1], -1)
        if ctx.needs_input_grad[1]:  # else it is frozen
            grad_weight = product(grad_output.t(), rows, ctx.weight_type)
            if ctx.needs_input_grad[2]:
                grad_bias = grad_output.sum(0, dtype=ctx.weight_type)
        return grad_input, grad_weight, grad_bias, None, None


class JointHalfLinear(torch.autograd.Function):
    """x weight^T + bias of several layers, whose copies in half precision are one matrix."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, half_weight: Tensor, half_bias: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        rows = as_rows(x).to(half_weight.dtype)
        ctx.save_for_backward(rows, half_weight)
        ctx.input_type, ctx.weight_type = x.dtype, parameters[0].dtype
        ctx.widths = [len(bias) for bias in parameters[1::2]]
        output = torch.addmm(half_bias, rows, half_weight.t()).view(*x.shape[:-1], -1)
        return tuple(output.split_with_sizes(ctx.widths, dim=-1))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        rows, half_weight = ctx.saved_tensors
        grad_output = torch.cat([as_rows(grad) for grad in grad_outputs], dim=1)
        grad_input = None
        if ctx.needs_input_grad[0]:
            grad_input = product(grad_output, half_weight, ctx.input_type)
            grad_input = grad_input.view(*grad_outputs[0].shape[:-1], -1)
        if not any(ctx.needs_input_grad[3:]):  # frozen
            return grad_input, None, None, *([None] * 2 * len(ctx.widths))
        grad_weights = product(grad_output.t(), rows, ctx.weight_type).split_with_sizes(ctx.widths)
        grad_biases = grad_output.sum(0, dtype=ctx.weight_type).split_with_sizes(ctx.widths)
        pairs = zip(grad_weights, grad_biases, strict=True)
        return grad_input, None, None, *(one for pair in pairs for one in pair)


class JointCopies(NamedTuple):
    """Weights [F, D] and biases [F] of several layers in half precision, one after the other."""

    weight: Tensor
    bias: Tensor

    def multiply(self, x: Tensor, layers: Sequence[HalfPrecisionLayer]) -> tuple[Tensor, ...]:
        """The outputs of the layers for x [..., D], by one product."""
        parameters = [one for layer in layers for one in (layer.weight, layer.bias)]
        outputs: tuple[Tensor, ...] = JointHalfLinear.apply(  # type: ignore[no-untyped-call]
            x, *self, *parameters
        )
        return outputs


class HalfReluLinear(torch.autograd.Function):
    """relu(x weight^T + bias) on a GPU: the product itself adds the bias and cuts below 0."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, half_weight: Tensor, half_bias: Tensor
    ) -> Tensor:
        rows = as_rows(x).to(half_weight.dtype)
        output = torch._addmm_activation(half_bias, rows, half_weight.t())
        ctx.save_for_backward(rows, half_weight, output, bias)
        ctx.input_type, ctx.weight_type = x.dtype, weight.dtype
        return output.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        rows, half_weight, output, bias = ctx.saved_tensors
        grad, grad_bias = cuda.relu_backward(as_rows(grad_outputs[0]), output, bias)
        grad_input = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_input = product(grad, half_weight, ctx.input_type)
            grad_input = grad_input.view(*grad_outputs[0].shape[:-1], -1)
        if not ctx.needs_input_grad[1]:  # frozen
            return grad_input, None, None, None, None
        grad_weight = product(grad.t(), rows, ctx.weight_type)
        return grad_input, grad_weight, grad_bias, None, None


def half_relu_linear(x: Tensor, layer: HalfPrecisionLayer) -> Tensor:
    """relu of a layer's output [..., F] for x [..., D], in half precision on a GPU."""
    result: Tensor = HalfReluLinear.apply(  # type: ignore[no-untyped-call]
        x, layer.weight, *shared(layer.bias), layer.half_weight, layer.half_bias
    )
    return result


def half_linear_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    half_weight: Tensor,
    half_bias: Tensor | None,
) -> Tensor:
    """[..., F] for x [..., D], weight [F, D], bias [F], and their copies in half precision."""
    result: Tensor = HalfLinear.apply(x, weight, bias, half_weight, half_bias)  # type: ignore[no-untyped-call]
    return result


class NativeHalfLinear(torch.autograd.Function):
    """x weight^T + bias by the kernels in C."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, _weight: Tensor, bias: Tensor, half_weight: Tensor) -> Tensor:
        rows = bfloat16.round_rows(as_rows(x))
        ctx.save_for_backward(rows, half_weight)
        output = bfloat16.multiply(rows, half_weight, transposed=True, bias=bias)
        return output.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        rows, half_weight = ctx.saved_tensors
        grad_output = bfloat16.round_rows(as_rows(grad_outputs[0]))
        grad_input = None
        if ctx.needs_input_grad[0]:
            grad_input = bfloat16.multiply(grad_output, half_weight)
            grad_input = grad_input.view(*grad_outputs[0].shape[:-1], -1)
        if not ctx.needs_input_grad[1]:  # frozen
            return grad_input, None, None, None
        return grad_input, *bfloat16.weight_gradient(grad_output, rows), None


def half_linear_native(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    half_weight: Tensor,
    _half_bias: Tensor | None,
) -> Tensor:
    """[..., F] for x [..., D], weight [F, D], bias [F], and their copies in half precision."""
    result: Tensor = NativeHalfLinear.apply(x, weight, bias, half_weight)  # type: ignore[no-untyped-call]
    return result


def native_refusal(x: Tensor, half_weight: Tensor) -> str | None:
    """Why the kernels cannot compute with these tensors here, or None."""
    if torch.compiler.is_compiling():
        return "torch.compile cannot see into C"
    if x.dtype is not torch.float32 or not x.is_cpu:
        return f"expected float32 on a CPU, got {x.dtype} on {x.device}"
    if half_weight.dtype is not torch.bfloat16:
        return f"expected weights in bfloat16, got {half_weight.dtype}"
    return missing_kernels() or bfloat16.missing_products()


def example(device: torch.device) -> Call:
    """A layer of 8 inputs and outputs in training."""
    x, weight = torch.ones(2, 8, device=device), torch.ones(8, 8, device=device)
    bias = torch.ones(8, device=device)
    return (x, weight, bias, weight.bfloat16(), bias.bfloat16()), {}


IN_C = Implementation(
    "native",
    "C kernels for bfloat16",
    half_linear_native,
    accepts=lambda x, _weight, _bias, half_weight, _half_bias: native_refusal(x, half_weight),
)
half_linear = Operation(
    "linear layer in half precision",
    half_linear_reference,
    [IN_C] if bfloat16.has_instructions() else [],  # elsewhere NMT_BACKEND=native does without
    example=example,
)


def products_in_c() -> bool:
    """Whether products in half precision run in C here, which is faster than float32."""
    arguments, _ = example(torch.device("cpu"))
    return half_linear.pick(*arguments) is IN_C


class NativeHalfFeedForward(torch.autograd.Function):
    """Linear, ReLU, dropout, linear; dropped hidden units are 0 like those that ReLU cuts."""

    @staticmethod
    def forward(
        ctx: Any, rate: float, x: Tensor, copies: tuple[Tensor, Tensor], *parameters: Tensor
    ) -> Tensor:
        _weight, bias, _output_weight, output_bias = parameters
        half_weight, half_output_weight = copies
        rows = bfloat16.round_rows(as_rows(x))
        mask = draw_mask(len(rows) * len(half_weight), rate)
        hidden = bfloat16.multiply(
            rows, half_weight, transposed=True, rounded=True, bias=bias, relu=True, mask=mask
        )
        ctx.save_for_backward(rows, hidden, half_weight, half_output_weight)
        ctx.scale = keep_scale(rate)
        output = bfloat16.multiply(hidden, half_output_weight, transposed=True, bias=output_bias)
        return output.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        rows, hidden, half_weight, half_output_weight = ctx.saved_tensors
        grad_output = bfloat16.round_rows(as_rows(grad_outputs[0]))
        grad_hidden = bfloat16.multiply(
            grad_output, half_output_weight, rounded=True, scale=ctx.scale, where=hidden
        )
        grad_input = None
        if ctx.needs_input_grad[1]:
            grad_input = bfloat16.multiply(grad_hidden, half_weight).view(grad_outputs[0].shape)
        if not any(ctx.needs_input_grad[3:]):  # frozen
            return None, grad_input, None, None, None, None, None
        return (
            *(None, grad_input, None),
            *bfloat16.weight_gradient(grad_hidden, rows),
            *bfloat16.weight_gradient(grad_output, hidden),
        )


def half_feed_forward_native(x: Tensor, first: nn.Linear, last: nn.Linear, rate: float) -> Tensor:
    """[..., D] for x [..., D] through the feed-forward sublayer with ReLU, by the kernels in C."""
    assert isinstance(first, HalfPrecisionLayer)
    assert isinstance(last, HalfPrecisionLayer)
    copies = first.half_weight, last.half_weight
    parameters = first.weight, first.bias, last.weight, last.bias
    result: Tensor = NativeHalfFeedForward.apply(rate, x, copies, *parameters)  # type: ignore[no-untyped-call]
    return result
