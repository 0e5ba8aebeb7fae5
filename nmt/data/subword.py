"""Subword models: BPE, sentencepiece, or whole words. Splitting and merging loses nothing.

Each model splits a word independently of its neighbours. It can therefore be learned from counts of
words, the pieces of a word can be cached, and each piece belongs to one word.
"""

import contextlib
import io
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Literal, Protocol, Self

from nmt.config.limits import MAX_PIECES
from nmt.data.text import LineWriter, read_text
from nmt.errors import DataError
from nmt.progress import progress_bar

logger = logging.getLogger(__name__)

CONTINUED = "@@"  # the end of each piece of a BPE word but the last
WORD_START = "▁"  # the beginning of the first piece of a sentencepiece word
REPLACEMENT = "\ufffd"  # for bytes that are no character
WORD_END = "</w>"  # the end of a word in subword-nmt

# Strings with a meaning to a subword model, and white space that subword-nmt would take for the end
# of a symbol or a line, are each replaced by one of Unicode's noncharacters, which are reserved for
# internal use. A noncharacter in the text itself becomes the first of them and a letter.
_SPACES = "\t\v\f\r\x1c\x1d\x1e\x1f\x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B)))
_SPECIAL = (CONTINUED, WORD_START, WORD_END, *_SPACES, *"\u2028\u2029\u202f\u205f\u3000")
_ESCAPE = "\ufdd0"
_ESCAPES = {special: chr(0xFDD1 + number) for number, special in enumerate(_SPECIAL)}
_ESCAPES |= {chr(code): _ESCAPE + chr(code - 0xFDD0 + ord("A")) for code in range(0xFDD0, 0xFDF0)}
_UNESCAPES = {escape: special for special, escape in _ESCAPES.items()}
_ESCAPE_PATTERN = re.compile("|".join(map(re.escape, _ESCAPES)))
_UNESCAPE_PATTERN = re.compile(f"{_ESCAPE}[A-`]|[\ufdd1-\ufdef]")

# BPE takes quadratic time, so longer words are split into parts of this length first. They are not
# used for learning either: such words are base64 or a broken file rather than language.
LONGEST_WORD = 200
# Learning takes about 1.3 kB per type, and rarer words have almost no influence on the merges.
MAX_LEARNED_TYPES = 500_000


def escape(word: str) -> str:
    """The word without any string that has a meaning to a subword model."""
    return _ESCAPE_PATTERN.sub(lambda match: _ESCAPES[match[0]], word)


def unescape(word: str) -> str:
    """The inverse of `escape`; other output of a model stays unchanged."""
    if word.isascii():  # has no escape; asked because most words of most texts end here
        return word
    return _UNESCAPE_PATTERN.sub(lambda match: _UNESCAPES.get(match[0], match[0]), word)


class Subword(Protocol):
    """Splits words into pieces and merges pieces into words."""

    def split(self, word: str) -> list[str]:
        """The pieces of a word, at least one."""

    def whole(self, word: str) -> str:
        """The one piece of a word that is not split."""

    def words_of(self, pieces: Sequence[str]) -> list[int]:
        """For each piece the index of its word, from 0 without gaps."""

    def merge(self, pieces: Sequence[str]) -> str:
        """The word of its pieces, perhaps an empty one."""

    def save(self, path: Path) -> None:
        """Write the model to a file."""


class WholeWords:
    """No subwords: each word is a piece."""

    def split(self, word: str) -> list[str]:
        """The word itself."""
        return [word]

    def whole(self, word: str) -> str:
        """The word itself."""
        return word

    def words_of(self, pieces: Sequence[str]) -> list[int]:
        """Each piece is a word."""
        return list(range(len(pieces)))

    def merge(self, pieces: Sequence[str]) -> str:
        """The one piece."""
        return "".join(pieces)

    def save(self, path: Path) -> None:
        """Write nothing: there is no model."""


