"""Counts over attention weights, head by head, summed up while sentences stream by.

Shapes: B batch, H heads, Q queries, K keys.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt.data.batching import Batch
from nmt.data.corpus import EncodedCorpus
from nmt.model.observe import Site, learned_alphas, observe_attention
from nmt.model.transformer import Transformer


@dataclass
class HeadCounts:
    """Sums over the real (query, key) pairs of one attention sublayer, one number a head."""

    visible: Tensor  # [H] weights a query may use
    zero: Tensor  # [H] of them exactly 0
    queries: Tensor  # [H]
    null: Tensor  # [H] queries whose every weight is 0

    @property
    def sparsity(self) -> Tensor:
        """[H] share of the visible weights that are exactly 0 (Figure 3)."""
        return self.zero / self.visible.clamp(min=1)

    @property
    def null_rate(self) -> Tensor:
        """[H] share of the queries that attend to nothing (Figure 6)."""
        return self.null / self.queries.clamp(min=1)

    def __add__(self, other: "HeadCounts") -> "HeadCounts":
        return HeadCounts(
            self.visible + other.visible,
            self.zero + other.zero,
            self.queries + other.queries,
            self.null + other.null,
        )


def count_heads(weights: Tensor, visible: Tensor, queries: Tensor) -> HeadCounts:
    """Counts of weights [B, H, Q, K]; visible is broadcastable to them, queries [B, Q] are real."""
    real = queries[:, None, :, None] & visible.expand(weights.shape)
    zero = (weights == 0) & real
    has_key = real.any(dim=-1)
    null = has_key & ~((weights != 0) & real).any(dim=-1)
    return HeadCounts(
        real.sum(dim=(0, 2, 3)),
        zero.sum(dim=(0, 2, 3)),
        has_key.sum(dim=(0, 2)),
        null.sum(dim=(0, 2)),
    )


@dataclass
class AttentionCounts:
    """An observer that adds up the counts of every sublayer."""

    sites: dict[Site, HeadCounts] = field(default_factory=dict)

    def add(self, model: Transformer, batch: Batch) -> None:
        """Run the model on a batch with the given targets, and count."""

        def observer(site: Site, weights: Tensor, visible: Tensor) -> None:
            queries = batch.source_visible if site.type == "encoder_self" else batch.target_visible
            counts = count_heads(weights, visible, queries)
            self.sites[site] = self.sites[site] + counts if site in self.sites else counts

        with torch.inference_mode(), observe_attention(model, observer):
            model(batch.source, batch.source_visible, batch.target_input)


def attention_summary(model: Transformer, corpus: EncodedCorpus, *, count: int) -> dict[str, Any]:
    """Sparsity, null rate and learned alphas by type and layer, on the first `count` pairs."""
    device = next(model.parameters()).device
    counts = AttentionCounts()
    for start in range(0, count, 16):
        indices = np.arange(start, min(start + 16, count))
        counts.add(model, corpus.gather(indices).to(device))
    summary: dict[str, Any] = {}
    for site, heads in counts.sites.items():
        rows = summary.setdefault(site.type, {})
        rows[f"layer_{site.layer}"] = {
            "sparsity": round(float(heads.sparsity.mean()), 6),
            "null_rate": round(float(heads.null_rate.mean()), 6),
        }
    for site, alphas in learned_alphas(model).items():
        for head, alpha in enumerate(alphas.tolist()):
            summary[site.type][f"layer_{site.layer}"][f"alpha_{head}"] = round(alpha, 6)
    return summary
