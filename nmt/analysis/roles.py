"""The roles of heads: which class of keys, if any, a head gives most of its weight to.

The score of a role is the share of a query's weight that goes to the keys of the role, mean over
the queries that attend to something and see both such a key and another one. A head has a role if
its score is at least `THRESHOLD`. Alignment, of cross-attention, has a score of its own: see
`AlignmentRoles.scores`.

Shapes: B sentences, H heads, L layers, Q queries, K keys.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nmt.analysis.head_choice import LinkInformation, Rates
from nmt.analysis.key_classes import (
    KEY_CLASSES,
    SELF,
    BatchPositions,
    positions_at,
    share_of_mass,
)
from nmt.analysis.measures import Mean, real_weights
from nmt.analysis.pairs import PairBatch, SegmentedPair
from nmt.data.codec import Segmentation
from nmt.decoding.alignment import Sources
from nmt.model.observe import Observer, Site

THRESHOLD = 0.5  # more than half of the weight, as a mean
# On 224 pairs of the Hansards the gold links have a score of 0.12, gold links of which half are
# replaced at random -0.11, a diagonal -0.16 and random links -0.27. More text gives higher scores.
ALIGNMENT_THRESHOLD = 0.05
ALIGNMENT_ROLE = "alignment"
EXAMPLES = 3  # sentences per head and role
EXAMPLE_QUERIES = 3  # a sentence with fewer queries that count is no example
# By name of a role: those that explain it. A head that attends to all punctuation marks attends to
# question marks, too, and one that attends to the previous subword often stays within the word.
ROLES: dict[str, tuple[str, ...]] = {
    "sink": (),
    "previous": (),
    "next": (),
    "itself": (),
    "same word": ("previous", "next"),
    "punctuation": (),
    "question mark": ("punctuation",),
}


@dataclass(frozen=True, order=True)
class Example:
    """A sentence in which a head has its role; the best one compares as the largest."""

    score: float
    negative_index: int  # of equal scores the first sentence is the best
    text: str = field(compare=False)

    def summary(self) -> dict[str, Any]:
        """Plain numbers for JSON; lines count from 1."""
        return {"line": 1 - self.negative_index, "score": self.score, "text": self.text}


@dataclass
class ClassShares:
    """The mean share [H] of one class of keys in one sublayer, and its best sentences per head."""

    mean: Mean
    examples: list[list[Example]]  # [H][at most EXAMPLES], as heaps

    @classmethod
    def empty(cls, heads: int) -> "ClassShares":
        """Nothing seen yet."""
        zeros = torch.zeros(heads)
        return cls(Mean(zeros.double(), zeros.long()), [[] for _ in range(heads)])

    def add(
        self,
        shares: Tensor,
        counts: Tensor,
        pairs: Sequence[SegmentedPair],
        sides: Sequence[Segmentation],
    ) -> None:
        """Add the shares [B, H, Q] of the queries that count; `sides` are those of the queries."""
        totals, numbers = shares.sum(dim=-1).cpu(), counts.sum(dim=-1).cpu()
        self.mean += Mean(totals.sum(dim=0), numbers.sum(dim=0))
        means = totals / numbers.clamp(min=1)
        good = (means >= THRESHOLD) & (numbers >= EXAMPLE_QUERIES)
        for row, head in good.nonzero().tolist():
            text = " ".join(sides[row].words)
            example = Example(round(float(means[row, head]), 6), -pairs[row].index, text)
            heap = self.examples[head]
            if len(heap) < EXAMPLES:
                heapq.heappush(heap, example)
            else:
                heapq.heappushpop(heap, example)


@dataclass
class RoleStatistics:
    """The shares of all classes of keys in all sublayers; each `observer` adds a batch."""

    sites: dict[Site, dict[str, ClassShares]] = field(default_factory=dict)

    def observer(self, batch: PairBatch, positions: BatchPositions) -> Observer:
        """An observer for one batch."""

        def observe(site: Site, weights: Tensor, visible: Tensor) -> None:
            on_source = site.type == "encoder_self"
            queries = batch.source_visible if on_source else batch.target_visible
            real = real_weights(weights[:, :1], visible, queries)
            sizes = weights.abs().masked_fill(~real, 0.0).double()
            total = sizes.sum(dim=-1)
            sides = [pair.source if on_source else pair.target for pair in batch.pairs]
            of_site = self.sites.setdefault(site, {})
            for name, row in KEY_CLASSES.items():
                if site.type in row.types:
                    keys = row.keys(positions.keys(site.type))
                    if site.type in SELF and not row.own:
                        keys = keys & ~positions_at(positions.keys(site.type), 0)
                    shares, counts = share_of_mass(sizes, total, real[:, 0], keys)
                    sums = of_site.setdefault(name, ClassShares.empty(weights.shape[1]))
                    sums.add(shares, counts, batch.pairs, sides)

        return observe

    def add_to(self, statistics: dict[str, Any]) -> None:
        """Write `shares` by class, and `roles`, into the summary of each layer."""
        for site, classes in self.sites.items():
            layer = statistics[site.type][f"layer_{site.layer}"]
            layer["shares"] = {
                name: sums.mean.by_head()
                for name, sums in classes.items()
                if int(sums.mean.count.max()) > 0
            }
            layer["roles"] = found_roles(classes)


def found_roles(classes: dict[str, ClassShares]) -> list[dict[str, Any]]:
    """The roles of the heads of one sublayer, by head."""
    roles = []
    for head in range(len(next(iter(classes.values())).examples)):
        scores = {name: float(classes[name].mean.value[head]) for name in ROLES if name in classes}
        held = {name for name, score in scores.items() if score >= THRESHOLD}
        for name in sorted(held, key=lambda name: -scores[name]):
            if held.isdisjoint(ROLES[name]):
                examples = sorted(classes[name].examples[head], reverse=True)
                roles.append(role(head, name, scores[name], THRESHOLD, examples))
    return roles


def role(
    head: int, name: str, score: float, threshold: float, examples: Iterable[Example]
) -> dict[str, Any]:
    """A role that was found, as plain numbers for JSON."""
    return {
        "head": head,
        "role": name,
        "score": score,
        "threshold": threshold,
        "examples": [example.summary() for example in examples],
    }


@dataclass
class AlignmentRoles:
    """How well the links of each head of cross-attention tell the source word of a target word."""

    information: LinkInformation
    pairs: list[SegmentedPair] = field(default_factory=list)
    source_words: Counter[str] = field(default_factory=Counter)

    def add(self, pair: SegmentedPair, words: Sources) -> None:
        """Add the links of one pair, words [L, H + 1, 2, W]."""
        self.information.add(pair, words)
        self.pairs.append(pair)
        self.source_words.update(word.casefold() for word in pair.source.words)

    def scores(self) -> Rates:
        """[L, H + 1, 2] the information of a link, as a share of what there is to know.

        It is divided by the entropy of the source words: 0 for links by chance, and near 1 if a
        target word determines its source word.
        """
        counts = np.array(list(self.source_words.values()), dtype=np.float64)
        shares = counts / max(counts.sum(), 1.0)
        entropy = float(-(shares * np.log(shares)).sum()) if len(shares) else 0.0
        found: Rates = self.information.scores() / (entropy or 1.0)
        return found

    def add_to(self, statistics: dict[str, Any]) -> None:
        """Write the share `alignment` and the heads that align into the summary of each layer."""
        scores = self.scores()
        heads = self.information.grid.heads
        for number in range(self.information.grid.layers):
            layer = statistics["cross"][f"layer_{number}"]
            best = scores[number, :heads].max(axis=-1)
            layer["shares"][ALIGNMENT_ROLE] = best.tolist()
            for head in np.flatnonzero(best >= ALIGNMENT_THRESHOLD):
                step = int(scores[number, head].argmax())
                examples = self.examples((number, int(head), step))
                found = role(
                    int(head), ALIGNMENT_ROLE, float(best[head]), ALIGNMENT_THRESHOLD, examples
                )
                layer["roles"].append(found)
            layer["roles"].sort(key=lambda found: found["head"])

    def examples(self, place: tuple[int, int, int]) -> list[Example]:
        """The sentences whose links by one head are most informative, in nats per word."""
        values = self.information.by_sentence(place)
        examples = [
            Example(round(float(value), 6), -pair.index, " ".join(pair.target.words))
            for value, pair in zip(values, self.pairs, strict=True)
            if len(pair.target.words) >= EXAMPLE_QUERIES
        ]
        return heapq.nlargest(EXAMPLES, examples)
