"""Splitting words into subwords by BPE, sentencepiece or not at all, so that nothing is lost.

Every subword model here splits one word at a time, whatever its neighbours: a model can be learned
from counts of words, the pieces of a word can be remembered, and a piece belongs to one word.
"""

import contextlib
import io
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from nmt.config.limits import MAX_PIECES
from nmt.data.text import LineWriter, read_text
from nmt.errors import DataError
from nmt.progress import progress_bar

logger = logging.getLogger(__name__)

CONTINUED = "@@"  # at the end of every piece of a BPE word but the last
WORD_START = "▁"  # at the beginning of the first piece of a sentencepiece word
REPLACEMENT = "\ufffd"  # for bytes that spell no character
WORD_END = "</w>"  # what subword-nmt puts at the end of a word

# Strings that mean something to a subword model, and kinds of space that subword-nmt would take
# for the end of a symbol or of a line, each have a stand-in among the characters that Unicode
# sets apart for such use inside programs. A stand-in that is found in the text itself is written
# as the first of them and a letter. Other text is left as it is.
_SPACES = "\t\v\f\r\x1c\x1d\x1e\x1f\x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B)))
_SPECIAL = (
    CONTINUED,
    WORD_START,
    WORD_END,
    *_SPACES,
    "\u2028",
    "\u2029",
    "\u202f",
    "\u205f",
    "\u3000",
)
_ESCAPE = "\ufdd0"
_ESCAPES = {special: chr(0xFDD1 + number) for number, special in enumerate(_SPECIAL)}
_ESCAPES |= {chr(code): _ESCAPE + chr(code - 0xFDD0 + ord("A")) for code in range(0xFDD0, 0xFDF0)}
_UNESCAPES = {escape: special for special, escape in _ESCAPES.items()}
_ESCAPE_PATTERN = re.compile("|".join(map(re.escape, _ESCAPES)))
_UNESCAPE_PATTERN = re.compile(f"{_ESCAPE}[A-`]|[\ufdd1-\ufdef]")

# Longer words are split into parts of this length before BPE, which takes quadratic time, and do
# not take part in learning: they are base64 or a broken file rather than language.
LONGEST_WORD = 200
# Learning takes about 1.3 kB a type; the rarest of so many have next to no say in the merges.
MOST_TYPES = 500_000


def escape(word: str) -> str:
    """The word without any string that means something to a subword model."""
    return _ESCAPE_PATTERN.sub(lambda match: _ESCAPES[match[0]], word)


def unescape(word: str) -> str:
    """The inverse of `escape`; whatever else a model may have put together passes unchanged."""
    return _UNESCAPE_PATTERN.sub(lambda match: _UNESCAPES.get(match[0], match[0]), word)


class Subword(Protocol):
    """A way of splitting words into pieces and of putting pieces together."""

    def split(self, word: str) -> list[str]:
        """The pieces of a word, at least one."""

    def words_of(self, pieces: Sequence[str]) -> list[int]:
        """For each piece the number of its word, from 0 without gaps."""

    def merge(self, pieces: Sequence[str]) -> str:
        """The word that pieces of one word stand for; empty when they stand for nothing."""

    def save(self, path: Path) -> None:
        """Write the model to a file."""


def segment(subword: Subword, words: Iterable[str]) -> list[str]:
    """The pieces of a sequence of words."""
    return [piece for word in words for piece in subword.split(word)]


def join(subword: Subword, pieces: Sequence[str]) -> list[str]:
    """The words of a sequence of pieces."""
    groups: list[list[str]] = []
    for piece, number in zip(pieces, subword.words_of(pieces), strict=True):
        if number == len(groups):
            groups.append([])
        groups[number].append(piece)
    return [word for group in groups if (word := subword.merge(group))]


class WholeWords:
    """No subwords: every word is a piece."""

    def split(self, word: str) -> list[str]:
        """The word itself."""
        return [word]

    def words_of(self, pieces: Sequence[str]) -> list[int]:
        """Every piece is a word."""
        return list(range(len(pieces)))

    def merge(self, pieces: Sequence[str]) -> str:
        """The one piece."""
        return "".join(pieces)

    def save(self, path: Path) -> None:
        """There is nothing to keep."""


