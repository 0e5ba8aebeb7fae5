"""Learning the subword model and the pieces of each side from the counts of its words."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from nmt.data.subword import (
    BPE,
    SentencePiece,
    Subword,
    WholeWords,
    count_pieces,
    learn_bpe,
    learn_sentencepiece,
    spell_common_characters,
)
from nmt.data.text import SIDES, Side
from nmt.data.vocabulary import Vocabulary

if TYPE_CHECKING:
    from nmt.config.config import SubwordConfig

COMMON_CHARACTER = 10  # occurrences on a side from which BPE spells new words with a character

Counts = Mapping[str, int]
Model = TypeVar("Model")


@dataclass(frozen=True)
class LearnedSide:
    """The subword model of one side, and the counts of its pieces."""

    subword: Subword
    counts: Counts


def learn_sides(config: "SubwordConfig", counts: Mapping[Side, Counts]) -> dict[Side, LearnedSide]:
    """The subword models and pieces of both sides, from the counts of their words."""
    size = config.vocabulary_size
    if config.kind == "bpe":
        merges = _models(config, counts, lambda words: learn_bpe(words, merges=config.merges))
        return {
            side: _restrict(
                merges[side],
                counts[side],
                config.vocabulary_threshold,
                with_parts=bool(getattr(config.dropout, side)),
            )
            for side in SIDES
        }
    if config.kind == "sentencepiece":
        models = _models(
            config,
            counts,
            lambda words: learn_sentencepiece(words, vocabulary_size=size, model=config.model),
        )
        return {side: sentencepiece_side(models[side]) for side in SIDES}
    kept = {side: Vocabulary.build(counts[side], max_pieces=size).counts for side in SIDES}
    return {side: LearnedSide(WholeWords(), kept[side]) for side in SIDES}


def _models(
    config: "SubwordConfig", counts: Mapping[Side, Counts], learn: Callable[[Counts], Model]
) -> dict[Side, Model]:
    """One model learned from both sides together, or one from each."""
    if config.joint:
        return dict.fromkeys(SIDES, learn(Counter(counts["source"]) + Counter(counts["target"])))
    return {side: learn(counts[side]) for side in SIDES}


def _restrict(bpe: BPE, counts: Counts, threshold: int, *, with_parts: bool) -> LearnedSide:
    """BPE that uses only single characters and pieces that are frequent enough on this side.

    Even without a threshold, a piece that this side does not have is split further. Otherwise new
    words would become unknown pieces. The pieces that frequent ones are merged from are added
    `with_parts`: dropout makes them, even if the text has none of them otherwise.
    """
    pieces = count_pieces(bpe, counts)
    if threshold > 1:
        frequent = {piece for piece, count in pieces.items() if count >= threshold}
        pieces = count_pieces(BPE(bpe.merges, frequent), counts)
    if with_parts:
        for part in bpe.parts_of(pieces):
            pieces[part] += 0
    spell_common_characters(pieces, least=max(threshold, COMMON_CHARACTER))
    vocabulary = Vocabulary.build(pieces)
    return LearnedSide(BPE(bpe.merges, vocabulary.counts), vocabulary.counts)


def with_reserved(counts: Counts, subword: Subword, symbols: Sequence[str]) -> dict[str, int]:
    """Counts of pieces; those of reserved symbols that are missing come last, with the count 0."""
    return {**dict.fromkeys([*counts, *map(subword.whole, symbols)], 0), **counts}


def sentencepiece_side(model: SentencePiece) -> LearnedSide:
    """A side with the pieces of a sentencepiece model, which does not store their counts."""
    return LearnedSide(model, dict.fromkeys(model.pieces, 0))
