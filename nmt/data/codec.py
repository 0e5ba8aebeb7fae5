"""From raw text to numbers and back: tokenizer, subwords and vocabulary of both sides."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.data.learning import Side, learn_sides, sentencepiece_side
from nmt.data.subword import BPE, SentencePiece, Subword, WholeWords
from nmt.data.text import LineWriter, read_text
from nmt.data.tokenizer import Tokenizer, make_tokenizer
from nmt.data.vocabulary import BOS, EOS, PAD, Vocabulary
from nmt.errors import ConfigError, DataError

if TYPE_CHECKING:
    from nmt.config.config import DataConfig

FORMAT = 1
LANGUAGE = re.compile(r"[A-Za-z]+(?:[-_][A-Za-z0-9]+)*")  # a code such as en or pt-BR
CACHED_WORDS = 200_000  # a side and process, about 50 MB
CACHED_WORD_LENGTH = 100
LOOK_AHEAD = 8  # characters of the raw line that a tokenizer may drop at a time
MOST_COUNTED = 2_000_000  # word types kept while counting, about 240 MB


@dataclass(frozen=True)
class Segmentation:
    """A line as words and as numbers, and which belongs to which.

    `words` are what blanks separate in the raw line (the words of the tokenizer for jieba), `ids`
    end with EOS, and `word_of_piece` says for every id but EOS which word it is part of. A line
    without words that has pieces nevertheless counts as one empty word.
    """

    words: list[str]
    ids: list[int]
    word_of_piece: list[int]


@dataclass(frozen=True)
class TokenizerSpec:
    """Which tokenizer a side uses."""

    kind: str
    language: str


class SideCodec:
    """Text and numbers of one side."""

    def __init__(self, spec: TokenizerSpec, subword: Subword, vocabulary: Vocabulary) -> None:
        self.spec = spec
        self.tokenizer: Tokenizer = make_tokenizer(spec.kind, spec.language)
        self.subword = subword
        self.vocabulary = vocabulary
        self._cache: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str) -> list[int]:
        """The numbers of a raw line, with EOS at the end."""
        ids: list[int] = []
        cache = self._cache
        for word in self.tokenizer.tokenize(text):
            ids += cache.get(word) or self._encode_word(word)
        ids.append(EOS)
        return ids

    def _encode_word(self, word: str) -> tuple[int, ...]:
        ids = tuple(self.vocabulary.encode(self.subword.split(word)))
        if len(word) <= CACHED_WORD_LENGTH:
            if len(self._cache) >= CACHED_WORDS:
                self._cache.clear()
            self._cache[word] = ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The raw text of numbers up to the first EOS; PAD and BOS are passed over."""
        tokens, _ = self._tokens(_content(ids))
        return self.tokenizer.detokenize(tokens)

    def segment(self, text: str) -> Segmentation:
        """A raw line with the word that each number is part of."""
        tokens = self.tokenizer.tokenize(text)
        pieces_per_token = [self._cache.get(token) or self._encode_word(token) for token in tokens]
        words, word_of_token = self._words(text, tokens)
        return _segmentation(
            words,
            [number for ids in pieces_per_token for number in ids],
            [word for word, ids in zip(word_of_token, pieces_per_token, strict=True) for _ in ids],
        )

    def segment_ids(self, ids: Sequence[int]) -> Segmentation:
        """The text `decode(ids)` with the word that each number is part of."""
        content = _content(ids)
        tokens, token_of_piece = self._tokens(content)
        words, word_of_token = self._words(self.tokenizer.detokenize(tokens), tokens)
        word_of_piece = [word_of_token[token] if word_of_token else 0 for token in token_of_piece]
        return _segmentation(words, content, word_of_piece)

    def _tokens(self, ids: Sequence[int]) -> tuple[list[str], list[int]]:
        """The tokens that pieces make up, and for each piece the number of its token.

        Pieces that stand for nothing belong to the token after them, at the end to the last one.
        """
        pieces = [self.vocabulary.piece(number) for number in ids]
        groups: list[list[str]] = []
        for piece, number in zip(pieces, self.subword.words_of(pieces), strict=True):
            if number == len(groups):
                groups.append([])
            groups[number].append(piece)
        tokens: list[str] = []
        token_of_piece: list[int] = []
        for group in groups:
            token_of_piece += [len(tokens)] * len(group)
            if token := self.subword.merge(group):
                tokens.append(token)
        last = max(len(tokens) - 1, 0)
        return tokens, [min(token, last) for token in token_of_piece]

    def _words(self, text: str, tokens: Sequence[str]) -> tuple[list[str], list[int]]:
        """The words of a raw line, and for each of its tokens the number of a word."""
        if self.spec.kind != "moses":
            return list(tokens), list(range(len(tokens)))
        words = [word for word in text.split(" ") if word]
        return words, follow_characters(words, tokens)


