"""alpha-entmax along the last dimension: one solver for every alpha in (1, 2], with its gradients.

With beta = alpha - 1 and t the threshold, the weights are p = (1 + beta (x - t))_+ ^ (1 / beta),
t such that they sum to 1: a power law that cuts off, softmax in the limit of beta = 0, sparsemax
at beta = 1. As exp(log1p(beta (x - t)) / beta) it stays smooth and exact down to the limit.

The threshold is found by Newton's method on the norm N(t) = (sum p)^beta, which is convex and
nearly straight in t. From wherever it starts, the first step leads to the left of the goal (where
sum p >= 1), though never below t = the highest score, and the others from there do not overshoot;
two to five of them reach the last bits. With G = sum dp/dt = sum p^(1 - beta) and P = sum p, the
step is P / G * (1 - P^-beta) / beta.

A row stops moving once its sum is right, so its weights do not depend on the rows beside it; once
most rows have stopped, the others go on alone.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from nmt.ops import cuda
from nmt.ops.backend import Implementation, Operation

Beta = Tensor | float  # in (0, 1]; a tensor broadcasts to the scores, one value per row

MOST_STEPS = 60
UNCHECKED_STEPS_ON_GPU = 7  # to ask whether all rows have arrived costs a synchronisation there
COMPILED_STEPS = 10
# Sums over rows of a multiple of this many numbers do not change by a bit when 0s are appended.
ROW_STEP = 32
# When at most this share of the rows still moves they are copied out, unless they are few anyway.
FEW_ROWS = 0.5
FEW_ELEMENTS = 16_384
SERIES_BELOW = 0.02  # beta under which its gradient is taken from a series


def solve_(scores: Tensor, beta: Beta) -> Tensor:
    """Overwrite scores [..., K] by their weights; rows of nothing but -inf become NaN."""
    scores.sub_(scores.amax(-1, keepdim=True))
    rows = scores.view(-1, scores.shape[-1])
    if isinstance(beta, Tensor):
        beta = beta.expand(*scores.shape[:-1], 1).reshape(-1, 1)
    mapping = choose_mapping(rows, beta)
    solve_rows_(mapping, rows, mapping.start())
    return scores


def solve_rows_(mapping: "RowMapping", rows: Tensor, shift: Tensor, number: int = 0) -> None:
    """Overwrite rows [R, K] by their weights; the thresholds are at shift [R, 1].

    It goes on after `number` steps.
    """
    limit = mapping.goal * (1.0 + 16.0 * torch.finfo(rows.dtype).eps)
    compiling = torch.compiler.is_compiling()
    unchecked = UNCHECKED_STEPS_ON_GPU if rows.is_cuda else 1
    while True:
        total, slope = mapping.measure(rows, shift)
        if number == (COMPILED_STEPS if compiling else MOST_STEPS):
            break
        step = mapping.step(total, slope)
        if number == 0:
            shift = shift.add_(step).clamp_(min=mapping.lowest)
        else:
            moving = total > limit
            if not compiling and number >= unchecked:
                count = int(moving.sum())
                if count == 0:
                    break
                if count <= FEW_ROWS * len(rows) and rows.numel() > FEW_ELEMENTS:
                    return solve_few_(mapping, rows, shift, step, moving, number + 1)
            shift = shift.add_(step.mul_(moving))
        number += 1
    mapping.weights_(rows, shift)
    return None


def solve_few_(
    mapping: "RowMapping", rows: Tensor, shift: Tensor, step: Tensor, moving: Tensor, number: int
) -> None:
    """Overwrite rows by their weights, those that are moving [R, 1] after further steps."""
    chosen = moving.flatten().nonzero().flatten()
    few = rows[chosen]
    solve_rows_(mapping.of_rows(few, chosen), few, shift[chosen].add_(step[chosen]), number)
    mapping.weights_(rows, shift)
    rows.index_copy_(0, chosen, few)


class RowMapping(ABC):
    """How weights depend on x - t, for one beta, with buffers to work in.

    Shifts are thresholds less a constant, and P and G may have a factor, to save operations.
    """

    goal = 1.0  # P where a threshold is right
    lowest = 0.0  # the shift of t = 0
    padding = 0.0  # behind the rows in the buffer

    def __init__(self, like: Tensor, beta: Beta) -> None:
        self.beta = beta
        self.whole, self.part = make_buffer(like, self.padding)

    def start(self) -> Tensor:
        """Where the shifts start, [R, 1]: about what scores of unit variance need."""
        usual: Any = 0.5 / (self.beta + 0.4)
        return torch.zeros_like(self.whole[:, :1]).add_(self.lowest + usual)

    def of_rows(self, rows: Tensor, chosen: Tensor) -> "RowMapping":
        """The same mapping for some of the rows."""
        beta = self.beta[chosen] if isinstance(self.beta, Tensor) else self.beta
        return type(self)(rows, beta)

    @abstractmethod
    def measure(self, x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """P and G of each row of x [R, K] at the shifts [R, 1]."""

    @abstractmethod
    def step(self, total: Tensor, slope: Tensor) -> Tensor:
        """Newton's step of each threshold, by P and G."""

    @abstractmethod
    def weights_(self, x: Tensor, shift: Tensor) -> Tensor:
        """Overwrite x by its weights at the shifts that were measured last."""