class BPE:
    """Byte pair encoding by subword-nmt; all but the last piece of a word end in `@@`.

    Pieces that are not in `allowed` are split further where possible.
    """

    def __init__(self, merges: Sequence[str], allowed: Collection[str] | None = None) -> None:
        """`merges` are the lines `left right` of a codes file of version 0.2, first merge first."""
        from subword_nmt import apply_bpe

        self.merges = list(merges)
        codes = io.StringIO("\n".join(["#version: 0.2", *self.merges, ""]), newline="\n")
        # The empty piece is added because subword-nmt takes an empty set for no restriction.
        vocabulary = None if allowed is None else frozenset(allowed) | {""}
        self._bpe = apply_bpe.BPE(codes, merges=len(self.merges), vocab=vocabulary)

    def split(self, word: str) -> list[str]:
        """The pieces of a word."""
        word = escape(word)
        pieces: list[str] = []
        for start in range(0, len(word), LONGEST_WORD):
            if pieces:
                pieces[-1] += CONTINUED
            pieces += self._bpe.segment_tokens([word[start : start + LONGEST_WORD]])
        self._bpe.cache.clear()  # it would grow without limit, and callers cache words anyway
        return pieces

    def whole(self, word: str) -> str:
        """The last piece of a word without other pieces."""
        return escape(word)

    def parts_of(self, pieces: Iterable[str]) -> set[str]:
        """The pieces that other pieces are merged from, step by step."""
        found: set[str] = set()
        symbols = [
            piece.removesuffix(CONTINUED) if piece.endswith(CONTINUED) else piece + WORD_END
            for piece in pieces
        ]
        while symbols:
            for symbol in self._bpe.bpe_codes_reverse.get(symbols.pop(), ()):
                final = symbol.endswith(WORD_END)
                piece = symbol.removesuffix(WORD_END) if final else symbol + CONTINUED
                if piece not in found:
                    found.add(piece)
                    symbols.append(symbol)
        return found

    def pieces_of(self, symbol: str) -> list[str]:
        """The pieces of a symbol of subword-nmt, which has `</w>` at the end of a word."""
        final = symbol.endswith(WORD_END)
        piece = symbol.removesuffix(WORD_END) if final else symbol + CONTINUED
        pair = self._bpe.bpe_codes_reverse.get(symbol)
        if pair is None or self._bpe.vocab is None or piece in self._bpe.vocab:
            return [piece]
        return [*self.pieces_of(pair[0]), *self.pieces_of(pair[1])]

    def words_of(self, pieces: Sequence[str]) -> list[int]:
        """A word ends with a piece without `@@`."""
        ends = [not piece.endswith(CONTINUED) for piece in pieces]
        return list(accumulate(ends[:-1], initial=0))[: len(pieces)]

    def merge(self, pieces: Sequence[str]) -> str:
        """The pieces without their `@@`."""
        return unescape("".join(piece.removesuffix(CONTINUED) for piece in pieces))

    def save(self, path: Path) -> None:
        """Write a codes file in the format of `subword-nmt learn-bpe`."""
        with LineWriter(path) as writer:
            writer.write("#version: 0.2")
            for merge in self.merges:
                writer.write(merge)

    @classmethod
    def load(cls, path: Path, allowed: Collection[str] | None = None) -> "BPE":
        """Read a codes file."""
        lines = read_text(path)
        if next(lines, None) != "#version: 0.2":
            raise DataError(f"{path}:1: expected `#version: 0.2` of a BPE codes file")
        merges = list(lines)
        for number, merge in enumerate(merges, start=2):
            parts = merge.split(" ")
            if len(parts) != 2 or not all(parts) or any(map(str.isspace, merge.replace(" ", ""))):
                raise DataError(f"{path}:{number}: expected two symbols, got {merge[:80]!r}")
        return cls(merges, allowed)


class _MergeSink:
    """Collects the merges that subword-nmt writes, and shows the progress."""

    def __init__(self, total: int) -> None:
        self.lines: list[str] = []
        self.bar = progress_bar(total=total, unit="merge", description="learning BPE")

    def write(self, text: str) -> None:
        self.lines.append(text.removesuffix("\n"))
        self.bar.update()


def learn_bpe(counts: Mapping[str, int], *, merges: int) -> BPE:
    """Learn at most `merges` merge operations from counts of words."""
    from subword_nmt import learn_bpe as subword_nmt_learn

    words = [f"{word} {count}" for word, count in _escaped_counts(counts).items() if len(word) > 1]
    if not words:
        return BPE([])
    sink = _MergeSink(merges)
    # subword-nmt prints its own progress bar and remarks to standard error.
    with sink.bar, contextlib.redirect_stderr(io.StringIO()):
        subword_nmt_learn.learn_bpe(words, sink, merges, is_dict=True)
    learned = sink.lines[1:]  # after the version
    if len(learned) < merges:
        logger.info(
            "%d BPE merges of %d: no further pair of symbols is repeated", len(learned), merges
        )
    return BPE(learned)


