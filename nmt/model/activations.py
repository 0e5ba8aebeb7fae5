"""Maps from attention scores to attention weights, one module a family.

Every map's `forward` takes scores [B, H, Q, K] in float32 (or float64) and `visible`, a boolean
mask broadcastable to them (None: every key is visible), and returns weights of the same shape. A
hidden key has weight exactly 0 whatever its score; a row without a visible key is all 0.

A map that is `in_place` also offers the two halves of its derivative by hand, for the blockwise
attention on CPUs: `weights_` overwrites scores by weights, `gradient_` overwrites the gradient of
the weights by that of the scores and returns that of `parameter`, if the map has one.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from nmt.model.entmax import Beta, entmax, pull_back_, solve_
from nmt.model.masking import MaskBlock, clear_empty_rows, hide, open_empty_rows
from nmt.native.interface import MOST_K, RowMap

SMALLEST_BETA = 1e-6  # keeps a learned alpha above 1 in float32, too
# Unnormalised weights end here, so that their sums, and the squares of these, are finite.
LARGEST_WEIGHT = 1e12


class ScoreMap(nn.Module):
    """What the maps have in common; `in_place` says whether the last three methods exist."""

    in_place: bool = False
    block_factor: int = 1  # how much larger than usual its blocks should be

    def forward(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        """Weights [B, H, Q, K]."""
        raise NotImplementedError

    def parameter(self) -> Tensor | None:
        """What the map has to learn, a number a head: [H]."""
        return None

    def row_map(self) -> tuple[RowMap, float | Tensor] | None:
        """The map as the kernels know it, with its parameter: a number, or one a head [H]."""
        return None

    def weights_(self, scores: Tensor, mask: MaskBlock | None, parameter: Tensor | None) -> None:
        """Overwrite scores by weights."""
        raise NotImplementedError

    def gradient_(
        self, weights: Tensor, gradient: Tensor, parameter: Tensor | None
    ) -> Tensor | None:
        """Overwrite the weights' gradient by the scores'; returns the parameter's, [H]."""
        raise NotImplementedError


