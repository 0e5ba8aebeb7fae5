"""The kernels of training: tensors in, tensors out. All are float32, on the CPU, contiguous.

Every tensor is compared with the shape that the kernel will take it for. The memory that kernels
work in is torch's, so that memory which is refused raises torch's own error.

Shapes: B batch, H heads, Q queries, K keys, N rows, D width, Dh = D / H.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.ops.attention_call import AttentionCall
from nmt.ops.dropout import DropoutMask, keep_scale, least_kept
from nmt.ops.native import interface
from nmt.ops.native.library import kernels
from nmt.ops.native.tensors import address, optional_address

SPARE_BITS = 16  # random numbers that kernels may read behind the last: they read whole vectors


def bits_address(bits: Tensor | None, count: int) -> int | None:
    """The address of the random bits of `count` numbers; raises for memory that ends too soon."""
    if bits is None:
        return None
    room = bits.untyped_storage().nbytes() // 2 - bits.storage_offset()
    if bits.numel() != count or room < count + SPARE_BITS:
        raise ValueError(
            f"expected random bits for {count} numbers and {SPARE_BITS} to spare, got "
            f"{bits.numel()} in memory for {room}"
        )
    return address(bits, dtype=torch.int16)


def dropout_fields(
    mask: DropoutMask | None, count: int
) -> tuple[int | None, interface.DropoutRule]:
    """The address of the random bits of `count` numbers, and the rule for factors from them."""
    if mask is None:
        return None, interface.DropoutRule(0, 1.0)
    fields = interface.DropoutRule(mask.least_kept, mask.keep_scale)
    return bits_address(mask.bits, count), fields


class AttentionInput:
    """A call of attention with its tensors, checked, and their addresses for the kernels.

    projections are [B, T, n D] and hold query, key and value side by side; visible is boolean and
    broadcastable to [B, H, Q, K]; parameters are [H]; states [B, H, Q, 2] are filled forward and
    read backward.
    """

    def __init__(
        self,
        call: AttentionCall,
        *,
        projections: Sequence[Tensor],
        visible: Tensor | None,
        parameters: Tensor,
        states: Tensor,
    ) -> None:
        first, last = projections[0], projections[-1]
        batch, queries, width = first.shape
        heads, keys = call.heads, last.shape[1]
        self.dim = width // 3 if len(projections) == 1 else width
        if heads < 1 or self.dim % heads != 0:
            raise ValueError(f"expected a multiple of {heads} heads, got a width of {self.dim}")
        self.shape = (batch, heads, queries, keys)
        self.projections = projections
        self.kept = (visible, parameters, states)  # as long as their addresses are used
        self.states = states
        mask, steps = self.visible_fields(visible)
        self.fields = interface.AttentionArguments(
            *(batch, heads, queries, keys, self.dim // heads),
            *(width, last.shape[2]),
            *self.parts(projections),
            mask,
            *steps,
            call.mapping.row_map,
            address(parameters, (heads,)),
            call.scale,
            interface.DropoutRule(least_kept(call.dropout), keep_scale(call.dropout)),
            address(states, (batch, heads, queries, 2)),
        )

    def parts(self, projections: Sequence[Tensor]) -> list[int]:
        """The addresses of query, key and value in projections, or in tensors of their shapes."""
        batch, _, queries, keys = self.shape
        size = 4 * self.dim
        if len(projections) == 1:
            start = address(projections[0], (batch, queries, 3 * self.dim))
            return [start, start + size, start + 2 * size]
        query, key_value = projections
        start = address(key_value, (batch, keys, 2 * self.dim))
        return [address(query, (batch, queries, self.dim)), start, start + size]

    def visible_fields(self, visible: Tensor | None) -> tuple[int | None, Sequence[int]]:
        """The address of the mask, and its steps over sentences, heads and queries."""
        if visible is None:
            return None, (0, 0, 0)
        keys = self.shape[3]
        side_by_side = visible.shape[-1] == keys and (visible.stride(-1) == 1 or keys <= 1)
        if visible.dtype != torch.bool or not visible.is_cpu or not side_by_side:
            raise ValueError(f"expected a boolean mask of {keys} keys side by side on the CPU")
        return visible.data_ptr(), visible.expand(self.shape).stride()[:3]


def attention_space(fields: interface.AttentionArguments, threads: int) -> Tensor:
    """Memory for each thread to work in."""
    return torch.empty(threads, kernels().attention_space(ctypes.byref(fields)))


def attend(
    inputs: AttentionInput,
    heads: slice,
    bits: Tensor | None,
    *,
    output: Tensor,
    observed: Tensor | None,
) -> None:
    """Write output [B, Q, D], and weights [B, H, Q, K] to be observed, of heads among B H.

    bits [heads, Q, K] are of 16 bits, with room for SPARE_BITS more.
    """
    fields, threads = inputs.fields, torch.get_num_threads()
    batch, _, queries, keys = inputs.shape
    count = heads.stop - heads.start
    space = attention_space(fields, threads)
    kernels().attend(
        ctypes.byref(fields),
        *(heads.start, count),
        bits_address(bits, count * queries * keys),
        address(output, (batch, queries, inputs.dim)),
        optional_address(observed, inputs.shape),
        address(space),
        threads,
    )


def attend_backward(
    inputs: AttentionInput,
    heads: slice,
    bits: Tensor | None,
    *,
    grad_output: Tensor,
    gradients: Sequence[Tensor],
    parameters: Tensor | None,
) -> None:
    """Write the gradients of the projections, and those of the parameters by sentence, [B, H]."""
    fields, threads = inputs.fields, torch.get_num_threads()
    batch, num_heads, queries, keys = inputs.shape
    count = heads.stop - heads.start
    to = interface.Gradients(
        address(grad_output, (batch, queries, inputs.dim)),
        *inputs.parts(gradients),
        optional_address(parameters, (batch, num_heads)),
    )
    space = attention_space(fields, threads)
    kernels().attend_backward(
        ctypes.byref(fields),
        *(heads.start, count),
        bits_address(bits, count * queries * keys),
        ctypes.byref(to),
        address(space),
        threads,
    )


def gated_rms_norm(
    x: Tensor, gain: Tensor, gate: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor]:
    """sigmoid(gate x) gain x / rms(x) for x [..., D], and 1 / rms of each row, [...]."""
    output, scales = torch.empty_like(x), x.new_empty(x.shape[:-1])
    width = x.shape[-1]
    kernels().gated_rms_norm(
        address(x),
        address(gain, (width,)),
        optional_address(gate, (width,)),
        *(scales.numel(), width),
        epsilon,
        address(output),
        address(scales),
        torch.get_num_threads(),
    )
    return output, scales


def gated_rms_norm_backward(
    x: Tensor, gain: Tensor, gate: Tensor | None, scales: Tensor, grad_output: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of x, gain and gate for `grad_output`, that of the output."""
    grad_input, grad_gain = torch.empty_like(x), torch.empty_like(gain)
    grad_gate = None if gate is None else torch.empty_like(gate)
    width = x.shape[-1]
    fields = interface.RmsBackward(
        address(x),
        address(gain, (width,)),
        optional_address(gate, (width,)),
        address(scales, x.shape[:-1]),
        address(grad_output, x.shape),
        address(grad_input),
        width,
    )
    sums = torch.zeros(kernels().norm_sums(width))
    kernels().gated_rms_norm_backward(
        ctypes.byref(fields),
        scales.numel(),
        address(grad_gain),
        optional_address(grad_gate),
        address(sums),
        torch.get_num_threads(),
    )
    return grad_input, grad_gain, grad_gate


