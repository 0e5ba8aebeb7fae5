"""Segmenting training text anew at each use: BPE-dropout, or sampling from a unigram model.

The characters of a sentence follow from its ids, so no text is kept. A symbol is a character or a
string of several. Symbols below the size of the vocabulary are ids that always stay as they are:
control symbols, reserved symbols, and the bytes of sentencepiece.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from nmt.data.codec import SideCodec
from nmt.data.lattice import Lattice
from nmt.data.merging import Merger
from nmt.data.pair_table import FACTORS, Bits, PairTable
from nmt.data.ragged import Integers, Ragged
from nmt.data.subword import (
    BPE,
    CONTINUED,
    WORD_END,
    WORD_START,
    LineSentencePiece,
    SentencePiece,
)
from nmt.data.vocabulary import CONTROL, Vocabulary
from nmt.errors import ConfigError


class Segmenter(Protocol):
    """Draws segmentations of many words at once."""

    def segment(
        self, characters: Integers, last: npt.NDArray[np.bool_], random: Bits, *, strength: float
    ) -> Integers:
        """[N] the symbol that begins at each character, or -1 where none begins."""


@dataclass(frozen=True)
class Resegmenter:
    """Turns the ids of sentences into those of other segmentations of the same text."""

    characters: Ragged  # of each id of the vocabulary
    begins: npt.NDArray[np.bool_]  # whether a word begins with the id
    ends: npt.NDArray[np.bool_]  # whether a word ends with the id
    segmenter: Segmenter
    ids: Ragged  # of each symbol
    strength: float  # the probability of dropout, or alpha

    def sample(self, tokens: Ragged, keys: Bits) -> Ragged:
        """The ids of the same sentences; each has the random bits of its key."""
        spelled = self.characters.take(tokens.values)
        count = len(spelled.values)
        first = spelled.offsets[tokens.offsets[:-1]]  # character of each sentence
        lengths = np.diff(np.append(first, count))
        places = np.arange(count) - np.repeat(first, lengths)
        random = np.repeat(keys, lengths) + places.view(np.uint64) * FACTORS[0]
        last = np.zeros(count, dtype=np.bool_)  # character of a word
        last[spelled.offsets[1:] - 1] = self.ends[tokens.values]
        last[spelled.offsets[1:-1] - 1] |= self.begins[tokens.values[1:]]
        symbols = self.segmenter.segment(spelled.values, last, random, strength=self.strength)
        begun = np.flatnonzero(symbols >= 0)
        segmented = self.ids.take(symbols[begun])
        ids_before = np.zeros(count + 1, dtype=np.int64)
        ids_before[begun + 1] = segmented.lengths
        np.cumsum(ids_before, out=ids_before)
        return Ragged(segmented.values, ids_before[np.append(first, count)])


class SymbolIds:
    """The numbers of symbols; the first are those of a vocabulary's ids."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._first = len(vocabulary)
        self._numbers: dict[str, int] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def numbers(self, symbols: Iterable[str]) -> list[int]:
        """The numbers of symbols, new ones of those that are new."""
        known, first = self._numbers, self._first
        return [known.setdefault(symbol, first + len(known)) for symbol in symbols]


def make_resegmenter(side: SideCodec, strength: float, *, unigram: bool) -> Resegmenter:
    """The resegmenter of a side; `unigram` is the kind of a sentencepiece model.

    Raises ConfigError for subwords that cannot be segmented in another way.
    """
    subword = side.subword
    if isinstance(subword, BPE):
        return _of_bpe(side, subword, strength)
    if isinstance(subword, SentencePiece) and not isinstance(subword, LineSentencePiece):
        return _of_sentencepiece(side, subword, strength, unigram=unigram)
    raise ConfigError(
        "data.subword.dropout: expected BPE or SentencePiece as nmt learns them; leave it out for "
        "whole words and imported models"
    )


