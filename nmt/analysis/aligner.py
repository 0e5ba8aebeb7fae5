"""Aligns the words of given sentence pairs with one model, in memory that is flat."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nmt.analysis.alignment import HeadGrid, Words, all_links, chosen_links, links_of
from nmt.analysis.gold import GoldLinks, check_gold
from nmt.analysis.head_choice import GridCounts, LinkInformation
from nmt.analysis.pairs import (
    BATCH_TOKENS,
    MAX_LENGTH,
    PairAttention,
    PairBatch,
    SegmentedPair,
    batch_attention,
    map_pairs,
)
from nmt.analysis.symmetrization import Links
from nmt.checkpoint.model_directory import LoadedModel
from nmt.decoding.alignment import AlignmentHead
from nmt.errors import DataError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Aligner:
    """A model that reads pairs; one that is `reverse` translates from target to source.

    All methods take pairs (source, target), and gold and give links in this order, whichever way
    the model translates.
    """

    loaded: LoadedModel
    reverse: bool = False
    batch_tokens: int = BATCH_TOKENS
    max_length: int = MAX_LENGTH

    @property
    def grid(self) -> HeadGrid:
        """The layers and heads of the model."""
        config = self.loaded.config.model
        return HeadGrid(config.decoder_layers, config.heads)

    def map(
        self, pairs: Iterable[tuple[str, str]], reduce: Callable[[PairAttention], Result]
    ) -> Iterator[Result | None]:
        """`reduce` of the cross-attention of each pair in order; None for one that is too long."""
        model = self.loaded.model

        def compute(batch: PairBatch) -> list[Result | None]:
            return [reduce(one) for one in batch_attention(model, batch, types=("cross",))]

        if self.reverse:
            pairs = ((target, source) for source, target in pairs)
        return map_pairs(
            self.loaded.codec,
            pairs,
            compute,
            lambda _problem: None,
            device=model.target_embedding.device,
            batch_tokens=self.batch_tokens,
            max_length=self.max_length,
        )

    def links(
        self, pairs: Iterable[tuple[str, str]], head: AlignmentHead
    ) -> Iterator[Links | None]:
        """The links of each pair in order, sorted; None for a pair that is too long."""
        return self.map(
            pairs, lambda seen: links_of(chosen_links(seen, head), reverse=self.reverse)
        )

    def link_information(self, pairs: Iterable[tuple[str, str]]) -> LinkInformation:
        """What the links of each head tell about words."""
        information = LinkInformation(self.grid)
        for seen in self.map(pairs, pair_and_links):
            if seen is not None:
                information.add(*seen)
        return information

    def evaluate(
        self,
        pairs: Iterable[tuple[str, str]],
        gold: Sequence[GoldLinks],
        *,
        path: Path,
        first: int = 0,
        development: int | None = None,
    ) -> tuple[GridCounts, GridCounts]:
        """How far each head is from the gold: counts to choose a head by, and counts to report.

        The first are those of the first `development` pairs, the second those of the others;
        without such a part both are of all pairs. `path` and `first` (the number of the first word
        there) are for messages.
        """
        choosing, reported = GridCounts(self.grid), GridCounts(self.grid)
        count = 0
        for index, seen in enumerate(self.map(pairs, pair_and_links)):
            count += 1
            if seen is None:
                raise DataError(
                    f"pair {index + 1} has more than {self.max_length} subwords on a side; "
                    "give a higher --max-length"
                )
            if index >= len(gold):
                continue
            pair, words = seen
            own_gold = gold[index].swapped() if self.reverse else gold[index]
            check_words(own_gold, pair, reverse=self.reverse, path=path, first=first)
            (choosing if index < (development or 0) else reported).add(words, own_gold)
        if count != len(gold):
            raise DataError(f"{path}: expected a line for each of {count} pairs, got {len(gold)}")
        return (choosing, reported) if development else (reported, reported)


def pair_and_links(attention: PairAttention) -> tuple[SegmentedPair, Words]:
    """A pair and its links by every head, [L, H + 1, 2, W]."""
    return attention.pair, all_links(attention)


def check_words(
    gold: GoldLinks, pair: SegmentedPair, *, reverse: bool, path: Path, first: int
) -> None:
    """Complain of gold links to words that the pair does not have."""
    sides = [len(pair.source.words), len(pair.target.words)]
    if reverse:
        gold, sides = gold.swapped(), sides[::-1]
    check_gold(
        gold,
        num_source=sides[0],
        num_target=sides[1],
        path=path,
        line=pair.index + 1,
        first=first,
    )