def multiply(
    left: Tensor,
    right: Tensor,
    *,
    transposed: bool = False,
    out: Tensor | None = None,
    scale: float = 1.0,
    relu: bool = False,
    bias: Tensor | None = None,
    where: Tensor | None = None,
    mask: DropoutMask | None = None,
) -> Tensor:
    """left [N, K] times right [K, M], or `transposed` [M, K]; then scale, bias, ReLU, dropout.

    Where `where` [N, M] is not above 0, the result is 0.
    """
    rows, inner = left.shape
    columns = right.shape[0 if transposed else 1]
    result = left.new_empty(rows, columns) if out is None else out
    fields = interface.ProductResult(
        address(result, (rows, columns)),
        *(columns, columns),
        scale,
        *(False, relu),
        optional_address(bias, (columns,)),
        optional_address(where, (rows, columns)),
        *dropout_fields(mask, rows * columns),
    )
    packed = torch.empty(kernels().packed_size(inner, columns))
    kernels().multiply_matrices(
        address(left),
        address(right, (columns, inner) if transposed else (inner, columns)),
        int(transposed),
        *(rows, inner),
        ctypes.byref(fields),
        address(packed),
        torch.get_num_threads(),
    )
    return result


@dataclass(frozen=True)
class NormedSum:
    """The tensors that the forward pass of `add_norm` saves for its backward pass."""

    sums: Tensor  # [..., D]
    means: Tensor  # [...]
    scales: Tensor  # [...]

    def fields(self, gain: Tensor, mask: DropoutMask | None) -> interface.AddNorm:
        """The structure that the kernels take for these tensors."""
        width, rows = self.sums.shape[-1], self.sums.shape[:-1]
        return interface.AddNorm(
            *(self.means.numel(), width),
            *dropout_fields(mask, self.sums.numel()),
            address(gain, (width,)),
            address(self.sums),
            address(self.means, rows),
            address(self.scales, rows),
        )


def add_norm(
    residual: Tensor,
    x: Tensor,
    gain: Tensor,
    bias: Tensor,
    *,
    mask: DropoutMask | None,
    epsilon: float,
) -> tuple[Tensor, NormedSum]:
    """LayerNorm(residual + dropout(x)) for x [..., D], and what its backward pass needs."""
    output, shape = torch.empty_like(x), x.shape[:-1]
    left = NormedSum(torch.empty_like(x), x.new_empty(shape), x.new_empty(shape))
    kernels().add_norm(
        ctypes.byref(left.fields(gain, mask)),
        address(residual, x.shape),
        address(x),
        address(bias, (x.shape[-1],)),
        epsilon,
        address(output),
        torch.get_num_threads(),
    )
    return output, left


def add_norm_backward(
    left: NormedSum, gain: Tensor, grad_output: Tensor, *, mask: DropoutMask | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the residual, of x, gain and bias for `grad_output`, that of the output."""
    results = [torch.empty_like(like) for like in (grad_output, grad_output, gain, gain)]
    sums = torch.zeros(kernels().norm_sums(grad_output.shape[-1]))
    kernels().add_norm_backward(
        ctypes.byref(left.fields(gain, mask)),
        address(grad_output, left.sums.shape),
        *map(address, results),
        address(sums),
        torch.get_num_threads(),
    )
    residual, x, grad_gain, grad_bias = results
    return residual, x, grad_gain, grad_bias


def softmax_(logits: Tensor) -> Tensor:
    """Overwrite logits [N, V] by probabilities; the logarithms [N] of what normalises them."""
    normalisers = logits.new_empty(len(logits))
    kernels().softmax_rows(
        address(logits), *logits.shape, address(normalisers), torch.get_num_threads()
    )
    return normalisers
