"""Norms, entmax and the loss by the row kernels: tensors in, tensors out.

Shapes: N rows, D width, B batch, H heads, Q queries, K keys, V vocabulary.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from nmt.ops.triton import rows_kernels as kernels
from nmt.ops.triton.numerics import RANDOM_LEVELS

BACKWARD_PROGRAMS = 512  # they share the rows of a backward pass: some for each multiprocessor
LOGITS_PER_TILE = 4096  # of a row of logits


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


def parts_of(rows: int) -> tuple[int, int]:
    """The number of parts of a sum over rows, and the rows of each."""
    size = triton.cdiv(max(1, rows), BACKWARD_PROGRAMS)
    return triton.cdiv(max(1, rows), size), size


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
    """Gradients of z [N, D], and of gain and gate [2, D], or of the gain alone [1, D]."""
    rows, width = z.shape
    parts, rows_of_part = parts_of(rows)
    grad_z = torch.empty_like(z)
    learned = 1 if gate is None else 2
    sums = torch.empty(learned, parts, width, dtype=torch.float32, device=z.device)
    size = triton.next_power_of_2(width)
    kernels.gated_norm_backward_kernel[(parts,)](
        *(z, gain, gain if gate is None else gate, scale, grad_y, grad_z, sums[0], sums[-1]),
        *(rows, rows_of_part),
        D=width,
        W=size,
        GATED=gate is not None,
        num_warps=warps(size),
    )
    return grad_z, sums.sum(1).to(gain.dtype)


class AddNormResult(NamedTuple):
    """The output of `add_norm`, and the tensors that its backward pass needs."""

    output: Tensor  # [N, D]
    sums: Tensor  # [N, D]
    means: Tensor  # [N]
    scales: Tensor  # [N]


def add_norm(
    residual: Tensor,
    x: Tensor,
    gain: Tensor,
    bias: Tensor,
    dropout: RowDropout | None,
    epsilon: float,
) -> AddNormResult:
    """LayerNorm(residual + dropout(x)) for x [N, D]."""
    rows, width = x.shape
    sums, output = torch.empty_like(residual), torch.empty_like(residual)
    means, scales = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    size = triton.next_power_of_2(width)
    numbers = {"least_kept": 0, "keep_scale": 1.0} if dropout is None else dropout.numbers
    kernels.add_norm_kernel[(rows,)](
        *(residual, x, gain, bias, means if dropout is None else dropout.seed),
        *(sums, output, means, scales, epsilon),
        **numbers,
        D=width,
        W=size,
        DROPPED=dropout is not None,
        num_warps=warps(size),
    )
    return AddNormResult(output, sums, means, scales)


def add_norm_backward(
    normed: AddNormResult,
    gain: Tensor,
    dropout: RowDropout | None,
    grad_y: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of residual, x (in `dtype`), and of gain and bias [2, D]."""
    rows, width = grad_y.shape
    parts, rows_of_part = parts_of(rows)
    grad_residual = torch.empty_like(normed.sums)
    grad_x = torch.empty_like(grad_residual, dtype=dtype)
    sums = torch.empty(2, parts, width, dtype=torch.float32, device=grad_y.device)
    size = triton.next_power_of_2(width)
    numbers = {"least_kept": 0, "keep_scale": 1.0} if dropout is None else dropout.numbers
    kernels.add_norm_backward_kernel[(parts,)](
        *(normed.sums, gain, normed.means if dropout is None else dropout.seed),
        *(normed.means, normed.scales, grad_y, grad_residual, grad_x, sums[0], sums[1]),
        *(rows, rows_of_part),
        **numbers,
        D=width,
        W=size,
        DROPPED=dropout is not None,
        num_warps=warps(size),
    )
    return grad_residual, grad_x, sums.sum(1).to(gain.dtype)


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
    logits: Tensor, gold: Tensor, *, smoothing: float, factor: float, needs_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Smoothed losses and negative log-likelihoods [N] of logits [N, V].

    With `needs_gradient` the logits are overwritten by their gradient times `factor`.
    """
    rows, vocabulary = logits.shape
    loss, likelihood = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in "12")
    kernels.cross_entropy_kernel[(rows,)](
        *(logits, gold, loss, likelihood, vocabulary, smoothing, factor),
        N=min(LOGITS_PER_TILE, triton.next_power_of_2(vocabulary)),
        NEEDS_GRADIENT=needs_gradient,
        num_warps=8,
    )
    return loss, likelihood
