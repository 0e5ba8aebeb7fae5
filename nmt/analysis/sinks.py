"""Sparsity, entropy and diversity without sinks, and the null rate of whole layers.

Heads that have nothing to look for often attend to the end symbol, the first token or punctuation
(footnote 3 of the paper). These keys are left out here: weights that sum to 1 are divided by what
remains, and a query that attended to nothing else counts as null.

Shapes: B sentences, H heads, Q queries, K keys.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from nmt.analysis.key_classes import KEY_CLASSES, SINKS, BatchPositions
from nmt.analysis.measures import (
    HeadCounts,
    Mean,
    attention_entropy,
    count_heads,
    head_diversity,
)
from nmt.analysis.pairs import PairBatch
from nmt.model.observe import Observer, Site


@dataclass(frozen=True)
class SinkFreeSums:
    """The measures of one sublayer without its sinks, and the counts of its layer attention."""

    counts: HeadCounts
    entropy: Mean  # [H]
    diversity: Mean
    layer: HeadCounts  # of the mean of the heads, with sinks

    def __add__(self, other: "SinkFreeSums") -> "SinkFreeSums":
        return SinkFreeSums(
            self.counts + other.counts,
            self.entropy + other.entropy,
            self.diversity + other.diversity,
            self.layer + other.layer,
        )


@dataclass
class SinkFreeStatistics:
    """The sums of all sublayers; each `observer` adds a batch to them."""

    unnormalised: frozenset[Site]
    sites: dict[Site, SinkFreeSums] = field(default_factory=dict)

    def observer(self, batch: PairBatch, positions: BatchPositions) -> Observer:
        """An observer for one batch."""

        def observe(site: Site, weights: Tensor, visible: Tensor) -> None:
            queries = batch.source_visible if site.type == "encoder_self" else batch.target_visible
            keys = positions.keys(site.type)
            kept = visible
            for name in SINKS:
                kept = kept & ~KEY_CLASSES[name].keys(keys)[:, None]
            layer = count_heads(weights.mean(dim=1, keepdim=True), visible, queries)
            temperature = 1.0 if site in self.unnormalised else None
            rest = weights if site in self.unnormalised else normalised(weights, kept)
            new = SinkFreeSums(
                count_heads(rest, kept, queries),
                attention_entropy(rest, kept, queries),
                head_diversity(rest, kept, queries, temperature=temperature),
                layer,
            )
            self.sites[site] = self.sites[site] + new if site in self.sites else new

        return observe

    def add_to(self, statistics: dict[str, Any]) -> None:
        """Write `without_sinks` and `layer_null_rate` into the summary of each layer."""
        for site, sums in self.sites.items():
            layer = statistics[site.type][f"layer_{site.layer}"]
            layer["layer_null_rate"] = float(sums.layer.null_rate.mean())
            layer["without_sinks"] = {
                "sparsity": float(sums.counts.sparsity.mean()),
                "entropy": sums.entropy.over_heads(),
                "diversity": float(sums.diversity.value),
            }


def normalised(weights: Tensor, kept: Tensor) -> Tensor:
    """Weights [B, H, Q, K] in float64 that sum to 1 over the kept keys, or to 0 without any."""
    rest = weights.double().masked_fill(~kept, 0.0)
    total = rest.sum(dim=-1, keepdim=True)
    return rest / total.masked_fill(total == 0, 1.0)