def follow_characters(words: Sequence[str], tokens: Sequence[str]) -> list[int]:
    """For each token the word that it comes from, when tokens spell much the same as words.

    Both are read from left to right; a character of a token that is not found among the next few
    of the words has been changed by the tokenizer and is passed over.
    """
    raw = "".join(words)
    if not raw:
        return [0] * len(tokens)
    word_of_character = [number for number, word in enumerate(words) for _ in word]
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
        if first < 0:  # nothing was recognised: the word where we are
            first = min(position, len(raw) - 1)
        word_of_token.append(word_of_character[first])
    return word_of_token


def _content(ids: Sequence[int]) -> list[int]:
    """The ids of text: up to EOS, without padding and beginnings."""
    content: list[int] = []
    for number in ids:
        if number == EOS:
            break
        if number not in (PAD, BOS):
            content.append(int(number))
    return content


def _segmentation(words: list[str], ids: list[int], word_of_piece: list[int]) -> Segmentation:
    assert len(ids) == len(word_of_piece)
    return Segmentation(words or ([""] if ids else []), [*ids, EOS], word_of_piece)


def count_words(
    texts: Iterable[str], tokenizer: Tokenizer, counts: Counter[str] | None = None
) -> Counter[str]:
    """Add the words of texts to counts (new ones unless given), and return these.

    When there are more types than memory should hold, those seen once so far are forgotten.
    """
    counts = Counter() if counts is None else counts
    for text in texts:
        counts.update(tokenizer.tokenize(text))
        if len(counts) > MOST_COUNTED:
            forget_rare(counts, MOST_COUNTED)
    return counts


def forget_rare(counts: Counter[str], limit: int) -> None:
    """Drop the rarest words until at most half of `limit` types are left."""
    threshold = 1
    while len(counts) > limit // 2:
        for word in [word for word, count in counts.items() if count <= threshold]:
            del counts[word]
        threshold *= 2


