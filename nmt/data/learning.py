"""Learning how each side splits words, and which pieces it has, from counts of its words."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from nmt.data.vocabulary import Vocabulary

if TYPE_CHECKING:
    from nmt.config.config import SubwordConfig

COMMON_CHARACTER = 10  # times that a side must have a character for BPE to spell new words with it


@dataclass(frozen=True)
class Side:
    """What is learned for one side: how words are split, and the counts of the pieces."""

    subword: Subword
    counts: Mapping[str, int]


def learn_sides(
    config: "SubwordConfig", source: Mapping[str, int], target: Mapping[str, int]
) -> tuple[Side, Side]:
    """What is learned for the source and the target side from the counts of their words."""
    return _LEARN[config.kind](config, source, target)


def _learn_bpe_sides(
    config: "SubwordConfig", source: Mapping[str, int], target: Mapping[str, int]
) -> tuple[Side, Side]:
    """Merges from both sides together or from each, and the pieces that each side has."""
    if config.joint:
        models = [learn_bpe(Counter(source) + Counter(target), merges=config.merges)]
    else:
        models = [learn_bpe(side, merges=config.merges) for side in (source, target)]
    threshold = config.vocabulary_threshold
    return _restrict(models[0], source, threshold), _restrict(models[-1], target, threshold)


def _restrict(bpe: BPE, counts: Mapping[str, int], threshold: int) -> Side:
    """BPE that uses only pieces seen often enough on this side, and single characters.

    Even without a threshold, what was never seen on this side is split further: else new words
    would come out as unknown pieces.
    """
    pieces = count_pieces(bpe, counts)
    if threshold > 1:
        frequent = {piece for piece, count in pieces.items() if count >= threshold}
        pieces = count_pieces(BPE(bpe.merges, frequent), counts)
    spell_common_characters(pieces, least=max(threshold, COMMON_CHARACTER))
    vocabulary = Vocabulary.build(pieces)
    return Side(BPE(bpe.merges, vocabulary.counts), vocabulary.counts)


def _learn_sentencepiece_sides(
    config: "SubwordConfig", source: Mapping[str, int], target: Mapping[str, int]
) -> tuple[Side, Side]:
    sides = [Counter(source) + Counter(target)] if config.joint else [source, target]
    learned = [
        learn_sentencepiece(counts, vocabulary_size=config.vocabulary_size, model=config.model)
        for counts in sides
    ]
    return sentencepiece_side(learned[0]), sentencepiece_side(learned[-1])


def sentencepiece_side(model: SentencePiece) -> Side:
    """A side that takes its pieces from a model; the model does not tell their counts."""
    return Side(model, dict.fromkeys(model.pieces, 0))


def _learn_word_sides(
    config: "SubwordConfig", source: Mapping[str, int], target: Mapping[str, int]
) -> tuple[Side, Side]:
    limit = config.vocabulary_size
    return (
        Side(WholeWords(), Vocabulary.build(source, max_pieces=limit).counts),
        Side(WholeWords(), Vocabulary.build(target, max_pieces=limit).counts),
    )


_LEARN = {
    "bpe": _learn_bpe_sides,
    "sentencepiece": _learn_sentencepiece_sides,
    "none": _learn_word_sides,
}
