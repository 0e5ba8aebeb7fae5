"""Encoding raw text as ids and decoding ids: tokenizer, subwords and vocabulary of both sides."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, takewhile
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.config.limits import LANGUAGE_CODE
from nmt.data.extension import extend_sides
from nmt.data.learning import Counts, LearnedSide, learn_sides, sentencepiece_side, with_reserved
from nmt.data.subword import BPE, LineSentencePiece, SentencePiece, Subword, WholeWords
from nmt.data.text import SIDES, Side, read_text
from nmt.data.tokenizer import TokenizerSpec, count_tokens, make_tokenizer
from nmt.data.vocabulary import BOS, EOS, PAD, UNK, Vocabulary
from nmt.errors import ConfigError, DataError
from nmt.languages import moses_language
from nmt.storage.files import replace_file

if TYPE_CHECKING:
    from nmt.config.config import DataConfig

CODEC_FORMAT = 1
RESERVED_FORMAT = 2  # of a codec with reserved symbols, which format 1 does not have
CACHED_BYTES = 50_000_000  # of words and their ids, per side and process
CACHED_WORD_LENGTH = 100
ENTRY_BYTES = 100  # that a dictionary takes for a key and its value, about
LOOK_AHEAD = 8  # characters of the raw line that a tokenizer may drop in a row
# The endings of files of subword models. Lines are split by models of other toolkits.
SUFFIXES = {
    "bpe": ".codes",
    "sentencepiece": ".model",
    "line_sentencepiece": ".model",
    "none": None,
}
LANGUAGE_TAG = re.compile(">>[^<]*<<")  # before a line, for the language to translate to


@dataclass(frozen=True)
class Segmentation:
    """The words and ids of a line, and the word that each id is part of.

    `words` are separated by spaces in the raw line (for jieba they are its words). `ids` end with
    EOS. `word_of_piece` has the index of a word for each id but EOS. A line that has pieces but no
    words counts as one empty word.
    """

    words: list[str]
    ids: list[int]
    word_of_piece: list[int]


class SideCodec:
    """Encodes and decodes the text of one side."""

    def __init__(self, spec: TokenizerSpec, subword: Subword, vocabulary: Vocabulary) -> None:
        self.spec = spec
        self.tokenizer = make_tokenizer(*spec)
        self.subword = subword
        self.vocabulary = vocabulary
        self._reserved = {
            symbol: tuple(vocabulary.encode([subword.whole(symbol)])) for symbol in spec.reserved
        }
        self._cache: dict[str, tuple[int, ...]] = {}
        self._cached_bytes = 0

    @property
    def reserved_ids(self) -> list[int]:
        """The ids of the reserved symbols."""
        return list(chain.from_iterable(self._reserved.values()))

    def encode(self, text: str) -> list[int]:
        """The ids of a raw line, with EOS at the end."""
        ids: list[int] = []
        cache = self._cache
        for word in self.tokenizer.tokenize(text):
            ids += cache.get(word) or self._encode_word(word)
        ids.append(EOS)
        return ids

    def _encode_word(self, word: str) -> tuple[int, ...]:
        if word in self._reserved:
            return self._reserved[word]
        ids = tuple(self.vocabulary.encode(self.subword.split(word)))
        if len(word) <= CACHED_WORD_LENGTH:
            if self._cached_bytes > CACHED_BYTES:
                self._cache.clear()
                self._cached_bytes = 0
            self._cached_bytes += sys.getsizeof(word) + sys.getsizeof(ids) + ENTRY_BYTES
            self._cache[word] = ids
        return ids

    def unknown_pieces(self, text: str) -> list[str]:
        """The pieces of a raw line that have no id, in order."""
        words = (word for word in self.tokenizer.tokenize(text) if word not in self._reserved)
        pieces = chain.from_iterable(map(self.subword.split, words))
        return [piece for piece in pieces if piece not in self.vocabulary]

    def decode(self, ids: Sequence[int], unknown: Sequence[str] = ()) -> str:
        """The raw text of ids up to the first EOS, without PAD and BOS.

        The first UNKs stand for the `unknown` pieces.
        """
        tokens, _ = self._tokens(_content(ids), unknown)
        return self.tokenizer.detokenize(tokens)

    def segment(self, text: str) -> Segmentation:
        """A raw line with the word that each id is part of."""
        tokens = self.tokenizer.tokenize(text)
        pieces_per_token = [self._cache.get(token) or self._encode_word(token) for token in tokens]
        words, word_of_token = self._words(text, tokens)
        return _segmentation(
            words,
            list(chain.from_iterable(pieces_per_token)),
            [word for word, ids in zip(word_of_token, pieces_per_token, strict=True) for _ in ids],
        )

    def segment_ids(self, ids: Sequence[int], unknown: Sequence[str] = ()) -> Segmentation:
        """The text `decode(ids, unknown)` with the word that each id is part of."""
        content = _content(ids)
        tokens, token_of_piece = self._tokens(content, unknown)
        words, word_of_token = self._words(self.tokenizer.detokenize(tokens), tokens)
        word_of_piece = [word_of_token[token] if word_of_token else 0 for token in token_of_piece]
        return _segmentation(words, content, word_of_piece)

    def _tokens(self, ids: Sequence[int], unknown: Sequence[str]) -> tuple[list[str], list[int]]:
        """The tokens of ids, and for each id the index of its token."""
        return self._group(self._pieces(ids, unknown))

    def _pieces(self, ids: Sequence[int], unknown: Sequence[str]) -> list[str]:
        """The pieces of ids, of which the first UNKs stand for the `unknown` pieces."""
        pieces = [self.vocabulary.piece(token_id) for token_id in ids]
        places = (place for place, token_id in enumerate(ids) if token_id == UNK)
        for place, piece in zip(places, unknown, strict=False):
            pieces[place] = piece
        return pieces

    def _group(self, pieces: Sequence[str]) -> tuple[list[str], list[int]]:
        """The tokens of pieces, and for each piece the index of its token.

        Pieces that merge to an empty word belong to the next token, or at the end to the last one.
        """
        tokens: list[str] = []
        token_of_piece: list[int] = []
        pieces_of_words = zip(self.subword.words_of(pieces), pieces, strict=True)
        for _, group in groupby(pieces_of_words, key=itemgetter(0)):
            own = [piece for _, piece in group]
            token_of_piece += [len(tokens)] * len(own)
            if token := self.subword.merge(own):
                tokens.append(token)
        last = max(len(tokens) - 1, 0)
        return tokens, [min(token, last) for token in token_of_piece]

    def _words(self, text: str, tokens: Sequence[str]) -> tuple[list[str], list[int]]:
        """The words of a raw line, and for each of its tokens the index of a word."""
        if self.spec.kind not in ("moses", "line"):
            return list(tokens), list(range(len(tokens)))
        words = [word for word in text.split(" ") if word]
        return words, follow_characters(words, tokens)


class LineCodec(SideCodec):
    """The text of one side, split by a sentencepiece model of another toolkit.

    The vocabulary has the id of each piece. It may have tags such as `>>deu<<`, which the
    sentencepiece model does not know, for the beginning of a line.
    """

    def encode(self, text: str) -> list[int]:
        """The ids of a raw line, with EOS at the end."""
        return [*self.vocabulary.encode(self._split(text)), EOS]

    def _split(self, text: str) -> list[str]:
        tag = LANGUAGE_TAG.match(text)
        if tag is None or tag[0] not in self.vocabulary:
            return self.subword.split(text)
        return [tag[0], *self.subword.split(text[tag.end() :])]

    def unknown_pieces(self, text: str) -> list[str]:
        """The pieces of a raw line that have no id, in order."""
        return [piece for piece in self._split(text) if piece not in self.vocabulary]

    def decode(self, ids: Sequence[int], unknown: Sequence[str] = ()) -> str:
        """The raw text of ids up to the first EOS, without PAD and BOS (see `SideCodec`)."""
        return self.subword.merge(self._pieces(_content(ids), unknown))

    def segment(self, text: str) -> Segmentation:
        """A raw line with the word that each id is part of."""
        pieces = self._split(text)
        tokens, token_of_piece = self._group(pieces)
        words, word_of_token = self._words(text, tokens)
        word_of_piece = [word_of_token[token] if word_of_token else 0 for token in token_of_piece]
        return _segmentation(words, self.vocabulary.encode(pieces), word_of_piece)


def follow_characters(words: Sequence[str], tokens: Sequence[str]) -> list[int]:
    """For each token the index of the word it comes from; tokens are words split and cleaned.

    Both are read from left to right. A character of a token that is not among the next few of the
    words was changed by the tokenizer and is skipped.
    """
    raw = "".join(words)
    if not raw:
        return [0] * len(tokens)
    word_of_character = [index for index, word in enumerate(words) for _ in word]
    position = 0
    word_of_token: list[int] = []
    for token in tokens:
        first = raw.find(token, position, position + len(token) + LOOK_AHEAD)
        if first >= 0:
            position = first + len(token)
        for character in token if first < 0 else "":
            found = raw.find(character, position, position + LOOK_AHEAD)
            if found >= 0:
                first = found if first < 0 else first
                position = found + 1
        if first < 0:  # nothing was recognised: take the current word
            first = min(position, len(raw) - 1)
        word_of_token.append(word_of_character[first])
    return word_of_token


def _content(ids: Sequence[int]) -> list[int]:
    """The ids of text: up to EOS, without PAD and BOS."""
    text = takewhile(lambda token_id: token_id != EOS, ids)
    return [int(token_id) for token_id in text if token_id not in (PAD, BOS)]


def _segmentation(words: list[str], ids: list[int], word_of_piece: list[int]) -> Segmentation:
    assert len(ids) == len(word_of_piece)
    return Segmentation(words or ([""] if ids else []), [*ids, EOS], word_of_piece)


class Codec:
    """Encodes and decodes the text of both sides; it is stored in a few files.

    With a shared vocabulary an id means the same piece on both sides.
    """

    def __init__(
        self,
        specs: Mapping[Side, TokenizerSpec],
        learned: Mapping[Side, LearnedSide],
        *,
        kind: str,
        joint: bool,
        shared: Vocabulary | None,
    ) -> None:
        """Use `from_counts`, `learn` or `load`."""
        reserved = specs["source"].reserved
        learned = {
            side: replace(it, counts=with_reserved(it.counts, it.subword, reserved))
            for side, it in learned.items()
        }
        if shared is not None:
            counts = with_reserved(shared.counts, learned["source"].subword, reserved)
            shared = Vocabulary(counts)
        self._kind = kind
        self._joint = joint
        self._shared = shared
        self._learned = learned
        make = LineCodec if kind == "line_sentencepiece" else SideCodec
        self.source, self.target = (
            make(specs[side], learned[side].subword, shared or Vocabulary(learned[side].counts))
            for side in SIDES
        )

    @classmethod
    def from_counts(
        cls, config: "DataConfig", counts: Mapping[Side, Counts], *, shared_vocabulary: bool = False
    ) -> "Codec":
        """Learn subwords and vocabularies from the counts of the tokenizer's words on each side.

        The config leaves nothing open (see `choose_encoding`).
        """
        subword, specs = config.subword, tokenizer_specs(config)
        reserved = frozenset(specs["source"].reserved)
        counts = {
            side: {word: count for word, count in counts[side].items() if word not in reserved}
            for side in SIDES
        }
        for side in SIDES:
            if not counts[side]:
                raise DataError(f"the {side} side of the training data has no words")
        if subword.kind == "sentencepiece" and shared_vocabulary and not subword.joint:
            raise ConfigError(
                "a vocabulary shared by both sides (`model.tie_embeddings: all`) needs one "
                "sentencepiece model for both: set `data.subword.joint: true`"
            )
        learned = learn_sides(subword, counts)
        shared = None
        if shared_vocabulary and subword.kind == "none":
            both = Counter(counts["source"]) + Counter(counts["target"])
            shared = Vocabulary.build(both, max_pieces=subword.vocabulary_size)
        elif shared_vocabulary and subword.kind == "bpe":
            both = Counter(learned["source"].counts)
            both.update(learned["target"].counts)  # which keeps pieces with the count 0
            shared = Vocabulary.build(both)
        return cls(specs, learned, kind=subword.kind, joint=subword.joint, shared=shared)

    @classmethod
    def learn(
        cls,
        config: "DataConfig",
        pairs: Iterable[tuple[str, str]],
        *,
        shared_vocabulary: bool = False,
    ) -> "Codec":
        """Learn from sentence pairs that fit into memory."""
        from nmt.data.encoding_choice import choose_encoding

        texts = list(pairs)
        config = choose_encoding(config, pairs=len(texts))
        specs = tokenizer_specs(config)
        counts = {
            side: count_tokens((pair[index] for pair in texts), make_tokenizer(*specs[side]))
            for index, side in enumerate(SIDES)
        }
        return cls.from_counts(config, counts, shared_vocabulary=shared_vocabulary)

    @property
    def reserved(self) -> tuple[str, ...]:
        """The symbols that are never split, on both sides."""
        return self.source.spec.reserved

    def extended(
        self, counts: Mapping[Side, Counts], *, most: int, symbols: Iterable[str] = ()
    ) -> "Codec":
        """This codec with up to `most` more pieces in each vocabulary, from new counts of words.

        All pieces keep their ids, and text without a new piece is encoded as before. Reserved
        `symbols` that are new are pieces, too.
        """
        reserved = tuple(dict.fromkeys([*self.reserved, *symbols]))
        words = {
            side: {word: count for word, count in counts[side].items() if word not in reserved}
            for side in SIDES
        }
        learned, shared = extend_sides(
            self._learned, words, joint=self._joint, shared=self._shared, most=most
        )
        specs: dict[Side, TokenizerSpec] = {
            "source": self.source.spec._replace(reserved=reserved),
            "target": self.target.spec._replace(reserved=reserved),
        }
        return Codec(specs, learned, kind=self._kind, joint=self._joint, shared=shared)

    def files(self) -> list[str]:
        """The names of the files that `save` writes."""
        return sorted(["codec.json", *self._subword_files(), *self._vocabularies()])

    def _subword_files(self) -> dict[str, Subword]:
        suffix = SUFFIXES[self._kind]
        if suffix is None:
            return {}
        if self._joint:
            return {f"joint{suffix}": self.source.subword}
        return {f"{side}{suffix}": self._learned[side].subword for side in SIDES}

    def _vocabularies(self) -> dict[str, Vocabulary]:
        """The vocabulary files; a sentencepiece model is its own vocabulary.

        A shared vocabulary is added to those of the sides: BPE only uses pieces that were seen on
        its side.
        """
        if self._kind == "sentencepiece":
            return {}
        files = {f"{side}.vocabulary": Vocabulary(self._learned[side].counts) for side in SIDES}
        return files if self._shared is None else {**files, "shared.vocabulary": self._shared}

    def save(self, directory: Path) -> None:
        """Write the files into a directory."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, subword in self._subword_files().items():
            subword.save(directory / name)
        for name, vocabulary in self._vocabularies().items():
            vocabulary.save(directory / name)
        specs = {"source": self.source.spec, "target": self.target.spec}
        reserved = list(self.reserved)
        description = {
            "format": RESERVED_FORMAT if reserved else CODEC_FORMAT,
            **{side: {"tokenizer": it.kind, "language": it.language} for side, it in specs.items()},
            "subword": self._kind,
            "joint": self._joint,
            "shared_vocabulary": self._shared is not None,
            **({"reserved": reserved} if reserved else {}),
        }
        text = json.dumps(description, indent=2, ensure_ascii=False)
        replace_file(directory / "codec.json", f"{text}\n".encode())

    @classmethod
    def load(cls, directory: Path) -> "Codec":
        """Read the files that `save` wrote."""
        description = _read_description(directory / "codec.json")
        kind, joint = description["subword"], description["joint"]
        reserved = tuple(description.get("reserved", ()))
        specs = {
            side: TokenizerSpec(
                description[side]["tokenizer"], description[side]["language"], reserved
            )
            for side in SIDES
        }
        learned = {side: _load_side(directory, side, kind, joint) for side in SIDES}
        shared = None
        if description["shared_vocabulary"]:
            shared = Vocabulary.load(directory / "shared.vocabulary")
        return cls(specs, learned, kind=kind, joint=joint, shared=shared)


