"""Maps from attention scores to attention weights, one module a family.

Every map takes scores [B, H, Q, K] in float32 (or float64), which it may overwrite, and `visible`,
a boolean mask broadcastable to them (None: every key is visible), and returns weights of the same
shape. A hidden key has weight exactly 0 whatever its score; a row without a visible key is all 0.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from nmt.model.entmax import entmax

SMALLEST_BETA = 1e-6  # keeps a learned alpha above 1 in float32, too


def hide(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Scores with -inf at hidden keys."""
    return scores if visible is None else scores.masked_fill(~visible, -torch.inf)


def clear_hidden_rows(weights: Tensor, visible: Tensor | None) -> Tensor:
    """Weights with 0 in the rows that have no visible key."""
    if visible is None:
        return weights
    return weights.masked_fill(~visible.any(-1, keepdim=True), 0.0)


def masked_softmax(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Softmax over the visible keys."""
    if visible is None:
        return torch.softmax(scores, dim=-1)
    rows = visible.any(-1, keepdim=True)
    scores = hide(scores, visible | ~rows)
    return torch.softmax(scores, dim=-1).masked_fill(~rows, 0.0)


class Softmax(nn.Module):
    """exp(score) over its sum."""

    def forward(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        return masked_softmax(scores, visible)


class Entmax(nn.Module):
    """alpha-entmax with a fixed alpha, or one learned per head as alpha = 1 + sigmoid(a)."""

    def __init__(
        self, heads: int, alpha: float | Literal["learned"], backend: Literal["solver", "package"]
    ) -> None:
        super().__init__()
        self.fixed_alpha = None if alpha == "learned" else alpha
        self.backend = backend
        self.raw_alpha = nn.Parameter(torch.empty(heads)) if alpha == "learned" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start a learned alpha at random, around 1.5."""
        if self.raw_alpha is not None:
            nn.init.normal_(self.raw_alpha)

    def beta(self) -> Tensor | float:
        """alpha - 1 in (0, 1]: a number, or [H].

        The sigmoid is squeezed into [SMALLEST_BETA, 1] rather than clamped, so that its gradient
        never vanishes by a cut.
        """
        if self.raw_alpha is None:
            assert self.fixed_alpha is not None
            return self.fixed_alpha - 1.0
        return SMALLEST_BETA + (1.0 - SMALLEST_BETA) * torch.sigmoid(self.raw_alpha.float())

    def alpha(self) -> Tensor | float:
        """alpha in (1, 2]: a number, or [H]."""
        return 1.0 + self.beta()

    def forward(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        beta = self.beta()
        if isinstance(beta, Tensor):
            beta = beta.to(scores.dtype)[:, None, None]
        if self.backend == "solver":
            return entmax(scores, visible, beta)
        return package_entmax(scores, visible, beta)


def package_entmax(scores: Tensor, visible: Tensor | None, beta: Tensor | float) -> Tensor:
    """The same by the `entmax` package, which knows nothing of rows without a visible key."""
    from entmax import entmax15, entmax_bisect, sparsemax

    rows = None if visible is None else visible.any(-1, keepdim=True)
    if visible is not None and rows is not None:
        scores = hide(scores, visible | ~rows)
    if isinstance(beta, float) and beta == 1.0:
        weights = sparsemax(scores, dim=-1)
    elif isinstance(beta, float) and beta == 0.5:
        weights = entmax15(scores, dim=-1)
    else:
        weights = entmax_bisect(scores, 1.0 + beta, dim=-1, n_iter=30)
    return weights if rows is None else weights.masked_fill(~rows, 0.0)


Activation = Literal["relu", "gelu", "leaky_relu", "squared_relu", "identity"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "leaky_relu": functional.leaky_relu,
    "squared_relu": lambda x: functional.relu(x).square(),
    "identity": lambda x: x,
}


class Pointwise(nn.Module):
    """activation(score - threshold), each key by itself: rows need not sum to 1."""

    def __init__(
        self, heads: int, activation: Activation, threshold: float | Literal["learned"]
    ) -> None:
        super().__init__()
        self.activation = activation
        self.fixed_threshold = 0.0 if threshold == "learned" else threshold
        self.threshold = nn.Parameter(torch.empty(heads)) if threshold == "learned" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A learned threshold starts at the paper's, 0."""
        if self.threshold is not None:
            nn.init.zeros_(self.threshold)

    def forward(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        if self.threshold is not None:
            scores = scores - self.threshold.to(scores.dtype)[:, None, None]
        elif self.fixed_threshold != 0.0:
            scores = scores - self.fixed_threshold
        if visible is not None:
            # Before the activation, so that a hidden score of any size meets no gradient.
            scores = scores.masked_fill(~visible, 0.0)
        weights = ACTIVATIONS[self.activation](scores)
        return weights


class TopK(nn.Module):
    """Softmax over the k highest scores of a row; ties with the k-th stay in."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, scores: Tensor, visible: Tensor | None) -> Tensor:
        if self.k >= scores.shape[-1]:
            return masked_softmax(scores, visible)
        hidden = hide(scores.detach(), visible)
        lowest = hidden.topk(self.k, dim=-1).values[..., -1:]
        chosen = hidden >= lowest
        return masked_softmax(scores, chosen if visible is None else chosen & visible)
