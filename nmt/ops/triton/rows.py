"""Norms, entmax and the loss by the row kernels: tensors in, tensors out.

Shapes: N rows, D width, B batch, H heads, Q queries, K keys, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from nmt.ops.triton import rows_kernels as kernels
from nmt.ops.triton.numerics import RANDOM_LEVELS

PARTS = 512  # programs that share the rows of a backward pass: some for each multiprocessor
LOGITS_PER_TILE = 4096  # of a row of logits
COLUMNS_PER_PROGRAM = 1024  # of a part of a sum over rows
SUMMED_AT_ONCE = 64  # matrices whose parts one launch adds up
SUM_TILE = 32  # parts and columns that a program adds up at a time


class RowDropout(NamedTuple):
    """The dropout rate, and the seed [1] of the random bits on the device."""

    rate: float
    seed: Tensor

    @property
    def numbers(self) -> dict[str, float]:
        """The threshold that keeps an element's random bits, and the scale of kept elements."""
        dropped = round(self.rate * RANDOM_LEVELS)
        return {"least_kept": dropped, "keep_scale": RANDOM_LEVELS / (RANDOM_LEVELS - dropped)}


def warps(width: int) -> int:
    """Warps for a row: about 8 numbers per thread."""
    return min(16, max(1, width // 256))


def rows_of_part(rows: int) -> int:
    """The rows that one of PARTS programs adds up; the last ones may have none."""
    return int(triton.cdiv(max(1, rows), PARTS))


def sum_parts(parts: Sequence[Tensor]) -> Tensor:
    """The sums [n, D] over the rows of n matrices [PARTS, D]; many take one launch."""
    width = parts[0].shape[1]
    sums = parts[0].new_empty(len(parts), width)
    for first in range(0, len(parts), SUMMED_AT_ONCE):
        chosen = tuple(parts[first : first + SUMMED_AT_ONCE])
        kernels.sum_parts_kernel[(len(chosen), triton.cdiv(width, SUM_TILE))](
            *(chosen, sums[first:], PARTS),
            D=width,
            W=SUM_TILE,
            R=SUM_TILE,
            COUNT=len(chosen),
            num_warps=4,
        )
    return sums


def gated_norm(z: Tensor, gain: Tensor, gate: Tensor | None, epsilon: float) -> list[Tensor]:
    """sigmoid(gate z) gain z / rms(z) for z [N, D], and 1 / rms(z) [N]."""
    rows, width = z.shape
    y = torch.empty_like(z)
    scale = torch.empty(rows, dtype=torch.float32, device=z.device)
    size = triton.next_power_of_2(width)
    kernels.gated_norm_kernel[(rows,)](
        *(z, gain, gain if gate is None else gate, y, scale, epsilon),
        D=width,
        W=size,
        GATED=gate is not None,
        num_warps=warps(size),
    )
    return [y, scale]


def gated_norm_backward(
    z: Tensor, gain: Tensor, gate: Tensor | None, scale: Tensor, grad_y: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of z [N, D], and of gain and gate [2, PARTS, D], or of the gain alone [1, ...]."""
    rows, width = z.shape
    grad_z = torch.empty_like(z)
    learned = 1 if gate is None else 2
    sums = torch.empty(learned, PARTS, width, dtype=torch.float32, device=z.device)
    size = triton.next_power_of_2(width)
    kernels.gated_norm_backward_kernel[(PARTS,)](
        *(z, gain, gain if gate is None else gate, scale, grad_y, grad_z, sums[0], sums[-1]),
        *(rows, rows_of_part(rows)),
        D=width,
        W=size,
        GATED=gate is not None,
        num_warps=warps(size),
    )
    return grad_z, sums


class AddNormResult(NamedTuple):
    """The output of `add_norm`, and the tensors that its backward pass needs."""

    output: Tensor  # [N, D]
    rounded: Tensor  # [N, D] in the type of x, where that is another; else without rows
    sums: Tensor  # [N, D]
    means: Tensor  # [N]
    scales: Tensor  # [N]


def add_norm(
    residual: Tensor,
    x: Tensor,
    gain: Tensor,
    bias: Tensor,
    x_bias: Tensor | None,
    dropout: RowDropout | None,
    epsilon: float,
) -> AddNormResult:
    """LayerNorm(residual + dropout(x + x_bias)) for x [N, D]."""
    rows, width = x.shape
    sums, output, rounded = make_normed(residual, x)
    means, scales = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    size = triton.next_power_of_2(width)
    numbers = {"least_kept": 0, "keep_scale": 1.0} if dropout is None else dropout.numbers
    kernels.add_norm_kernel[(rows,)](
        *(residual, x, gain if x_bias is None else x_bias, gain, bias),
        *(means if dropout is None else dropout.seed, sums, output, rounded, means, scales),
        epsilon,
        **numbers,
        D=width,
        W=size,
        DROPPED=dropout is not None,
        BIASED=x_bias is not None,
        IS_ROUNDED=rounded.numel() > 0,
        num_warps=warps(size),
    )
    return AddNormResult(output, rounded, sums, means, scales)


def make_normed(residual: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Room for the sum and for the output of `add_norm` in both types."""
    rounded = 0 if x.dtype == residual.dtype else x.shape[0]
    sums, output = torch.empty_like(residual), torch.empty_like(residual)
    return sums, output, x.new_empty(rounded, x.shape[1])


def add_norm_backward(
    normed: AddNormResult,
    gain: Tensor,
    dropout: RowDropout | None,
    grads: Sequence[Tensor | None],
    dtype: torch.dtype,
    *,
    biased: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of residual, x (in `dtype`), and of gain, bias and, if `biased`, x_bias.

    The last three are [3, PARTS, D], to be summed over their parts. `grads` are those of the output
    in both types, as far as there are any.
    """
    rows, width = normed.sums.shape
    grad_residual = torch.empty_like(normed.sums)
    grad_x = torch.empty_like(grad_residual, dtype=dtype)
    sums = grad_residual.new_empty(3 if biased else 2, PARTS, width, dtype=torch.float32)
    exact, rounded = grads
    size = triton.next_power_of_2(width)
    numbers = {"least_kept": 0, "keep_scale": 1.0} if dropout is None else dropout.numbers
    kernels.add_norm_backward_kernel[(PARTS,)](
        *(normed.sums, gain, normed.means if dropout is None else dropout.seed),
        *(normed.means, normed.scales, grad_x if exact is None else exact),
        *(grad_x if rounded is None else rounded, grad_residual, grad_x),
        *(sums[0], sums[1], sums[-1], rows, rows_of_part(rows)),
        **numbers,
        D=width,
        W=size,
        DROPPED=dropout is not None,
        BIASED=biased,
        IS_EXACT=exact is not None,
        IS_ROUNDED=rounded is not None,
        num_warps=warps(size),
    )
    return grad_residual, grad_x, sums


def relu_backward(grad: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient [N, D] before a ReLU with this output, and its sums over rows [PARTS, D]."""
    rows, width = grad.shape
    columns = min(COLUMNS_PER_PROGRAM, triton.next_power_of_2(width))
    grad_input = torch.empty_like(grad)
    sums = grad.new_empty(PARTS, width, dtype=torch.float32)
    kernels.relu_backward_kernel[(PARTS, triton.cdiv(width, columns))](
        *(grad, output, grad_input, sums, rows, rows_of_part(rows)),
        D=width,
        W=columns,
        num_warps=warps(columns),
    )
    return grad_input, sums


def entmax(scores: Tensor, beta: Tensor, mapping: int) -> Tensor:
    """Weights of scores [B, H, Q, K] with -inf at hidden keys; beta [H]; rows of -inf become 0."""
    batch, heads, queries, keys = scores.shape
    weights = torch.empty_like(scores)
    size = triton.next_power_of_2(keys)
    kernels.entmax_kernel[(batch * heads * queries,)](
        *(scores, weights, beta, queries, keys),
        HEADS=heads,
        W=size,
        MAP=mapping,
        num_warps=warps(size),
    )
    return weights


def entmax_backward(
    weights: Tensor, beta: Tensor, grad_weights: Tensor, *, learned: bool
) -> tuple[Tensor, Tensor | None]:
    """Gradients of the scores, and of beta [H] where it is learned."""
    batch, heads, queries, keys = weights.shape
    grad = torch.empty_like(weights)
    grad_beta = torch.empty(batch, heads, queries, dtype=torch.float32, device=weights.device)
    size = triton.next_power_of_2(keys)
    kernels.entmax_backward_kernel[(batch * heads * queries,)](
        *(weights, grad_weights, grad, beta, grad_beta, queries, keys),
        HEADS=heads,
        W=size,
        LEARNED=learned,
        num_warps=warps(size),
    )
    return grad, grad_beta.sum((0, 2)) if learned else None


def cross_entropy_(
    logits: Tensor,
    gold: Tensor,
    losses: Tensor,
    *,
    smoothing: float,
    factor: float,
    needs_gradient: bool,
) -> None:
    """Write smoothed losses and negative log-likelihoods of logits [N, V] to `losses` [2, N].

    With `needs_gradient` the logits are overwritten by their gradient times `factor`.
    """
    rows, vocabulary = logits.shape
    kernels.cross_entropy_kernel[(rows,)](
        *(logits, gold, losses[0], losses[1], vocabulary, smoothing, factor),
        N=min(LOGITS_PER_TILE, triton.next_power_of_2(vocabulary)),
        NEEDS_GRADIENT=needs_gradient,
        num_warps=8,
    )
