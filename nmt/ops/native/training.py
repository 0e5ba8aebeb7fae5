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

from nmt.ops.native import interface, library
from nmt.ops.native.interface import RowMap, address, optional_address

SPARE_DRAWS = 16  # random numbers that kernels may read behind the last: they read whole vectors


def kernels() -> ctypes.CDLL:
    """The kernels, where `native_refusal` has found no reason against them."""
    found = library.load()
    assert found is not None
    return found


@dataclass(frozen=True)
class Dropping:
    """Dropout: 16 bits for each number, from where on they keep it, what it is scaled by then."""

    draws: Tensor  # int16, with room for SPARE_DRAWS more
    least_kept: int
    keep_scale: float


def draws_address(draws: Tensor | None, count: int) -> int | None:
    """Where the random bits of `count` numbers are; raises for memory that ends too soon."""
    if draws is None:
        return None
    room = draws.untyped_storage().nbytes() // 2 - draws.storage_offset()
    if draws.numel() != count or room < count + SPARE_DRAWS:
        raise ValueError(
            f"expected random bits for {count} numbers and {SPARE_DRAWS} to spare, got "
            f"{draws.numel()} in memory for {room}"
        )
    return address(draws, dtype=torch.int16)


def dropout_fields(dropping: Dropping | None, count: int) -> tuple[int | None, interface.Dropout]:
    """Where the random bits of `count` numbers are, and how they become factors."""
    if dropping is None:
        return None, interface.Dropout(0, 1.0)
    fields = interface.Dropout(dropping.least_kept, dropping.keep_scale)
    return draws_address(dropping.draws, count), fields


@dataclass(frozen=True)
class AttentionInput:
    """What attention takes, forward and backward."""

    projections: Sequence[Tensor]  # [B, T, n D], holding query, key and value side by side
    heads: int
    visible: Tensor | None  # boolean, broadcastable to [B, H, Q, K]
    map: RowMap
    parameters: Tensor  # [H]
    scale: float
    least_kept: int  # a draw of 16 bits from which on a weight is kept
    keep_scale: float
    states: Tensor  # [B, H, Q, 2]: filled forward, read backward

    @property
    def dim(self) -> int:
        """D."""
        return sum(projection.shape[-1] for projection in self.projections) // 3

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, Q, K."""
        first, last = self.projections[0], self.projections[-1]
        return first.shape[0], self.heads, first.shape[1], last.shape[1]

    def parts(self, projections: Sequence[Tensor]) -> list[int]:
        """Where query, key and value begin in the projections, or in tensors of their shapes."""
        batch, _, queries, keys = self.shape
        if len(self.projections) == 1:
            shapes = [(batch, queries, 3 * self.dim)]
        else:
            shapes = [(batch, queries, self.dim), (batch, keys, 2 * self.dim)]
        return [
            address(projection, shape) + 4 * place
            for projection, shape in zip(projections, shapes, strict=True)
            for place in range(0, shape[-1], max(1, self.dim))
        ]

    def visible_fields(self) -> tuple[int | None, list[int]]:
        """Where the mask is, and its steps over sentences, heads and queries."""
        if self.visible is None:
            return None, [0, 0, 0]
        mask, keys = self.visible, self.shape[3]
        side_by_side = mask.shape[-1] == keys and (mask.stride(-1) == 1 or keys <= 1)
        if mask.dtype != torch.bool or mask.device.type != "cpu" or not side_by_side:
            raise ValueError(f"expected a boolean mask of {keys} keys side by side on the CPU")
        return mask.data_ptr(), list(mask.expand(self.shape).stride()[:3])

    def fields(self) -> interface.Attention:
        """The same for the kernels."""
        batch, heads, queries, keys = self.shape
        if heads < 1 or self.dim % heads != 0:
            raise ValueError(f"expected a multiple of {heads} heads, got a width of {self.dim}")
        visible, steps = self.visible_fields()
        return interface.Attention(
            *(batch, heads, queries, keys, self.dim // heads),
            *(self.projections[0].shape[-1], self.projections[-1].shape[-1]),
            *self.parts(self.projections),
            visible,
            *steps,
            self.map,
            address(self.parameters, (heads,)),
            self.scale,
            interface.Dropout(self.least_kept, self.keep_scale),
            address(self.states, (batch, heads, queries, 2)),
        )


def attention_space(fields: interface.Attention, threads: int) -> Tensor:
    """Memory for each thread to work in."""
    return torch.empty(threads, kernels().attention_space(ctypes.byref(fields)))


def attend(
    inputs: AttentionInput,
    heads: slice,
    draws: Tensor | None,
    *,
    output: Tensor,
    observed: Tensor | None,
) -> None:
    """Write output [B, Q, D], and weights [B, H, Q, K] to be observed, of heads among B H.

    draws [heads, Q, K] are of 16 bits, with room for SPARE_DRAWS more.
    """
    fields, threads = inputs.fields(), torch.get_num_threads()
    batch, _, queries, keys = inputs.shape
    count = heads.stop - heads.start
    space = attention_space(fields, threads)
    kernels().attend(
        ctypes.byref(fields),
        *(heads.start, count),
        draws_address(draws, count * queries * keys),
        address(output, (batch, queries, inputs.dim)),
        optional_address(observed, inputs.shape),
        address(space),
        threads,
    )


def attend_backward(
    inputs: AttentionInput,
    heads: slice,
    draws: Tensor | None,
    *,
    outer: Tensor,
    gradients: Sequence[Tensor],
    parameters: Tensor | None,
) -> None:
    """Write the gradients of the projections, and those of the parameters by sentence, [B, H]."""
    fields, threads = inputs.fields(), torch.get_num_threads()
    batch, num_heads, queries, keys = inputs.shape
    count = heads.stop - heads.start
    to = interface.Gradients(
        address(outer, (batch, queries, inputs.dim)),
        *inputs.parts(gradients),
        optional_address(parameters, (batch, num_heads)),
    )
    space = attention_space(fields, threads)
    kernels().attend_backward(
        ctypes.byref(fields),
        *(heads.start, count),
        draws_address(draws, count * queries * keys),
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
    x: Tensor, gain: Tensor, gate: Tensor | None, scales: Tensor, outer: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of x, gain and gate for `outer`, that of the output."""
    inner, gain_gradient = torch.empty_like(x), torch.empty_like(gain)
    gate_gradient = None if gate is None else torch.empty_like(gate)
    width = x.shape[-1]
    fields = interface.RmsBackward(
        address(x),
        address(gain, (width,)),
        optional_address(gate, (width,)),
        address(scales, x.shape[:-1]),
        address(outer, x.shape),
        address(inner),
        width,
    )
    sums = torch.zeros(kernels().norm_sums(width))
    kernels().gated_rms_norm_backward(
        ctypes.byref(fields),
        scales.numel(),
        address(gain_gradient),
        optional_address(gate_gradient),
        address(sums),
        torch.get_num_threads(),
    )
    return inner, gain_gradient, gate_gradient


