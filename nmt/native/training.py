"""The kernels of training: tensors in, tensors out. All are float32, on the CPU, contiguous.

Shapes: B batch, H heads, Q queries, K keys, N rows, D width, Dh = D / H.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nmt.native import library
from nmt.native.library import RowMap, pointer

INTEGER, NUMBER, POINTER = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


def kernels_suit(*tensors: Tensor | None) -> bool:
    """Whether there are kernels that can take these tensors here."""
    return (
        not torch.compiler.is_compiling()
        and all(
            tensor is None or (tensor.dtype == torch.float32 and not tensor.is_cuda)
            for tensor in tensors
        )
        and not torch.is_autocast_enabled("cpu")
        and library.load() is not None
    )


def kernels() -> ctypes.CDLL:
    """The kernels, where `kernels_suit` has said that there are some."""
    found = library.load()
    assert found is not None
    return found


class DropoutFields(ctypes.Structure):
    """`Dropout` of products.h."""

    _fields_ = (("least_kept", INTEGER), ("keep_scale", NUMBER))


@dataclass(frozen=True)
class Dropping:
    """Dropout: 16 bits for each number, from where on they keep it, what it is scaled by then."""

    draws: Tensor  # with room for 16 more
    least_kept: int
    keep_scale: float


def dropout_fields(dropping: Dropping | None) -> tuple[ctypes.c_void_p, DropoutFields]:
    """Where the bits are, and what is made of them."""
    if dropping is None:
        return pointer(None), DropoutFields(0, 1.0)
    return pointer(dropping.draws), DropoutFields(dropping.least_kept, dropping.keep_scale)


class AttentionFields(ctypes.Structure):
    """`Attention` of attention.c."""

    _fields_ = (
        *((name, INTEGER) for name in ("heads", "queries", "keys", "width")),
        *((name, INTEGER) for name in ("query_step", "key_step")),
        *((name, POINTER) for name in ("query", "key", "value", "visible")),
        *((f"visible_{name}_step", INTEGER) for name in ("sentence", "head", "query")),
        ("map", INTEGER),
        ("parameters", POINTER),
        ("scale", NUMBER),
        ("dropout", DropoutFields),
        ("states", POINTER),
    )


class GradientFields(ctypes.Structure):
    """`Gradients` of attention.c."""

    _fields_ = tuple((name, POINTER) for name in ("outer", "query", "key", "value", "parameters"))


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

    def parts(self, projections: Sequence[Tensor]) -> list[ctypes.c_void_p]:
        """Where query, key and value begin in the projections, or in tensors of their shapes."""
        width = sum(projection.shape[-1] for projection in projections) // 3
        return [
            POINTER(projection.data_ptr() + 4 * place)
            for projection in projections
            for place in range(0, projection.shape[-1], width)
        ]

    def fields(self) -> AttentionFields:
        """The same for the kernels."""
        assert all(projection.is_contiguous() for projection in self.projections)
        first, last = self.projections[0], self.projections[-1]
        batch, queries, keys = first.shape[0], first.shape[1], last.shape[1]
        width = sum(projection.shape[-1] for projection in self.projections) // (3 * self.heads)
        strides = [0, 0, 0]
        if self.visible is not None:
            assert self.visible.stride(-1) == 1 or keys == 1
            strides = list(self.visible.expand(batch, self.heads, queries, keys).stride()[:3])
        return AttentionFields(
            *(self.heads, queries, keys, width),
            *(first.shape[-1], last.shape[-1]),
            *self.parts(self.projections),
            POINTER(None if self.visible is None else self.visible.data_ptr()),
            *strides,
            self.map,
            pointer(self.parameters),
            self.scale,
            DropoutFields(self.least_kept, self.keep_scale),
            pointer(self.states),
        )


def attend(
    inputs: AttentionInput,
    heads: slice,
    draws: Tensor | None,
    *,
    output: Tensor,
    observed: Tensor | None,
) -> None:
    """Write output [B, Q, D], and weights [B, H, Q, K] to be observed, of heads among B H.

    draws [heads, Q, K] are of 16 bits, with room for 16 more.
    """
    kernels().attend(
        ctypes.byref(inputs.fields()),
        INTEGER(heads.start),
        INTEGER(heads.stop - heads.start),
        pointer(draws),
        pointer(output),
        pointer(observed),
        torch.get_num_threads(),
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
    fields = GradientFields(pointer(outer), *inputs.parts(gradients), pointer(parameters))
    kernels().attend_backward(
        ctypes.byref(inputs.fields()),
        INTEGER(heads.start),
        INTEGER(heads.stop - heads.start),
        pointer(draws),
        ctypes.byref(fields),
        torch.get_num_threads(),
    )


class RmsFields(ctypes.Structure):
    """`RmsBackward` of norms.c."""

    _fields_ = (
        *((name, POINTER) for name in ("x", "gain", "gate", "scales", "outer", "inner")),
        ("width", INTEGER),
    )


def gated_rms_norm(
    x: Tensor, gain: Tensor, gate: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor]:
    """sigmoid(gate x) gain x / rms(x) for x [..., D], and 1 / rms of each row, [...]."""
    output, scales = torch.empty_like(x), x.new_empty(x.shape[:-1])
    kernels().gated_rms_norm(
        pointer(x),
        pointer(gain),
        pointer(gate),
        INTEGER(scales.numel()),
        INTEGER(x.shape[-1]),
        NUMBER(epsilon),
        pointer(output),
        pointer(scales),
        torch.get_num_threads(),
    )
    return output, scales


def gated_rms_norm_backward(
    x: Tensor, gain: Tensor, gate: Tensor | None, scales: Tensor, outer: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The gradients of x, gain and gate for `outer`, that of the output."""
    inner, gain_gradient = torch.empty_like(x), torch.empty_like(gain)
    gate_gradient = None if gate is None else torch.empty_like(gate)
    pointers = map(pointer, (x, gain, gate, scales, outer, inner))
    kernels().gated_rms_norm_backward(
        ctypes.byref(RmsFields(*pointers, x.shape[-1])),
        INTEGER(scales.numel()),
        pointer(gain_gradient),
        pointer(gate_gradient),
        torch.get_num_threads(),
    )
    return inner, gain_gradient, gate_gradient