class BPE:
    """Byte pair encoding by subword-nmt; all but the last piece of a word end in `@@`.

    `allowed` are the pieces that may come out: others are split further, as far as that goes.
    """

    def __init__(self, merges: Sequence[str], allowed: Collection[str] | None = None) -> None:
        """Merges are lines `left right` of a codes file of version 0.2, most important first."""
        from subword_nmt import apply_bpe

        self.merges = list(merges)
        codes = io.StringIO("\n".join(["#version: 0.2", *self.merges, ""]), newline="\n")
        # With the empty piece, since subword-nmt takes an empty set for no restriction.
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
        self._bpe.cache.clear()  # it would grow without end, and callers remember words anyway
        return pieces

    def words_of(self, pieces: Sequence[str]) -> list[int]:
        """A word ends with a piece without `@@`."""
        number = 0
        numbers = []
        for piece in pieces:
            numbers.append(number)
            number += not piece.endswith(CONTINUED)
        return numbers

    def merge(self, pieces: Sequence[str]) -> str:
        """The pieces without their `@@`."""
        return unescape("".join(piece.removesuffix(CONTINUED) for piece in pieces))

    def save(self, path: Path) -> None:
        """Write a codes file as `subword-nmt learn-bpe` does."""
        with LineWriter(path) as writer:
            writer.write("#version: 0.2")
            for merge in self.merges:
                writer.write(merge)

    @classmethod
    def load(cls, path: Path, allowed: Collection[str] | None = None) -> "BPE":
        """Read a codes file."""
        lines = read_text(path)
        if next(lines, None) != "#version: 0.2":
            raise DataError(f"{path}:1: expected `#version: 0.2`: no file of BPE merges")
        merges = list(lines)
        for number, merge in enumerate(merges, start=2):
            parts = merge.split(" ")
            if len(parts) != 2 or not all(parts) or any(map(str.isspace, merge.replace(" ", ""))):
                raise DataError(f"{path}:{number}: expected two symbols, got {merge[:80]!r}")
        return cls(merges, allowed)


class _MergeSink:
    """Takes the place of the codes file while merges are learned, and shows how far that is."""

    def __init__(self, total: int) -> None:
        self.lines: list[str] = []
        self.bar = progress_bar(total=total, unit="merge", description="learning BPE")

    def write(self, text: str) -> None:
        self.lines.append(text.removesuffix("\n"))
        self.bar.update()


def learn_bpe(counts: Mapping[str, int], *, merges: int) -> BPE:
    """Learn merge operations from counts of words, fewer when the words do not yield so many."""
    from subword_nmt import learn_bpe as subword_nmt_learn

    words = [f"{word} {count}" for word, count in _escaped_counts(counts).items() if len(word) > 1]
    if not words:
        return BPE([])
    sink = _MergeSink(merges)
    # subword-nmt draws its own bar and remarks on standard error.
    with sink.bar, contextlib.redirect_stderr(io.StringIO()):
        subword_nmt_learn.learn_bpe(words, sink, merges, is_dict=True)
    learned = sink.lines[1:]  # after the version
    if len(learned) < merges:
        logger.info(
            "%d BPE merges of %d: no further pair of symbols is repeated", len(learned), merges
        )
    return BPE(learned)


def _escaped_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts that a model is learned from: escaped words, bounded in length and number."""
    escaped: Counter[str] = Counter()
    for word, count in counts.items():
        if len(word) <= LONGEST_WORD:
            escaped[escape(word)] = count
    if len(escaped) > MOST_TYPES:
        logger.info("learning from the %d most frequent words of %d", MOST_TYPES, len(escaped))
    # In the order of their characters at equal counts, so that nothing depends on who counted.
    order = sorted(escaped.items(), key=lambda item: (-item[1], item[0]))
    return dict(order[:MOST_TYPES])


def count_pieces(subword: Subword, counts: Mapping[str, int]) -> Counter[str]:
    """How often each piece occurs in a text with these counts of words."""
    pieces: Counter[str] = Counter()
    for word, count in counts.items():
        for piece in subword.split(word):
            pieces[piece] += count
    return pieces


def spell_common_characters(pieces: Counter[str], *, least: int) -> None:
    """Add both forms, inside a word and at its end, of characters seen `least` times in pieces.

    A new word can then be spelled even when one of its characters was never seen in that place.
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

    The text is taken as it is (no Unicode normalisation), and what the model has no piece for is
    spelled in bytes, so that every word survives.
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
        # All that can come out of a text: everything but <unk>.
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

    def words_of(self, pieces: Sequence[str]) -> list[int]:
        """A word begins with a piece with `▁`."""
        number = -1
        numbers = []
        for piece in pieces:
            if piece.startswith(WORD_START) or number < 0:
                number += 1
            numbers.append(number)
        return numbers

    def merge(self, pieces: Sequence[str]) -> str:
        """The pieces without their `▁`, and bytes as characters where they make some."""
        spelled = b"".join(self._byte_of.get(piece) or piece.encode() for piece in pieces)
        word = unescape(spelled.decode(errors="replace").removeprefix(WORD_START))
        # A blank or a line feed in bytes is a model's mistake, and must not end word or line.
        return word.replace("\n", REPLACEMENT).replace(" ", REPLACEMENT)

    def save(self, path: Path) -> None:
        """Write the model file that sentencepiece reads."""
        path.write_bytes(self.model)

    @classmethod
    def load(cls, path: Path) -> "SentencePiece":
        """Read a model file."""
        try:
            return cls(path.read_bytes(), name=str(path))
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def learn_sentencepiece(
    counts: Mapping[str, int], *, vocabulary_size: int, model: Literal["unigram", "bpe"]
) -> SentencePiece:
    """Learn a model of at most `vocabulary_size` pieces from counts of words.

    Its pieces never cross the border of a word, so counts say all that sentences would.
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
            hard_vocab_limit=False,  # a small corpus yields fewer
            # A large alphabet (Chinese, or crawled text) is left to the bytes at its rare end.
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
            f"from {len(words)} kinds of words: {reason}"
        ) from None
    return SentencePiece(written.getvalue())
