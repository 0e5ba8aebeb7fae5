"""Aligns the words of given sentence pairs with one model, in constant memory."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from nmt.analysis.alignment import HeadGrid, all_links, chosen_links
from nmt.analysis.gold import Gold
from nmt.analysis.head_choice import GoldComparison, LinkInformation
from nmt.analysis.norm_weights import Weighting, weight_by_norm
from nmt.analysis.pairs import (
    ANALYSIS_BATCH_TOKENS,
    ANALYSIS_MAX_LENGTH,
    PairAttention,
    PairBatch,
    ReadLine,
    SegmentedPair,
    batch_attention,
    map_pairs,
)
from nmt.checkpoint.model_directory import LoadedModel
from nmt.data.text import BAD_LINES
from nmt.decoding.alignment import AlignmentHead, Links, Sources, links_of
from nmt.decoding.translation import Failure
from nmt.errors import DataError, DivergedError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Unusable:
    """The place of a pair without a result, because it is too long or gives no finite numbers."""

    reason: str


@dataclass(frozen=True)
class Aligner:
    """A model that reads sentence pairs; a `reverse` model translates from target to source.

    All methods take pairs (source, target), and take and return links in this order, for models of
    both directions.
    """

    loaded: LoadedModel
    reverse: bool = False
    batch_tokens: int = ANALYSIS_BATCH_TOKENS
    max_length: int = ANALYSIS_MAX_LENGTH
    weighting: Weighting = "attention"

    @property
    def grid(self) -> HeadGrid:
        """The layers and heads of the model."""
        config = self.loaded.config.model
        return HeadGrid(config.decoder_layers, config.heads)

    def map(
        self, pairs: Iterable[tuple[ReadLine, ReadLine]], reduce: Callable[[PairAttention], Result]
    ) -> Iterator[Result | Unusable]:
        """`reduce` of the cross-attention of each pair that is usable, in order."""
        model = self.loaded.model

        def compute(batch: PairBatch) -> list[Result | Unusable]:
            attentions = batch_attention(model, batch, types=("cross",))
            if self.weighting == "norm":
                attentions = weight_by_norm(model, batch, attentions)
            return [
                reduce(one) if one.finite else Unusable(Failure.NON_FINITE) for one in attentions
            ]

        if self.reverse:
            pairs = ((target, source) for source, target in pairs)
        return map_pairs(
            self.loaded,
            pairs,
            compute,
            Unusable,
            batch_tokens=self.batch_tokens,
            max_length=self.max_length,
        )

    def links(
        self, pairs: Iterable[tuple[ReadLine, ReadLine]], head: AlignmentHead
    ) -> Iterator[Links | Unusable]:
        """The sorted links of each pair, in order."""

        def links(seen: PairAttention) -> Links:
            found = links_of(chosen_links(seen, head))
            if self.reverse:
                found = tuple((source, target) for target, source in found)
            return tuple(sorted(found))

        return self.map(pairs, links)

    def link_information(self, pairs: Iterable[tuple[ReadLine, ReadLine]]) -> LinkInformation:
        """How informative the links of each head are."""
        information = LinkInformation(self.grid)
        for seen in self.map(pairs, pair_and_links):
            if not isinstance(seen, Unusable):
                information.add(*seen)
        return information

    def evaluate(self, pairs: Iterable[tuple[ReadLine, ReadLine]], gold: Gold) -> GoldComparison:
        """The links of every head against the gold links."""
        comparison = GoldComparison(self.grid, gold, reverse=self.reverse)
        count = 0
        for seen in self.map(pairs, pair_and_links):
            count += 1
            if isinstance(seen, Unusable):
                if seen.reason == Failure.NON_FINITE:
                    raise DivergedError(f"pair {count}: not aligned, {seen.reason}")
                if seen.reason in BAD_LINES:
                    raise DataError(f"pair {count}: {seen.reason}; gold links need every pair")
                raise DataError(
                    f"pair {count} has more than {self.max_length} subwords on a side, and gold "
                    "links need every pair; give a higher --max-length"
                )
            if count <= len(gold.links):
                comparison.add(*seen)
        if count != len(gold.links):
            raise DataError(
                f"{gold.path}: expected a line for each of {count} pairs, got {len(gold.links)}"
            )
        return comparison


def pair_and_links(attention: PairAttention) -> tuple[SegmentedPair, Sources]:
    """A pair and its links by every head, [L, H + 1, 2, W]."""
    return attention.pair, all_links(attention)