def choose_mapping(like: Tensor, beta: Beta) -> RowMapping:
    """The cheapest implementation for this beta."""
    if isinstance(beta, float) and beta == 1.0:
        return SparsemaxMapping(like, beta)
    if isinstance(beta, float) and beta == 0.5:
        return Entmax15Mapping(like, beta)
    return AnyMapping(like, beta)


def make_buffer(like: Tensor, fill: float) -> tuple[Tensor, Tensor]:
    """A buffer with rows of a multiple of ROW_STEP, and its first K columns; the rest is `fill`."""
    keys = like.shape[-1]
    # A graph that asked for the number of keys first would hold for some numbers only.
    if torch.compiler.is_compiling() or keys % ROW_STEP == 0:
        whole = torch.empty_like(like)
        return whole, whole
    padded = keys + -keys % ROW_STEP
    whole = like.new_full((*like.shape[:-1], padded), fill)
    return whole, whole[..., :keys]


class SparsemaxMapping(RowMapping):
    """beta = 1: p = (1 + x - t)_+, dp = 1; shifted by 1."""

    lowest = -1.0

    def measure(self, x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        torch.sub(x, shift, out=self.part)
        total = self.whole.relu_().sum(-1, keepdim=True)
        return total, self.whole.sign_().sum(-1, keepdim=True)

    def step(self, total: Tensor, slope: Tensor) -> Tensor:
        return (total - 1.0).div_(slope)

    def weights_(self, x: Tensor, shift: Tensor) -> Tensor:
        return x.sub_(shift).relu_()


class Entmax15Mapping(RowMapping):
    """beta = 1/2: p = (1 + (x - t) / 2)_+^2, dp = sqrt(p); shifted by 2, 4 p and 2 sqrt(p)."""

    goal = 4.0
    lowest = -2.0

    def measure(self, x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        torch.sub(x, shift, out=self.part)
        slope = self.whole.relu_().sum(-1, keepdim=True)
        return self.whole.square_().sum(-1, keepdim=True), slope

    def step(self, total: Tensor, slope: Tensor) -> Tensor:
        return torch.sub(total, total.sqrt(), alpha=2.0).div_(slope)

    def weights_(self, x: Tensor, shift: Tensor) -> Tensor:  # noqa: ARG002
        return torch.mul(self.part, 0.25, out=x)


class AnyMapping(RowMapping):
    """Any beta: with u = beta (x - t) >= -1, dp = (1 + u)^(1/beta - 1) and p = (1 + u) dp.

    log1p and exp2 are the pair of functions that takes -1 and -inf at full speed on CPUs.
    """

    padding = -1.0

    def __init__(self, like: Tensor, beta: Beta) -> None:
        super().__init__(like, beta)
        # Never 0, which times log1p(-1) would be NaN.
        if isinstance(beta, float):
            self.exponent: Beta = max(1.0 / beta - 1.0, 1e-7) / math.log(2.0)
        else:
            self.exponent = beta.reciprocal().sub_(1.0).clamp_(min=1e-7).div_(math.log(2.0))
        self.whole_slope, self.part_slope = make_buffer(like, 0.0)

    def measure(self, x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        torch.sub(x, shift, out=self.part).mul_(self.beta).clamp_(min=-1.0)
        torch.log1p(self.whole, out=self.whole_slope).mul_(self.exponent).exp2_()
        slope = self.whole_slope.sum(-1, keepdim=True)
        self.whole_slope.addcmul_(self.whole_slope, self.whole)
        return self.whole_slope.sum(-1, keepdim=True), slope

    def step(self, total: Tensor, slope: Tensor) -> Tensor:
        rate = (total.log() * -self.beta).expm1_().div_(-self.beta)
        return rate.mul_(total).div_(slope)

    def weights_(self, x: Tensor, shift: Tensor) -> Tensor:  # noqa: ARG002
        return x.copy_(self.part_slope)


def backward_(weights: Tensor, gradient: Tensor, beta: Beta) -> tuple[Tensor, Tensor | None]:
    """Overwrite the gradient of the weights by that of the scores; also that of beta, if a tensor.

    dX = g (dY - sum(dY g) / sum g) with g = p^(1 - beta); it is 0 where p is, so hidden keys need
    no mask, and rows without a visible key no care but for the division.
    """
    if isinstance(beta, Tensor):
        return backward_with_beta_(weights, gradient, beta)
    slope = weights_to_slope(weights, beta)
    total = slope.sum(-1, keepdim=True).clamp_(min=torch.finfo(slope.dtype).tiny)
    gradient.mul_(slope)
    mean = gradient.sum(-1, keepdim=True).div_(total)
    return gradient.addcmul_(slope, mean, value=-1.0), None


def weights_to_slope(weights: Tensor, beta: float) -> Tensor:
    """p^(1 - beta) on the support, 0 elsewhere."""
    if beta == 1.0:
        return weights.sign()
    tiny = torch.finfo(weights.dtype).tiny
    if beta == 0.5:
        # sqrt(p), without the slow square root of 0.
        return weights.clamp(min=tiny).rsqrt_().mul_(weights)
    # p p^-beta: exactly 0 where p is.
    return weights.clamp(min=tiny).log2_().mul_(-beta).exp2_().mul_(weights)


def backward_with_beta_(
    weights: Tensor, gradient: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor | None]:
    """`backward_` for a beta that has a gradient, too."""
    tiny = torch.finfo(weights.dtype).tiny
    log = weights.clamp(min=tiny).log2_()
    slope = (log * -beta).exp2_().mul_(weights)
    total = slope.sum(-1, keepdim=True).clamp_(min=tiny)
    gradient.sub_((gradient * slope).sum(-1, keepdim=True).div_(total))
    direct = direct_gradient(weights, slope, log.mul_(math.log(2.0)), beta).mul_(gradient)
    return gradient.mul_(slope), direct.sum_to_size(beta.shape)


def direct_gradient(weights: Tensor, slope: Tensor, log: Tensor, beta: Tensor) -> Tensor:
    """dp/dbeta at a fixed threshold: (p - g) / beta^2 - p l / beta with l = log p; takes `log`.

    For small beta the terms cancel; there it is -p l^2 (1/2 + z/6 + z^2/24 + z^3/120) with
    z = -beta l.
    """
    inverse = beta.reciprocal()
    small = beta < SERIES_BELOW
    if not torch.compiler.is_compiling() and not bool(small.any()):
        return log.mul_(weights).neg_().addcmul_(weights - slope, inverse).mul_(inverse)
    exact = (weights - slope).mul_(inverse).sub_(log * weights).mul_(inverse)
    z = log * -beta
    series = (z / 120.0).add_(1.0 / 24.0).mul_(z).add_(1.0 / 6.0).mul_(z).add_(0.5)
    return torch.where(small, series.mul_(log).mul_(log).mul_(weights).neg_(), exact)


class EntmaxFunction(torch.autograd.Function):
    """The solver with its closed-form gradient, which needs nothing but the weights."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, visible: Tensor | None, beta: Beta) -> Tensor:
        # Empty rows are solved as if open and cleared after: no NaN is ever made.
        if visible is None:
            weights = solve_(scores.clone(memory_format=torch.contiguous_format), beta)
        else:
            rows = visible.any(-1, keepdim=True)
            hidden = scores.masked_fill(~(visible | ~rows), -torch.inf)
            weights = solve_(hidden.contiguous(), beta)
            weights = weights.mul_(rows)
        ctx.fixed_beta = None if isinstance(beta, Tensor) else beta
        ctx.save_for_backward(weights, beta if isinstance(beta, Tensor) else None)
        return weights

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor | None]:
        weights, beta = ctx.saved_tensors
        beta = ctx.fixed_beta if beta is None else beta
        gradient, beta_gradient = backward_(weights, gradients[0].clone(), beta)
        return gradient, None, beta_gradient


def entmax_reference(scores: Tensor, visible: Tensor | None, beta: Beta) -> Tensor:
    """Weights [B, H, Q, K] for scores [B, H, Q, K]; beta = alpha - 1 as number or [H, 1, 1]."""
    weights: Tensor = EntmaxFunction.apply(scores, visible, beta)  # type: ignore[no-untyped-call]
    return weights


entmax = Operation(
    "entmax",
    entmax_reference,
    [Implementation("triton", "kernel in Triton", cuda.entmax, accepts=cuda.refuses_entmax)],
    example=lambda device: ((torch.ones(1, 1, 1, 4, device=device), None, 0.5), {}),
)