def result_fields(
    result: Tensor,
    *,
    scale: float = 1.0,
    relu: bool = False,
    bias: Tensor | None = None,
    where: Tensor | None = None,
    dropping: Dropping | None = None,
) -> interface.Result:
    """Where a product [N, M] goes, and what becomes of it on the way."""
    rows, columns = result.shape
    return interface.Result(
        address(result),
        *(columns, columns),
        scale,
        *(False, relu),
        optional_address(bias, (columns,)),
        optional_address(where, (rows, columns)),
        *dropout_fields(dropping, rows * columns),
    )


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
    dropping: Dropping | None = None,
) -> Tensor:
    """left [N, K] times right [K, M], or `transposed` [M, K]; then scale, bias, ReLU, dropout.

    Where `where` [N, M] is not above 0, the result is 0.
    """
    rows, inner = left.shape
    columns = right.shape[0 if transposed else 1]
    result = left.new_empty(rows, columns) if out is None else out
    if result.shape != (rows, columns):
        raise ValueError(f"expected a result of {(rows, columns)}, got {tuple(result.shape)}")
    fields = result_fields(
        result, scale=scale, relu=relu, bias=bias, where=where, dropping=dropping
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
    """What the forward pass of `add_norm` leaves to its derivative."""

    sums: Tensor  # [..., D]
    means: Tensor  # [...]
    scales: Tensor  # [...]

    def fields(self, gain: Tensor, dropping: Dropping | None) -> interface.AddNorm:
        """The same for the kernels."""
        width, rows = self.sums.shape[-1], self.sums.shape[:-1]
        return interface.AddNorm(
            *(self.means.numel(), width),
            *dropout_fields(dropping, self.sums.numel()),
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
    dropping: Dropping | None,
    epsilon: float,
) -> tuple[Tensor, NormedSum]:
    """LayerNorm(residual + dropout(x)) for x [..., D], and what its derivative needs."""
    output, shape = torch.empty_like(x), x.shape[:-1]
    left = NormedSum(torch.empty_like(x), x.new_empty(shape), x.new_empty(shape))
    kernels().add_norm(
        ctypes.byref(left.fields(gain, dropping)),
        address(residual, x.shape),
        address(x),
        address(bias, (x.shape[-1],)),
        epsilon,
        address(output),
        torch.get_num_threads(),
    )
    return output, left


def add_norm_backward(
    left: NormedSum, gain: Tensor, outer: Tensor, *, dropping: Dropping | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the residual, of x, gain and bias for `outer`, that of the output."""
    results = [torch.empty_like(like) for like in (outer, outer, gain, gain)]
    sums = torch.zeros(kernels().norm_sums(outer.shape[-1]))
    kernels().add_norm_backward(
        ctypes.byref(left.fields(gain, dropping)),
        address(outer, left.sums.shape),
        *map(address, results),
        address(sums),
        torch.get_num_threads(),
    )
    residual, x, gain_gradient, bias_gradient = results
    return residual, x, gain_gradient, bias_gradient


def softmax_(logits: Tensor) -> Tensor:
    """Overwrite logits [N, V] by probabilities; the logarithms [N] of what normalises them."""
    normalisers = logits.new_empty(len(logits))
    kernels().softmax_rows(
        address(logits),
        *logits.shape,
        address(normalisers),
        torch.get_num_threads(),
    )
    return normalisers
