"""Measures of attention weights, as sums that can be added over any number of batches.

Every measure is a function of the weights [B, H, Q, K], of `visible`, a boolean mask broadcastable
to them, and of `queries` [B, Q], false in the padding. Hidden keys and padding never count, nor
does a query without a visible key. The end token of a sentence is a key and a query like any other.
Entropies are in nats and computed in float64.

Shapes: B batch, H heads, Q queries, K keys, N numbers of keys.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from nmt.model.observe import Site
from nmt.model.transformer import Transformer
from nmt.ops.score_mappings import masked_softmax

TEMPERATURES = (1.0, 0.5, 0.25, 0.1)  # for the weights of ReLA, as in the paper


@dataclass(frozen=True)
class HeadCounts:
    """The numbers of visible and zero weights, and of all and null queries, per head."""

    visible: Tensor  # [H] weights that are not masked
    zero: Tensor  # [H] visible weights that are exactly 0
    queries: Tensor  # [H]
    null: Tensor  # [H] queries whose weights are all 0

    @property
    def sparsity(self) -> Tensor:
        """The share [H] of the visible weights that are exactly 0 (Figure 3)."""
        return self.zero.double() / self.visible.clamp(min=1)

    @property
    def null_rate(self) -> Tensor:
        """The share [H] of the queries that attend to nothing (Figure 6)."""
        return self.null.double() / self.queries.clamp(min=1)

    def __add__(self, other: "HeadCounts") -> "HeadCounts":
        return HeadCounts(
            self.visible + other.visible,
            self.zero + other.zero,
            self.queries + other.queries,
            self.null + other.null,
        )


@dataclass(frozen=True)
class Mean:
    """A mean over queries: the sum so far in float64, and the number of queries."""

    total: Tensor
    count: Tensor

    @property
    def value(self) -> Tensor:
        """The mean so far; 0 without queries."""
        return self.total / self.count.clamp(min=1)

    def by_head(self) -> list[float | None]:
        """The means of a [H] mean as plain numbers; None for a head without queries."""
        pairs = zip(self.value.tolist(), self.count.tolist(), strict=True)
        return [value if count else None for value, count in pairs]

    def over_heads(self) -> float:
        """The mean over the heads of a [H] mean that have queries; 0 without any."""
        return float(self.value.sum() / (self.count > 0).sum().clamp(min=1))

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.count + other.count)


@dataclass(frozen=True)
class Density:
    """The number of keys that the queries of each head attend to, as a histogram."""

    counts: Tensor  # [H, N] queries with n weights that are not 0

    def __add__(self, other: "Density") -> "Density":
        width = max(self.counts.shape[1], other.counts.shape[1])
        mine, others = (
            functional.pad(counts, (0, width - counts.shape[1]))
            for counts in (self.counts, other.counts)
        )
        return Density(mine + others)


def real_weights(weights: Tensor, visible: Tensor, queries: Tensor) -> Tensor:
    """The mask [B, H, Q, K] of weights between a query that is not padding and a visible key."""
    return (queries[:, None, :, None] & visible).expand(weights.shape)


def count_heads(weights: Tensor, visible: Tensor, queries: Tensor) -> HeadCounts:
    """The counts behind sparsity rate and null rate."""
    real = real_weights(weights, visible, queries)
    used = (weights != 0) & real
    has_key = real.any(dim=-1)
    num_visible = real.sum(dim=(0, 2, 3))
    return HeadCounts(
        visible=num_visible,
        zero=num_visible - used.sum(dim=(0, 2, 3)),
        queries=has_key.sum(dim=(0, 2)),
        null=(has_key & ~used.any(dim=-1)).sum(dim=(0, 2)),
    )


def head_density(weights: Tensor, visible: Tensor, queries: Tensor) -> Density:
    """The numbers of queries of each head with 0, 1, 2, ... non-zero weights."""
    real = real_weights(weights, visible, queries)
    used = ((weights != 0) & real).sum(dim=-1)  # [B, H, Q]
    one_hot = functional.one_hot(used, num_classes=weights.shape[-1] + 1)
    counts = (one_hot * real.any(dim=-1)[..., None]).sum(dim=(0, 2))
    most = int(counts.any(dim=0).nonzero().max()) if bool(counts.any()) else 0
    return Density(counts[:, : most + 1])


def attention_entropy(weights: Tensor, visible: Tensor, queries: Tensor) -> Mean:
    """The entropy [H] of the weights divided by their sum, over the queries that are not null.

    A null query has no distribution. If it counted as 0, a head that is null most of the time
    would seem focused. Negative weights (leaky ReLU and others) count by their absolute value.
    """
    real = real_weights(weights, visible, queries)
    size = weights.double().abs().masked_fill(~real, 0.0)
    total = size.sum(dim=-1)
    attends = total > 0
    shares = size / total.masked_fill(~attends, 1.0)[..., None]
    entropies = torch.special.entr(shares).sum(dim=-1)
    return Mean(entropies.sum(dim=(0, 2)), attends.sum(dim=(0, 2)))


def distributions(
    weights: Tensor, visible: Tensor, temperature: float | None
) -> tuple[Tensor, Tensor]:
    """Probabilities [B, H, Q, K] of the keys, and [B, H, Q] of a dummy position for null queries.

    Without a temperature the weights already sum to 1. With one, the probabilities are the softmax
    of weight^temperature over the visible keys, in which a weight of 0 still has a share, as in the
    paper; negative weights keep their sign in the power. A null query has all its probability on
    the dummy position.
    """
    values = weights.double()
    null = ~((values != 0) & visible).any(dim=-1)
    if temperature is not None:
        powers = values.sign() * values.abs().pow(temperature)
        values = masked_softmax(powers, visible.expand(values.shape))
    return values.masked_fill(~visible | null[..., None], 0.0), null.double()


def head_diversity(
    weights: Tensor, visible: Tensor, queries: Tensor, *, temperature: float | None
) -> Mean:
    """The generalised Jensen-Shannon divergence of the heads, H(mean p) - mean H(p).

    `temperature` is None for kinds whose weights sum to 1 (see `distributions`). The value lies
    between 0, if all heads agree, and the logarithm of the number of heads.
    """
    shares, dummy = distributions(weights, visible, temperature)
    of_mean = torch.special.entr(shares.mean(dim=1)).sum(dim=-1)
    of_mean = of_mean + torch.special.entr(dummy.mean(dim=1))
    mean_of = torch.special.entr(shares).sum(dim=-1).mean(dim=1)  # the dummy adds 0
    real = real_weights(weights, visible, queries)[:, 0].any(dim=-1)
    divergence = (of_mean - mean_of).masked_fill(~real, 0.0)
    return Mean(divergence.sum(), real.sum())


def unnormalised_sites(model: Transformer) -> frozenset[Site]:
    """The sublayers whose weights need not sum to 1."""
    return frozenset(
        site
        for site, attention in model.attentions().items()
        if not attention.core.kind.sums_to_one
    )


def nullable_sites(model: Transformer) -> frozenset[Site]:
    """The sublayers where a query can attend to nothing."""
    return frozenset(
        site
        for site, attention in model.attentions().items()
        if attention.core.kind.can_attend_to_nothing
    )