def tokenizer_specs(config: "DataConfig") -> dict[Side, TokenizerSpec]:
    """The tokenizers of both sides."""
    kinds = {"source": config.tokenizer.source, "target": config.tokenizer.target}
    codes = {"source": config.source_language, "target": config.target_language}
    return {
        side: TokenizerSpec(
            kinds[side],
            moses_language(codes[side]) if kinds[side] == "moses" else codes[side],
            config.reserved,
        )
        for side in SIDES
    }


def _load_side(directory: Path, side: str, kind: str, joint: bool) -> LearnedSide:
    model = directory / f"{'joint' if joint else side}{SUFFIXES[kind]}"
    if kind == "sentencepiece":
        return sentencepiece_side(SentencePiece.load(model))
    counts = Vocabulary.load(directory / f"{side}.vocabulary").counts
    if kind == "line_sentencepiece":
        return LearnedSide(LineSentencePiece.load(model), counts)
    return LearnedSide(BPE.load(model, counts) if kind == "bpe" else WholeWords(), counts)


def _read_description(path: Path) -> dict[str, Any]:
    """The content of codec.json, checked."""
    try:
        description: Any = json.loads("\n".join(read_text(path)))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected JSON ({error})") from None
    expected = {"format": int, "subword": str, "joint": bool, "shared_vocabulary": bool}
    if (
        not _has(description, expected)
        or not all(
            _has(description.get(side), {"tokenizer": str, "language": str})
            and LANGUAGE_CODE.fullmatch(description[side]["language"])
            for side in SIDES
        )
        or description["format"] not in (CODEC_FORMAT, RESERVED_FORMAT)
        or description["subword"] not in SUFFIXES
        or not _are_symbols(description.get("reserved", []))
    ):
        raise DataError(
            f"{path}: expected the description of a codec of format {CODEC_FORMAT} or "
            f"{RESERVED_FORMAT}"
        )
    return dict(description)


def _are_symbols(value: Any) -> bool:
    """Whether a value is a list of texts that can be reserved symbols."""
    return isinstance(value, list) and all(
        isinstance(symbol, str) and symbol and not any(map(str.isspace, symbol)) for symbol in value
    )


def _has(value: Any, types: Mapping[str, type]) -> bool:
    """Whether a value is a dictionary with keys of these types."""
    return isinstance(value, dict) and all(
        isinstance(value.get(key), kind) for key, kind in types.items()
    )
