"""Mappings from attention scores to attention weights.

`weights` takes scores [B, H, Q, K] in float32 (or float64), `visible`, a boolean mask broadcastable
to them (None: every key is visible), and the values of the learned parameters of the heads, [H]
each, in the order of the kind's row. It returns weights of the same shape. A hidden key has weight
exactly 0 whatever its score; a row without a visible key is all 0 and has no gradient. Weights and
gradients are finite for finite scores of any size.

That is all a mapping needs. One that is `in_place` also offers both halves of its derivative, for
the blockwise attention on CPUs: `weights_` overwrites scores by weights, `gradient_` overwrites the
gradient of the weights by that of the scores and returns that of the parameter, if there is one.
One with a `row_map` can be computed by the kernels in C. A subclass inherits none of these
implementations, because it may compute something else: it declares those that it has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from nmt.errors import require_package
from nmt.ops.entmax import Beta, backward_, entmax, solve_
from nmt.ops.masking import MaskBlock, clear_empty_rows, hide, open_empty_rows
from nmt.ops.native.interface import MOST_K, RowMap

# Unnormalised weights end here, so that their sums, and the squares of these, are finite.
LARGEST_WEIGHT = 1e12


class ScoreMapping:
    """A mapping from scores to weights, and its implementations besides the reference."""

    in_place: bool = False
    is_softmax: bool = False  # torch's fused attention computes it
    traceable: bool = True  # torch.compile can trace it
    block_factor: int = 1  # how much larger than usual the blocks of blockwise attention should be

    def __init_subclass__(cls) -> None:
        for name in ("in_place", "is_softmax", "row_map"):
            if name not in cls.__dict__:
                setattr(cls, name, ScoreMapping.__dict__[name])

    def weights(self, scores: Tensor, visible: Tensor | None, *parameters: Tensor) -> Tensor:
        """Weights [B, H, Q, K]: the definition of the mapping."""
        raise NotImplementedError

    @property
    def row_map(self) -> RowMap | None:
        """The number of the mapping in C."""
        return None

    @property
    def row_parameter(self) -> float:
        """The parameter of the mapping in C where none is learned."""
        return 0.0

    def decoding_parameters(self, learned: Tensor) -> Tensor:
        """The learned parameters [H] as the engine that decodes takes them."""
        return learned

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


@dataclass(frozen=True)
class Softmax(ScoreMapping):
    """exp(score) over its sum."""

    in_place = True
    is_softmax = True

    @property
    def row_map(self) -> RowMap:
        return RowMap.SOFTMAX

    def weights(self, scores: Tensor, visible: Tensor | None, *_parameters: Tensor) -> Tensor:
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


@dataclass(frozen=True)
class Entmax(ScoreMapping):
    """alpha-entmax with a fixed alpha, or with alpha - 1 as the parameter of each head."""

    alpha: float | None  # None: learned
    package: bool = False  # by the `entmax` package instead of our solver

    block_factor = 2  # its search makes many calls, most of them on a number per row

    @property
    def in_place(self) -> bool:  # type: ignore[override]
        return not self.package

    @property
    def traceable(self) -> bool:  # type: ignore[override]
        return not self.package  # the package decides by the data, which a traced graph cannot

    @property
    def row_map(self) -> RowMap | None:
        if self.package:
            return None
        fixed = {2.0: RowMap.SPARSEMAX, 1.5: RowMap.ENTMAX15}
        return RowMap.ENTMAX if self.alpha is None else fixed.get(self.alpha, RowMap.ENTMAX)

    @property
    def row_parameter(self) -> float:
        return 0.0 if self.alpha in (None, 2.0, 1.5) else self.alpha - 1.0

    def decoding_parameters(self, learned: Tensor) -> Tensor:
        # Rounded as alpha, so that models translate to the bit as they always did.
        return (1.0 + learned) - 1.0

    def beta(self, parameter: Tensor | None, dtype: torch.dtype) -> Beta:
        """alpha - 1 as the solver takes it."""
        if parameter is not None:
            return parameter.to(dtype)[:, None, None]
        assert self.alpha is not None
        return self.alpha - 1.0

    def weights(self, scores: Tensor, visible: Tensor | None, *parameters: Tensor) -> Tensor:
        beta = self.beta(parameters[0] if parameters else None, scores.dtype)
        if self.package:
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
        _, grad_beta = backward_(weights, gradient, self.beta(parameter, weights.dtype))
        return None if grad_beta is None else grad_beta.flatten()


def package_entmax(scores: Tensor, visible: Tensor | None, beta: Beta) -> Tensor:
    """alpha-entmax by the `entmax` package, which does not handle rows without a visible key."""
    require_package("entmax", extra="entmax", purpose="`backend: package`")
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


ScoreActivation = Literal["relu", "gelu", "leaky_relu", "squared_relu", "identity"]
# Each is 0 at 0, so that a hidden score set to 0 has weight 0.
SCORE_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "leaky_relu": functional.leaky_relu,
    "squared_relu": lambda x: functional.relu(x).square(),
    "identity": lambda x: x,
}


@dataclass(frozen=True)
class Pointwise(ScoreMapping):
    """activation(score - threshold), each key by itself: rows need not sum to 1."""

    activation: ScoreActivation
    threshold: float | None  # None: learned, the parameter of each head

    @property
    def in_place(self) -> bool:  # type: ignore[override]
        return self.activation == "relu"

    @property
    def row_map(self) -> RowMap:
        return RowMap[self.activation.upper()]

    @property
    def row_parameter(self) -> float:
        return 0.0 if self.threshold is None else self.threshold

    def weights(self, scores: Tensor, visible: Tensor | None, *parameters: Tensor) -> Tensor:
        if parameters:
            scores = scores - parameters[0].to(scores.dtype)[:, None, None]
        elif self.row_parameter != 0.0:
            scores = scores - self.row_parameter
        if visible is not None:
            scores = scores.masked_fill(~visible, 0.0)
        weights = SCORE_ACTIVATIONS[self.activation](scores)
        return weights.clamp(-LARGEST_WEIGHT, LARGEST_WEIGHT)

    def weights_(self, scores: Tensor, mask: MaskBlock | None, parameter: Tensor | None) -> None:
        if parameter is not None:
            scores.sub_(parameter.to(scores.dtype)[:, None, None])
        elif self.row_parameter != 0.0:
            scores.sub_(self.row_parameter)
        scores.clamp_(0.0, LARGEST_WEIGHT)
        if mask is not None:
            mask.zero_(scores)

    def gradient_(
        self, weights: Tensor, gradient: Tensor, parameter: Tensor | None
    ) -> Tensor | None:
        # Nor do weights that end at the largest have a gradient.
        torch.ops.aten.hardtanh_backward.grad_input(
            gradient, weights, 0.0, LARGEST_WEIGHT, grad_input=gradient
        )
        return None if parameter is None else gradient.sum((0, 2, 3)).neg_()


@dataclass(frozen=True)
class TopK(ScoreMapping):
    """Softmax over the k highest scores of a row; ties with the k-th stay in."""

    k: int

    @property
    def row_map(self) -> RowMap:
        return RowMap.TOP_K

    @property
    def row_parameter(self) -> float:
        return float(min(self.k, MOST_K))

    def weights(self, scores: Tensor, visible: Tensor | None, *_parameters: Tensor) -> Tensor:
        if self.k >= scores.shape[-1]:
            return masked_softmax(scores, visible)
        seen = hide(scores.detach(), visible)
        chosen = seen >= seen.topk(self.k, dim=-1).values[..., -1:]
        return masked_softmax(scores, chosen if visible is None else chosen & visible)