class ResultFields(ctypes.Structure):
    """`Result` of products.h."""

    _fields_ = (
        ("numbers", POINTER),
        *((name, INTEGER) for name in ("step", "columns")),
        ("scale", NUMBER),
        *((name, ctypes.c_bool) for name in ("more", "relu")),
        *((name, POINTER) for name in ("bias", "where", "draws")),
        ("dropout", DropoutFields),
    )


def result_fields(
    result: Tensor,
    *,
    scale: float = 1.0,
    relu: bool = False,
    bias: Tensor | None = None,
    where: Tensor | None = None,
    dropping: Dropping | None = None,
) -> ResultFields:
    """Where a product [N, M] goes, and what becomes of it on the way."""
    return ResultFields(
        pointer(result),
        *(result.shape[1], result.shape[1]),
        scale,
        *(False, relu),
        *(pointer(bias), pointer(where)),
        *dropout_fields(dropping),
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
    inner = left.shape[1]
    columns = right.shape[0 if transposed else 1]
    assert right.shape[1 if transposed else 0] == inner
    result = left.new_empty(len(left), columns) if out is None else out
    fields = result_fields(
        result, scale=scale, relu=relu, bias=bias, where=where, dropping=dropping
    )
    kernels().multiply_matrices(
        pointer(left),
        pointer(right),
        int(transposed),
        INTEGER(len(left)),
        INTEGER(inner),
        ctypes.byref(fields),
        torch.get_num_threads(),
    )
    return result


class AddNormFields(ctypes.Structure):
    """`AddNorm` of norms.c."""

    _fields_ = (
        *((name, INTEGER) for name in ("rows", "width")),
        ("draws", POINTER),
        ("dropout", DropoutFields),
        *((name, POINTER) for name in ("gain", "sums", "means", "scales")),
    )


@dataclass(frozen=True)
class NormedSum:
    """What the forward pass of `add_norm` leaves to its derivative."""

    sums: Tensor  # [..., D]
    means: Tensor  # [...]
    scales: Tensor  # [...]

    def fields(self, gain: Tensor, dropping: Dropping | None) -> AddNormFields:
        """The same for the kernels."""
        return AddNormFields(
            *(self.means.numel(), self.sums.shape[-1]),
            *dropout_fields(dropping),
            *map(pointer, (gain, self.sums, self.means, self.scales)),
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
        *map(pointer, (residual, x, bias)),
        NUMBER(epsilon),
        pointer(output),
        torch.get_num_threads(),
    )
    return output, left


def add_norm_backward(
    left: NormedSum, gain: Tensor, outer: Tensor, *, dropping: Dropping | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the residual, of x, gain and bias for `outer`, that of the output."""
    results = [torch.empty_like(like) for like in (outer, outer, gain, gain)]
    kernels().add_norm_backward(
        ctypes.byref(left.fields(gain, dropping)),
        pointer(outer),
        *map(pointer, results),
        torch.get_num_threads(),
    )
    residual, x, gain_gradient, bias_gradient = results
    return residual, x, gain_gradient, bias_gradient


def softmax_(logits: Tensor) -> Tensor:
    """Overwrite logits [N, V] by probabilities; the logarithms [N] of what normalises them."""
    normalisers = logits.new_empty(len(logits))
    kernels().softmax_rows(
        pointer(logits),
        *map(INTEGER, logits.shape),
        pointer(normalisers),
        torch.get_num_threads(),
    )
    return normalisers