def _escaped_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts that a model is learned from: escaped words, limited in length and number."""
    escaped: Counter[str] = Counter()
    for word, count in counts.items():
        if len(word) <= LONGEST_WORD:
            escaped[escape(word)] = count
    if len(escaped) > MAX_LEARNED_TYPES:
        message = "learning from the %d most frequent words of %d"
        logger.info(message, MAX_LEARNED_TYPES, len(escaped))
    # Words of equal counts are sorted, so that nothing depends on the order of counting.
    order = sorted(escaped.items(), key=lambda item: (-item[1], item[0]))
    return dict(order[:MAX_LEARNED_TYPES])


def count_pieces(subword: Subword, counts: Mapping[str, int]) -> Counter[str]:
    """The counts of pieces in a text with these counts of words."""
    pieces: Counter[str] = Counter()
    for word, count in counts.items():
        for piece in subword.split(word):
            pieces[piece] += count
    return pieces


def spell_common_characters(pieces: Counter[str], *, least: int) -> None:
    """Add the pieces, inside and at the end of a word, of characters that occur `least` times.

    A new word can then be spelled even if one of its characters never occurred in that position.
    """
    characters: Counter[str] = Counter()
    for piece, count in pieces.items():
        for character in piece.removesuffix(CONTINUED):
            characters[character] += count
    for character, count in characters.items():
        if count >= least:
            pieces[character] += 0
            pieces[character + CONTINUED] += 0


class SentencePiece:
    """A sentencepiece model; the first piece of a word begins with `▁`.

    There is no Unicode normalisation, and characters without a piece are spelled in bytes, so that
    no word is lost.
    """

    def __init__(self, model: bytes, *, name: str = "sentencepiece model") -> None:
        import sentencepiece

        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            loaded = bool(model) and self._processor.LoadFromSerializedProto(model)
        except (RuntimeError, UnicodeDecodeError):
            loaded = False
        if not loaded:
            raise DataError(f"{name}: no sentencepiece model, or a damaged one")
        if len(self._processor) > MAX_PIECES:
            raise DataError(f"{name}: expected at most {MAX_PIECES} pieces")
        self._byte_of = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
        # The pieces that a text can have: all but <unk>.
        try:
            self.pieces = [
                self._processor.id_to_piece(number)
                for number in range(len(self._processor))
                if not self._processor.is_unknown(number) and not self._processor.is_control(number)
            ]
        except UnicodeDecodeError:
            raise DataError(f"{name}: a piece is not UTF-8; the model is damaged") from None

    def split(self, word: str) -> list[str]:
        """The pieces of a word."""
        pieces: list[str] = self._processor.encode(escape(word), out_type=str)
        return pieces

    def whole(self, word: str) -> str:
        """The first piece of a word without other pieces."""
        return WORD_START + escape(word)

    def score(self, piece: str) -> float:
        """The log-probability of a piece, or for BPE its rank, negated."""
        return float(self._processor.get_score(self._processor.piece_to_id(piece)))

    def is_byte(self, piece: str) -> bool:
        """Whether this is the piece of a byte."""
        return piece in self._byte_of

    def spell(self, symbol: str) -> list[str]:
        """A piece, or the bytes of a character that is none."""
        if not self._processor.is_unknown(self._processor.piece_to_id(symbol)):
            return [symbol]
        return [f"<0x{byte:02X}>" for byte in symbol.encode()]

    def words_of(self, pieces: Sequence[str]) -> list[int]:
        """A word begins with a piece that begins with `▁`."""
        starts = [piece.startswith(WORD_START) for piece in pieces[1:]]
        return list(accumulate(starts, initial=0))[: len(pieces)]

    def merge(self, pieces: Sequence[str]) -> str:
        """The pieces without `▁`; bytes become characters where they are valid UTF-8."""
        spelled = b"".join(self._byte_of.get(piece) or piece.encode() for piece in pieces)
        word = unescape(spelled.decode(errors="replace").removeprefix(WORD_START))
        # A translation model may emit the bytes of a space or line feed; they must not end a word.
        return word.replace("\n", REPLACEMENT).replace(" ", REPLACEMENT)

    def save(self, path: Path) -> None:
        """Write a model file of sentencepiece."""
        path.write_bytes(self.model)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a model file."""
        try:
            return cls(path.read_bytes(), name=str(path))
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error


class LineSentencePiece(SentencePiece):
    """The sentencepiece model of another toolkit; it splits whole lines and normalises them."""

    def all_pieces(self) -> list[str]:
        """The pieces in the order of the model's own ids, control symbols among them."""
        return [self._processor.id_to_piece(number) for number in range(len(self._processor))]

    def split(self, word: str) -> list[str]:
        """The pieces of a line."""
        pieces: list[str] = self._processor.encode(word, out_type=str)
        return pieces

    def merge(self, pieces: Sequence[str]) -> str:
        """The text of pieces; pieces that the model does not have stand for themselves."""
        text: str = self._processor.decode_pieces(list(pieces))
        # The byte or piece of a line feed must not end the line of a translation.
        return text.replace(WORD_START, " ").strip(" ").replace("\n", REPLACEMENT)


def learn_sentencepiece(
    counts: Mapping[str, int], *, vocabulary_size: int, model: Literal["unigram", "bpe"]
) -> SentencePiece:
    """Learn a model of at most `vocabulary_size` pieces from counts of words.

    No piece crosses a word boundary, so counts of words are as good as sentences.
    """
    import sentencepiece

    words = _escaped_counts(counts)
    alphabet = len({character for word in words for character in word})
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in words.items()),
            input_format="tsv",
            model_writer=written,
            model_type=model,
            vocab_size=vocabulary_size,
            hard_vocab_limit=False,  # a small corpus has fewer
            # The rare characters of a large alphabet (Chinese, or crawled text) become bytes.
            character_coverage=1.0 if alphabet <= vocabulary_size // 10 else 0.9995,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2]
        raise DataError(
            f"sentencepiece cannot learn {vocabulary_size} pieces (`data.subword.vocabulary_size`) "
            f"from {len(words)} different words: {reason}"
        ) from None
    return SentencePiece(written.getvalue())
