"""The measures of all attention sublayers over a corpus.

Shapes: B batch, H heads, Q queries, K keys.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt.analysis.measures import (
    TEMPERATURES,
    Density,
    HeadCounts,
    Mean,
    attention_entropy,
    count_heads,
    head_density,
    head_diversity,
    unnormalised_sites,
)
from nmt.data.batching import make_batch
from nmt.data.corpus import EncodedCorpus
from nmt.model.observe import Observer, Site, learned_parameters, observe_attention
from nmt.model.transformer import Transformer


@dataclass(frozen=True)
class SiteStatistics:
    """The sums of all measures of one sublayer."""

    counts: HeadCounts
    entropy: Mean  # [H]
    density: Density
    diversity: dict[float | None, Mean]  # by temperature; None for weights that sum to 1

    def __add__(self, other: "SiteStatistics") -> "SiteStatistics":
        return SiteStatistics(
            self.counts + other.counts,
            self.entropy + other.entropy,
            self.density + other.density,
            {key: mean + other.diversity[key] for key, mean in self.diversity.items()},
        )

    def summary(self) -> dict[str, Any]:
        """Plain numbers for JSON: means over the heads, then lists with one number per head.

        The variance is that of a sample; a head that never attends has no entropy.
        """
        null_rate = self.counts.null_rate
        return {
            "sparsity": float(self.counts.sparsity.mean()),
            "null_rate": float(null_rate.mean()),
            "null_rate_variance": float(null_rate.var(correction=min(1, len(null_rate) - 1))),
            "entropy": self.entropy.over_heads(),
            "diversity": {
                "plain" if temperature is None else str(temperature): float(mean.value)
                for temperature, mean in self.diversity.items()
            },
            "heads": {
                "sparsity": self.counts.sparsity.tolist(),
                "null_rate": null_rate.tolist(),
                "entropy": self.entropy.by_head(),
                "density": self.density.counts.tolist(),
            },
        }


def site_statistics(
    weights: Tensor, visible: Tensor, queries: Tensor, temperatures: Iterable[float | None]
) -> SiteStatistics:
    """All measures of weights [B, H, Q, K]."""
    return SiteStatistics(
        count_heads(weights, visible, queries),
        attention_entropy(weights, visible, queries),
        head_density(weights, visible, queries),
        {
            temperature: head_diversity(weights, visible, queries, temperature=temperature)
            for temperature in temperatures
        },
    )


@dataclass
class AttentionStatistics:
    """The sums of all sublayers; each `observer` adds a batch to them."""

    unnormalised: frozenset[Site]
    temperatures: tuple[float, ...] = TEMPERATURES
    sites: dict[Site, SiteStatistics] = field(default_factory=dict)

    def observer(self, source_visible: Tensor, target_visible: Tensor) -> Observer:
        """An observer for one batch; the masks [B, S] and [B, T] are false in the padding."""

        def observe(site: Site, weights: Tensor, visible: Tensor) -> None:
            queries = source_visible if site.type == "encoder_self" else target_visible
            temperatures = self.temperatures if site in self.unnormalised else (None,)
            new = site_statistics(weights, visible, queries, temperatures)
            self.sites[site] = self.sites[site] + new if site in self.sites else new

        return observe

    def summary(self) -> dict[str, dict[str, Any]]:
        """The summaries of all sublayers, by type of attention and `layer_N`."""
        result: dict[str, dict[str, Any]] = {}
        for site, statistics in self.sites.items():
            result.setdefault(site.type, {})[f"layer_{site.layer}"] = statistics.summary()
        return result


def attention_summary(model: Transformer, corpus: EncodedCorpus, *, count: int) -> dict[str, Any]:
    """The measures and learned parameters by type and layer, on the first `count` encoded pairs.

    Head diversity is taken at temperature 1 where weights do not sum to 1.
    """
    device = model.target_embedding.device
    statistics = AttentionStatistics(unnormalised_sites(model), temperatures=(1.0,))
    for start in range(0, count, 16):
        batch = make_batch(corpus, np.arange(start, min(start + 16, count))).to(device)
        observer = statistics.observer(batch.source_visible, batch.target_visible)
        with torch.inference_mode(), observe_attention(model, observer):
            model(batch.source, batch.source_visible, batch.target_input)
    summary = statistics.summary()
    for layers in summary.values():
        for name, layer in layers.items():
            (diversity,) = layer["diversity"].values()
            values = {key: layer[key] for key in ("sparsity", "null_rate", "entropy")}
            values["diversity"] = diversity
            layers[name] = {key: round(value, 6) for key, value in values.items()}
    for site, parameters in learned_parameters(model).items():
        row = summary[site.type][f"layer_{site.layer}"]
        for name, learned in parameters.items():
            for head, value in enumerate(learned.tolist()):
                row[f"{name}_{head}"] = round(value, 6)
    return summary
