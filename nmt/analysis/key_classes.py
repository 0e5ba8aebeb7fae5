"""Classes of keys that heads are known to attend to: sinks, neighbours, punctuation marks.

A class is a row of `KEY_CLASSES`: the keys that belong to it for every query. Tokens are what the
tokenizer makes of a line, which are finer than words where punctuation is attached to a word.

Shapes: B sentences, N positions of a side, Q queries, K keys.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from nmt.analysis.pairs import PairBatch
from nmt.analysis.results import ATTENTION_TYPES
from nmt.data.codec import Codec, Segmentation, SideCodec

QUESTION_MARKS = frozenset("?？؟⁇⁈⁉")
NO_TOKEN = -1
SELF = ("encoder_self", "decoder_self")


@dataclass(frozen=True)
class SidePositions:
    """The positions of one side of a batch as the model reads them, [B, N] each.

    The decoder reads the start symbol first and never the end symbol.
    """

    end: Tensor  # bool: the end symbol
    first: Tensor  # bool: the first position, unless it is the end symbol
    punctuation: Tensor  # bool: part of a punctuation mark
    question_mark: Tensor  # bool: part of a question mark
    token: Tensor  # int64: the index of the token that the subword is part of, or NO_TOKEN


@dataclass(frozen=True)
class BatchPositions:
    """The positions of both sides of a batch."""

    source: SidePositions
    target: SidePositions  # of the decoder's input

    @classmethod
    def of(cls, batch: PairBatch, codec: Codec) -> "BatchPositions":
        """The positions of the pairs of a batch."""
        sources = [pair.source for pair in batch.pairs]
        targets = [pair.target for pair in batch.pairs]
        return cls(
            side_positions(sources, codec.source, batch.source, start=0),
            side_positions(targets, codec.target, batch.target_input, start=1),
        )

    def keys(self, type_: str) -> SidePositions:
        """The side that the keys of a type of attention belong to."""
        return self.target if type_ == "decoder_self" else self.source


@dataclass(frozen=True)
class KeyClass:
    """A class of keys, as a mask [B, 1, K], or [B, Q, K] where it depends on the query."""

    meaning: str
    keys: Callable[[SidePositions], Tensor]
    types: tuple[str, ...] = tuple(ATTENTION_TYPES)  # of attention that have such keys
    own: bool = False  # whether the position of the query itself counts, in self-attention


def positions_at(side: SidePositions, offset: int) -> Tensor:
    """The mask [B, N, N] of the key at a distance from each query of the same side."""
    length = side.token.shape[1]
    diagonal = torch.ones(length, length, dtype=torch.bool, device=side.token.device)
    return diagonal.triu(offset).tril(offset).expand(len(side.token), -1, -1)


def same_token(side: SidePositions) -> Tensor:
    """The mask [B, N, N] of the subwords of the token that the query is part of."""
    return (side.token[:, :, None] == side.token[:, None, :]) & (side.token != NO_TOKEN)[:, None]


KEY_CLASSES = {
    "end symbol": KeyClass(
        "the end symbol of the source", lambda side: side.end[:, None], ("encoder_self", "cross")
    ),
    "first token": KeyClass(
        "the first subword of the source, or the start symbol of the target",
        lambda side: side.first[:, None],
    ),
    "sink": KeyClass(
        "the end symbol or the first token", lambda side: (side.end | side.first)[:, None]
    ),
    "punctuation": KeyClass("punctuation marks", lambda side: side.punctuation[:, None]),
    "question mark": KeyClass("question marks", lambda side: side.question_mark[:, None]),
    "previous": KeyClass("the previous subword", lambda side: positions_at(side, -1), SELF),
    "next": KeyClass("the next subword", lambda side: positions_at(side, 1), ("encoder_self",)),
    "itself": KeyClass("the subword itself", lambda side: positions_at(side, 0), SELF, own=True),
    "same word": KeyClass("the other subwords of the same word", same_token, SELF),
}
SINKS = ("end symbol", "first token", "punctuation")


def side_positions(
    sides: Sequence[Segmentation], codec: SideCodec, ids: Tensor, *, start: int
) -> SidePositions:
    """The positions of token ids [B, N], in which the text of a line begins at `start`."""
    end, first, punctuation, question = (torch.zeros(ids.shape, dtype=torch.bool) for _ in range(4))
    token = torch.full(ids.shape, NO_TOKEN)
    for row, side in enumerate(sides):
        tokens = line_tokens(side, codec)
        stop = start + len(tokens.of_piece)
        if start == 0:
            end[row, stop] = True
        first[row, 0] = not end[row, 0]
        if tokens.of_piece:
            of_piece = torch.tensor(tokens.of_piece)
            token[row, start:stop] = of_piece
            punctuation[row, start:stop] = torch.tensor(list(map(is_punctuation, tokens.texts)))[
                of_piece
            ]
            question[row, start:stop] = torch.tensor(
                [QUESTION_MARKS.issuperset(text) and bool(text) for text in tokens.texts]
            )[of_piece]
    sides_of = (end, first, punctuation, question, token)
    return SidePositions(*(values.to(ids.device) for values in sides_of))


@dataclass(frozen=True)
class LineTokens:
    """The tokens of a line, and the token of each subword but the end symbol."""

    texts: list[str]
    of_piece: list[int]


def line_tokens(side: Segmentation, codec: SideCodec) -> LineTokens:
    """The tokens that the subwords of a line are made of."""
    pieces = [codec.vocabulary.piece(token_id) for token_id in side.ids[:-1]]
    of_piece = list(codec.subword.words_of(pieces))
    groups = groupby(zip(of_piece, pieces, strict=True), key=lambda pair: pair[0])
    return LineTokens(
        [codec.subword.merge([piece for _, piece in group]) for _, group in groups], of_piece
    )


def is_punctuation(text: str) -> bool:
    """Whether a token consists of punctuation marks only."""
    return bool(text) and all(unicodedata.category(character)[0] == "P" for character in text)


def share_of_mass(
    sizes: Tensor, total: Tensor, real: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor]:
    """The share [B, H, Q] of a query's weights on keys [B, 1 or Q, K], and whether it counts.

    `sizes` [B, H, Q, K] are absolute weights without hidden ones, and `total` their sums; `real`
    [B, Q, K] says which keys a query sees. A query counts if it attends to something and has a
    choice: it sees a key of the class, and another one.
    """
    chosen = keys & real
    on_class = (sizes * chosen[:, None]).sum(dim=-1)
    has_choice = chosen.any(dim=-1) & (real & ~keys).any(dim=-1)
    counts = (total > 0) & has_choice[:, None]
    shares = on_class / total.masked_fill(total == 0, 1.0)
    return shares.masked_fill(~counts, 0.0), counts