class Codec:
    """Text and numbers of both sides, in a few files.

    With a shared vocabulary a number means the same piece on both sides.
    """

    def __init__(
        self,
        specs: tuple[TokenizerSpec, TokenizerSpec],
        sides: tuple[Side, Side],
        *,
        kind: str,
        joint: bool,
        shared: Vocabulary | None,
    ) -> None:
        """Use `from_counts`, `learn` or `load`."""
        self._kind = kind
        self._joint = joint
        self._shared = shared
        self._sides = sides
        self.source, self.target = (
            SideCodec(spec, side.subword, shared or Vocabulary(side.counts))
            for spec, side in zip(specs, sides, strict=True)
        )

    @property
    def shared_vocabulary(self) -> bool:
        """Whether both sides use the same numbers for the same pieces."""
        return self.source.vocabulary == self.target.vocabulary

    @classmethod
    def from_counts(
        cls,
        config: "DataConfig",
        source_counts: Mapping[str, int],
        target_counts: Mapping[str, int],
        *,
        shared_vocabulary: bool = False,
    ) -> "Codec":
        """Learn subwords and vocabularies from how often each word occurs on either side.

        The words are those of `tokenizers(config)`, counted with `count_words`; counts of parts
        of a corpus are added up.
        """
        for name, counts in (("source", source_counts), ("target", target_counts)):
            if not counts:
                raise DataError(f"the {name} side of the training data has no words")
        subword = config.subword
        if subword.kind == "sentencepiece" and shared_vocabulary and not subword.joint:
            raise ConfigError(
                "a vocabulary shared by both sides (`model.tie_embeddings: all`) needs one "
                "sentencepiece model for both: set `data.subword.joint: true`"
            )
        sides = learn_sides(subword, source_counts, target_counts)
        shared = None
        if shared_vocabulary and subword.kind != "sentencepiece":
            if subword.kind == "none":
                both = Counter(source_counts) + Counter(target_counts)
                shared = Vocabulary.build(both, max_pieces=subword.vocabulary_size)
            else:
                shared = Vocabulary.build(Counter(sides[0].counts) + Counter(sides[1].counts))
        return cls(_specs(config), sides, kind=subword.kind, joint=subword.joint, shared=shared)

    @classmethod
    def learn(
        cls,
        config: "DataConfig",
        pairs: Iterable[tuple[str, str]],
        *,
        shared_vocabulary: bool = False,
    ) -> "Codec":
        """Learn from the text of sentence pairs."""
        tokenizers = make_tokenizers(config)
        counts: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        for pair in pairs:
            for text, tokenizer, side in zip(pair, tokenizers, counts, strict=True):
                count_words((text,), tokenizer, side)
        return cls.from_counts(config, *counts, shared_vocabulary=shared_vocabulary)

    def files(self) -> list[str]:
        """The names of the files that `save` writes."""
        return sorted(["codec.json", *self._subword_files(), *self._vocabularies()])

    def _subword_files(self) -> dict[str, Subword]:
        suffix = _SUFFIXES[self._kind]
        if suffix is None:
            return {}
        if self._joint:
            return {f"joint{suffix}": self.source.subword}
        return {f"source{suffix}": self.source.subword, f"target{suffix}": self.target.subword}

    def _vocabularies(self) -> dict[str, Vocabulary]:
        """The vocabulary files; a sentencepiece model is its own vocabulary.

        A shared vocabulary comes in addition to those of the sides: BPE uses only pieces that were
        seen on a side.
        """
        if self._kind == "sentencepiece":
            return {}
        source, target = (Vocabulary(side.counts) for side in self._sides)
        files = {"source.vocabulary": source, "target.vocabulary": target}
        if self._shared is not None:
            files["shared.vocabulary"] = self._shared
        return files

    def save(self, directory: Path) -> None:
        """Write the files into a directory."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, subword in self._subword_files().items():
            subword.save(directory / name)
        for name, vocabulary in self._vocabularies().items():
            vocabulary.save(directory / name)
        description = {
            "format": FORMAT,
            "source": {"tokenizer": self.source.spec.kind, "language": self.source.spec.language},
            "target": {"tokenizer": self.target.spec.kind, "language": self.target.spec.language},
            "subword": self._kind,
            "joint": self._joint,
            "shared_vocabulary": self._shared is not None,
        }
        with LineWriter(directory / "codec.json") as writer:
            for line in json.dumps(description, indent=2, ensure_ascii=False).split("\n"):
                writer.write(line)

    @classmethod
    def load(cls, directory: Path) -> "Codec":
        """Read what `save` wrote."""
        description = _read_description(directory / "codec.json")
        kind, joint = description["subword"], description["joint"]
        specs = tuple(
            TokenizerSpec(description[side]["tokenizer"], description[side]["language"])
            for side in ("source", "target")
        )
        source, target = (_load_side(directory, side, kind, joint) for side in ("source", "target"))
        shared = None
        if description["shared_vocabulary"]:
            shared = Vocabulary.load(directory / "shared.vocabulary")
        return cls((specs[0], specs[1]), (source, target), kind=kind, joint=joint, shared=shared)


def make_tokenizers(config: "DataConfig") -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of the source and the target side."""
    source, target = (make_tokenizer(spec.kind, spec.language) for spec in _specs(config))
    return source, target


def _specs(config: "DataConfig") -> tuple[TokenizerSpec, TokenizerSpec]:
    return (
        TokenizerSpec(config.tokenizer.source, config.source_language),
        TokenizerSpec(config.tokenizer.target, config.target_language),
    )


_SUFFIXES = {"bpe": ".codes", "sentencepiece": ".model", "none": None}


def _load_side(directory: Path, side: str, kind: str, joint: bool) -> Side:
    model = directory / f"{'joint' if joint else side}{_SUFFIXES[kind]}"
    if kind == "sentencepiece":
        return sentencepiece_side(SentencePiece.load(model))
    counts = Vocabulary.load(directory / f"{side}.vocabulary").counts
    return Side(BPE.load(model, counts) if kind == "bpe" else WholeWords(), counts)


def _read_description(path: Path) -> dict[str, Any]:
    """The content of codec.json, checked."""
    try:
        description = json.loads("\n".join(read_text(path)))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected JSON ({error})") from None
    sides = {"tokenizer": str, "language": str}
    expected = {"format": int, "subword": str, "joint": bool, "shared_vocabulary": bool}
    whole = isinstance(description, dict) and all(
        isinstance(description.get(key), kind) for key, kind in expected.items()
    )
    whole = whole and all(
        isinstance(description.get(side), dict)
        and all(isinstance(description[side].get(key), kind) for key, kind in sides.items())
        and LANGUAGE.fullmatch(description[side]["language"])
        for side in ("source", "target")
    )
    if not whole or description["format"] != FORMAT or description["subword"] not in _SUFFIXES:
        raise DataError(f"{path}: expected the description of a codec of format {FORMAT}")
    checked: dict[str, Any] = description
    return checked
