"""More pieces for a vocabulary that a model was trained with: for a new domain or a new script.

The old pieces keep their ids, and the old merges come first. So text is encoded as before, unless
it contains one of the new pieces.
"""

from collections import Counter
from collections.abc import Mapping

from nmt.data.learning import COMMON_CHARACTER, Counts, LearnedSide
from nmt.data.subword import (
    BPE,
    CONTINUED,
    LONGEST_WORD,
    WORD_END,
    WholeWords,
    count_pieces,
    learn_bpe,
)
from nmt.data.text import SIDES, Side
from nmt.data.vocabulary import Vocabulary
from nmt.errors import ConfigError

FIRST_SYMBOL = 0x10000  # the character that stands for the first symbol; spaces have lower codes
FEWEST = 2  # occurrences of a piece that is added


def extend_sides(
    learned: Mapping[Side, LearnedSide],
    counts: Mapping[Side, Counts],
    *,
    joint: bool,
    shared: Vocabulary | None,
    most: int,
) -> tuple[dict[Side, LearnedSide], Vocabulary | None]:
    """The sides and the shared vocabulary with at most `most` more pieces in each vocabulary.

    `counts` are of the words of the new text. SentencePiece raises ConfigError: its models cannot
    be extended, and they spell characters that they do not know in bytes.
    """
    merges = {side: more_merges(learned, counts, side, joint=joint, most=most) for side in SIDES}
    found = {side: new_pieces(learned[side], merges[side], counts[side], shared) for side in SIDES}
    if shared is None:
        chosen = {side: choose(found[side], most) for side in SIDES}
    else:
        total = found["source"] + found["target"]
        both = choose(total, most)
        chosen = {side: [piece for piece in both if piece in found[side]] for side in SIDES}
        shared = Vocabulary(shared.counts | {piece: total[piece] for piece in both})
    extended = {
        side: extend(learned[side], merges[side], {p: found[side][p] for p in chosen[side]})
        for side in SIDES
    }
    return extended, shared


def extend(side: LearnedSide, merges: list[str], pieces: Counts) -> LearnedSide:
    """A side with more merges, of which only those to its pieces are used."""
    counts = {**side.counts, **pieces}
    if not isinstance(side.subword, BPE):
        return LearnedSide(side.subword, counts)
    return LearnedSide(BPE([*side.subword.merges, *merges], counts), counts)


def new_pieces(
    side: LearnedSide, merges: list[str], counts: Counts, shared: Vocabulary | None
) -> Counter[str]:
    """The counts of pieces of the new text that the vocabulary of a side does not have."""
    known = side.counts if shared is None else {**side.counts, **shared.counts}
    if isinstance(side.subword, WholeWords):
        pieces = Counter(counts)
    else:
        assert isinstance(side.subword, BPE)
        pieces = count_pieces(BPE([*side.subword.merges, *merges]), counts)
        for character, count in characters(pieces).items():  # at the end of a word and inside
            pieces[character] = pieces[character + CONTINUED] = count
    return Counter({piece: n for piece, n in pieces.items() if piece not in known})


def characters(pieces: Counts) -> Counter[str]:
    """The counts of the characters of pieces."""
    found: Counter[str] = Counter()
    for piece, count in pieces.items():
        for character in piece.removesuffix(CONTINUED):
            found[character] += count
    return found


def choose(pieces: Counts, most: int) -> list[str]:
    """The pieces to add: common characters, without which words cannot be spelled, go first."""

    def order(piece: str) -> tuple[bool, int, str]:
        is_character = len(piece.removesuffix(CONTINUED)) == 1
        return not (is_character and pieces[piece] >= COMMON_CHARACTER), -pieces[piece], piece

    return sorted((p for p, count in pieces.items() if count >= FEWEST), key=order)[:most]


def more_merges(
    learned: Mapping[Side, LearnedSide],
    counts: Mapping[Side, Counts],
    side: Side,
    *,
    joint: bool,
    most: int,
) -> list[str]:
    """The merges that BPE learns on the new text after those that a side has."""
    subword = learned[side].subword
    if isinstance(subword, WholeWords):
        return []
    if not isinstance(subword, BPE):
        raise ConfigError(
            "data.extend_vocabulary: the model to start from has a sentencepiece model, which "
            "cannot be extended; leave the key out: new characters are spelled in bytes"
        )
    words = Counter(counts["source"]) + Counter(counts["target"]) if joint else counts[side]
    return continue_bpe(subword.merges, words, merges=most)


def continue_bpe(before: list[str], counts: Counts, *, merges: int) -> list[str]:
    """Up to `merges` more merges, learned from words that the merges before have been applied to.

    Each symbol that those leave is replaced by one character, so that learning goes on from there.
    A merge to a symbol that exists is left out: it would change how old text is encoded.
    """
    bpe = BPE(before)
    symbols: dict[str, str] = {}
    words: Counter[str] = Counter()
    for word, count in counts.items():
        if len(word) > LONGEST_WORD:
            continue
        parts = [piece.removesuffix(CONTINUED) for piece in bpe.split(word)]
        for part in parts:
            symbols.setdefault(part, chr(FIRST_SYMBOL + len(symbols)))
        words["".join(symbols[part] for part in parts)] += count
    spelled = {character: symbol for symbol, character in symbols.items()}
    known = {merge.replace(" ", "") for merge in before}
    found = []
    for merge in learn_bpe(words, merges=merges).merges:
        left, right = (spell(part, spelled) for part in merge.split(" "))
        if left + right not in known:
            known.add(left + right)
            found.append(f"{left} {right}")
    return found


def spell(part: str, spelled: Mapping[str, str]) -> str:
    """A symbol of characters that stand for symbols, as it is."""
    end = WORD_END if part.endswith(WORD_END) else ""
    return "".join(spelled[character] for character in part.removesuffix(end)) + end