def _of_bpe(side: SideCodec, bpe: BPE, strength: float) -> Resegmenter:
    symbols, vocabulary, fixed = SymbolIds(side.vocabulary), side.vocabulary, fixed_ids(side)
    spelled: list[list[int]] = []
    for index, piece in enumerate(vocabulary.pieces):
        if fixed[index]:
            spelled.append([index])
        elif piece.endswith(CONTINUED):
            spelled.append(symbols.numbers(piece.removesuffix(CONTINUED)))
        else:
            spelled.append(symbols.numbers([*piece[:-1], piece[-1] + WORD_END]))
    pairs = [merge.split(" ") for merge in dict.fromkeys(bpe.merges)]
    ids = [vocabulary.encode(bpe.pieces_of(symbol)) for symbol in _with_merged(symbols, pairs)]
    return Resegmenter(
        characters=Ragged.of(spelled),
        begins=fixed,
        ends=fixed | np.array([not piece.endswith(CONTINUED) for piece in vocabulary.pieces]),
        segmenter=_merger(symbols, pairs),
        ids=Ragged.of([*([index] for index in range(len(vocabulary))), *ids]),
        strength=strength,
    )


def _of_sentencepiece(
    side: SideCodec, model: SentencePiece, strength: float, *, unigram: bool
) -> Resegmenter:
    symbols, vocabulary, fixed = SymbolIds(side.vocabulary), side.vocabulary, fixed_ids(side)
    for index, piece in enumerate(vocabulary.pieces):
        fixed[index] |= model.is_byte(piece)
    spelled = [
        [index] if fixed[index] else symbols.numbers(piece)
        for index, piece in enumerate(vocabulary.pieces)
    ]
    scores = {
        index: 0.0 if fixed[index] else model.score(piece)
        for index, piece in enumerate(vocabulary.pieces)
    }
    segmenter: Segmenter
    ids: list[list[int]] = []
    if unigram:
        segmenter = _lattice(spelled, scores)
    else:
        known = {
            piece: scores[index]
            for index, piece in enumerate(vocabulary.pieces)
            if not fixed[index]
        }
        pairs = _splits(known)
        ids = [vocabulary.encode(model.spell(symbol)) for symbol in _with_merged(symbols, pairs)]
        segmenter = _merger(symbols, pairs)
    return Resegmenter(
        characters=Ragged.of(spelled),
        begins=fixed | np.array([piece.startswith(WORD_START) for piece in vocabulary.pieces]),
        ends=fixed,
        segmenter=segmenter,
        ids=Ragged.of([*([index] for index in range(len(vocabulary))), *ids]),
        strength=strength,
    )


def fixed_ids(side: SideCodec) -> npt.NDArray[np.bool_]:
    """The ids of a vocabulary that no other segmentation has in their place."""
    fixed = np.zeros(len(side.vocabulary), dtype=np.bool_)
    fixed[: len(CONTROL)] = True
    fixed[list(side.reserved_ids)] = True
    return fixed


def _with_merged(symbols: SymbolIds, pairs: Sequence[Sequence[str]]) -> list[str]:
    """All symbols, those that pairs merge to among them."""
    for left, right in pairs:
        symbols.numbers([left, right, left + right])
    return list(symbols)


def _merger(symbols: SymbolIds, pairs: Sequence[Sequence[str]]) -> Merger:
    left = np.array(symbols.numbers(pair[0] for pair in pairs), dtype=np.int64)
    right = np.array(symbols.numbers(pair[1] for pair in pairs), dtype=np.int64)
    merged = np.array(symbols.numbers("".join(pair) for pair in pairs), dtype=np.int64)
    return Merger(PairTable(left, right), merged)


def _splits(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """The pairs of symbols that a sentencepiece model of BPE merges, the first ones first.

    It merges any two symbols that make a piece, the one of the highest score first.
    """
    known = {*scores, *(character for piece in scores for character in piece)}
    return [
        (piece[:length], piece[length:])
        for piece in sorted(scores, key=lambda piece: -scores[piece])
        for length in range(1, len(piece))
        if piece[:length] in known and piece[length:] in known
    ]


def _lattice(spelled: Sequence[Sequence[int]], scores: Mapping[int, float]) -> Lattice:
    """The trie of all pieces, whose symbols are their ids."""
    children: dict[tuple[int, int], int] = {}
    piece_of_node: dict[int, int] = {}
    for index, characters in enumerate(spelled):
        node = 0
        for character in characters:
            node = children.setdefault((node, character), len(children) + 1)
        piece_of_node[node] = index
    pairs = np.array([*children], dtype=np.int64)
    nodes = range(len(children) + 1)
    return Lattice(
        children=PairTable(np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])),
        pieces=np.array([piece_of_node.get(node, -1) for node in nodes], dtype=np.int64),
        scores=np.array([scores.get(piece_of_node.get(node, -1), 0.0) for node in nodes]),
    )