def masked_softmax(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Softmax over the visible keys."""
    weights = torch.softmax(hide(scores, open_empty_rows(visible)), dim=-1)
    return clear_empty_rows(weights, visible)


class Softmax(ScoreMap):
    """exp(score) over its sum."""

    in_place = True

    def row_map(self) -> tuple[RowMap, float | Tensor]:
        return RowMap.SOFTMAX, 0.0

    def forward(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        return masked_softmax(scores, visible)

    def weights_(self, scores: Tensor, mask: MaskBlock | None, _parameter: Tensor | None) -> None:
        if mask is not None:
            mask.hide_(scores)
        torch.ops.aten._softmax.out(scores, -1, False, out=scores)
        if mask is not None:
            mask.clear_empty_rows_(scores)

    def gradient_(self, weights: Tensor, gradient: Tensor, _parameter: Tensor | None) -> None:
        torch.ops.aten._softmax_backward_data.out(
            gradient, weights, -1, weights.dtype, grad_input=gradient
        )


class Entmax(ScoreMap):
    """alpha-entmax with a fixed alpha, or one learned per head as alpha = 1 + sigmoid(a)."""

    block_factor = 2  # its search makes many calls, most of them on a number a row

    def __init__(
        self, heads: int, alpha: float | Literal["learned"], backend: Literal["solver", "package"]
    ) -> None:
        super().__init__()
        self.fixed_alpha = None if alpha == "learned" else alpha
        self.backend = backend
        self.in_place = backend == "solver"
        self.raw_alpha = nn.Parameter(torch.empty(heads)) if alpha == "learned" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start a learned alpha at random, around 1.5."""
        if self.raw_alpha is not None:
            nn.init.normal_(self.raw_alpha)

    def parameter(self) -> Tensor | None:
        """A learned alpha - 1, in (0, 1], [H].

        The sigmoid is squeezed into [SMALLEST_BETA, 1] rather than clamped, so that no cut
        stops its gradient.
        """
        if self.raw_alpha is None:
            return None
        return SMALLEST_BETA + (1.0 - SMALLEST_BETA) * torch.sigmoid(self.raw_alpha)

    def row_map(self) -> tuple[RowMap, float | Tensor] | None:
        if self.backend == "package":
            return None
        fixed = {2.0: RowMap.SPARSEMAX, 1.5: RowMap.ENTMAX15}
        if self.fixed_alpha in fixed:
            return fixed[self.fixed_alpha], 0.0
        return RowMap.ENTMAX, self.alpha() - 1.0

    def alpha(self) -> Tensor | float:
        """alpha in (1, 2]: a number, or [H]."""
        learned = self.parameter()
        if learned is not None:
            return 1.0 + learned
        assert self.fixed_alpha is not None
        return self.fixed_alpha

    def beta(self, parameter: Tensor | None, dtype: torch.dtype) -> Beta:
        """alpha - 1 as the solver takes it."""
        if parameter is not None:
            return parameter.to(dtype)[:, None, None]
        assert self.fixed_alpha is not None
        return self.fixed_alpha - 1.0

    def forward(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        beta = self.beta(self.parameter(), scores.dtype)
        if self.backend == "package":
            return package_entmax(scores, visible, beta)
        return entmax(scores, visible, beta)

    def weights_(self, scores: Tensor, mask: MaskBlock | None, parameter: Tensor | None) -> None:
        if mask is not None:
            mask.hide_(scores)
        solve_(scores, self.beta(parameter, scores.dtype))
        if mask is not None:
            mask.clear_empty_rows_(scores)

    def gradient_(
        self, weights: Tensor, gradient: Tensor, parameter: Tensor | None
    ) -> Tensor | None:
        _, beta_gradient = pull_back_(weights, gradient, self.beta(parameter, weights.dtype))
        return None if beta_gradient is None else beta_gradient.flatten()


def package_entmax(scores: Tensor, visible: Tensor | None, beta: Beta) -> Tensor:
    """The same by the `entmax` package, which knows nothing of rows without a visible key."""
    from entmax import entmax15, entmax_bisect, sparsemax

    scores = hide(scores, open_empty_rows(visible))
    # Its bisection fails on scores beyond about 1e7 unless the highest is 0.
    scores = scores - scores.detach().amax(-1, keepdim=True)
    weights: Tensor
    if isinstance(beta, float) and beta == 1.0:
        weights = sparsemax(scores, dim=-1)
    elif isinstance(beta, float) and beta == 0.5:
        weights = entmax15(scores, dim=-1)
    else:
        steps = 50 if scores.dtype == torch.float64 else 25  # halvings until the bits run out
        weights = entmax_bisect(scores, 1.0 + beta, dim=-1, n_iter=steps)
    return clear_empty_rows(weights, visible)


Activation = Literal["relu", "gelu", "leaky_relu", "squared_relu", "identity"]
# Each is 0 at 0, so that a hidden score set to 0 has weight 0.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "leaky_relu": functional.leaky_relu,
    "squared_relu": lambda x: functional.relu(x).square(),
    "identity": lambda x: x,
}


class Pointwise(ScoreMap):
    """activation(score - threshold), each key by itself: rows need not sum to 1."""

    def __init__(
        self, heads: int, activation: Activation, threshold: float | Literal["learned"]
    ) -> None:
        super().__init__()
        self.activation = activation
        self.in_place = activation == "relu"
        self.fixed_threshold = 0.0 if threshold == "learned" else threshold
        self.threshold = nn.Parameter(torch.empty(heads)) if threshold == "learned" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A learned threshold starts at the paper's, 0."""
        if self.threshold is not None:
            nn.init.zeros_(self.threshold)

    def parameter(self) -> Tensor | None:
        return self.threshold

    def row_map(self) -> tuple[RowMap, float | Tensor]:
        threshold = self.fixed_threshold if self.threshold is None else self.threshold
        return RowMap[self.activation.upper()], threshold

    def forward(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        if self.threshold is not None:
            scores = scores - self.threshold.to(scores.dtype)[:, None, None]
        elif self.fixed_threshold != 0.0:
            scores = scores - self.fixed_threshold
        if visible is not None:
            scores = scores.masked_fill(~visible, 0.0)
        weights = ACTIVATIONS[self.activation](scores)
        return weights.clamp(-LARGEST_WEIGHT, LARGEST_WEIGHT)

    def weights_(self, scores: Tensor, mask: MaskBlock | None, parameter: Tensor | None) -> None:
        if parameter is not None:
            scores.sub_(parameter.to(scores.dtype)[:, None, None])
        elif self.fixed_threshold != 0.0:
            scores.sub_(self.fixed_threshold)
        scores.clamp_(0.0, LARGEST_WEIGHT)
        if mask is not None:
            mask.zero_(scores)

    def gradient_(
        self, weights: Tensor, gradient: Tensor, parameter: Tensor | None
    ) -> Tensor | None:
        torch.ops.aten.threshold_backward.grad_input(gradient, weights, 0, grad_input=gradient)
        return None if parameter is None else gradient.sum((0, 2, 3)).neg_()


class TopK(ScoreMap):
    """Softmax over the k highest scores of a row; ties with the k-th stay in."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def row_map(self) -> tuple[RowMap, float | Tensor]:
        return RowMap.TOP_K, float(min(self.k, MOST_K))

    def forward(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        if self.k >= scores.shape[-1]:
            return masked_softmax(scores, visible)
        seen = hide(scores.detach(), visible)
        chosen = seen >= seen.topk(self.k, dim=-1).values[..., -1:]
        return masked_softmax(scores, chosen if visible is None else chosen & visible)
