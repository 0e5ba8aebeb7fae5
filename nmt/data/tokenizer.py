"""Tokenizers: splitting raw text into words, and joining words into raw text."""

import contextlib
import functools
import importlib
import logging
import re
import sys
import tempfile
import types
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

from nmt.errors import DataError, require_package

PRIVATE_USE = "".join(map(chr, range(0xE000, 0xF900)))  # characters without a meaning in Unicode


class Tokenizer(Protocol):
    """Splits a line into words; no word is empty or contains a space (U+0020)."""

    def tokenize(self, text: str) -> list[str]:
        """The words of a line."""

    def detokenize(self, words: Sequence[str]) -> str:
        """The line that words make up."""


class SpaceTokenizer:
    """Splits at spaces (U+0020); other kinds of white space belong to the words."""

    def tokenize(self, text: str) -> list[str]:
        """The parts between spaces."""
        words = text.split(" ")
        return [word for word in words if word] if "" in words else words

    def detokenize(self, words: Sequence[str]) -> str:
        """The words joined by spaces."""
        return " ".join(words)


class LineTokenizer:
    """Leaves a line whole, for subword models that split lines themselves."""

    def tokenize(self, text: str) -> list[str]:
        """The line."""
        return [text] if text else []

    def detokenize(self, words: Sequence[str]) -> str:
        """The words joined by spaces."""
        return " ".join(words)


@contextlib.contextmanager
def joblib_later() -> Iterator[None]:
    """Let an import of sacremoses import joblib only when it is called.

    sacremoses needs joblib for files in several processes, which nmt does not ask of it. Importing
    it takes as long as all else that translating one line with a packed model imports.
    """
    if "joblib" in sys.modules or "sacremoses" in sys.modules:
        yield
        return
    stand_in = types.ModuleType("joblib")
    for name in ("Parallel", "delayed"):
        setattr(stand_in, name, functools.partial(_call_joblib, name))
    sys.modules["joblib"] = stand_in
    try:
        yield
    finally:
        del sys.modules["joblib"]


def _call_joblib(name: str, *arguments: Any, **options: Any) -> Any:
    return getattr(importlib.import_module("joblib"), name)(*arguments, **options)


class MosesTokenizer:
    """The Moses tokenizer of a language, which makes punctuation marks separate words.

    As in Moses, control characters are lost and all white space counts as a space.
    """

    def __init__(self, language: str) -> None:
        with joblib_later():
            import sacremoses

        self._tokenizer = sacremoses.MosesTokenizer(lang=language)
        self._detokenizer = sacremoses.MosesDetokenizer(lang=language)
        self._plain_detokenizer = sacremoses.MosesDetokenizer(lang="")

    def tokenize(self, text: str) -> list[str]:
        """Words and punctuation marks without escapes (`&` stays `&`)."""
        tokens: list[str] = self._tokenizer.tokenize(text, escape=False)
        return tokens

    def detokenize(self, words: Sequence[str]) -> str:
        """Raw text with punctuation where it belongs."""
        text: str
        try:
            text = self._detokenizer.detokenize(list(words), unescape=False)
        except TypeError:  # sacremoses 0.2 fails on Czech words like `e-mail`
            text = self._plain_detokenizer.detokenize(list(words), unescape=False)
        return text


class JiebaTokenizer:
    """Splits Chinese into words with jieba; words of other scripts stay whole."""

    def tokenize(self, text: str) -> list[str]:
        """The words without the spaces between them."""
        return [word for word in _load_jieba().lcut(text) if word.strip(" ")]

    def detokenize(self, words: Sequence[str]) -> str:
        """Chinese without spaces, and a space between two words or numbers of other scripts."""
        parts: list[str] = []
        for word in words:
            if parts and _needs_space(parts[-1], word):
                parts.append(" ")
            parts.append(word)
        return "".join(parts)


class ReservedSymbols:
    """A tokenizer with symbols that are words of their own wherever they stand, never changed.

    For the tokenizer inside, a symbol is a character of Unicode's private use area that the text
    does not have. Where two symbols begin at the same place, the longer one counts.
    """

    def __init__(self, tokenizer: Tokenizer, symbols: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._symbols = frozenset(symbols)
        longest_first = sorted(symbols, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def tokenize(self, text: str) -> list[str]:
        """The words of a line, the symbols among them."""
        found = self._pattern.findall(text)
        if not found:
            return self._tokenizer.tokenize(text)
        mark, symbols = unused_character(text), iter(found)
        words = self._tokenizer.tokenize(self._pattern.sub(f" {mark} ", text))
        return [next(symbols, word) if word == mark else word for word in words]

    def detokenize(self, words: Sequence[str]) -> str:
        """The line that words make up, with the symbols as they are."""
        mark = unused_character("".join(words))
        symbols = iter([word for word in words if word in self._symbols])
        marked = [mark if word in self._symbols else word for word in words]
        text = self._tokenizer.detokenize(marked)
        return re.sub(mark, lambda match: next(symbols, match[0]), text)


def unused_character(text: str) -> str:
    """A character for private use that a text does not have; the first if it has all of them."""
    return next((mark for mark in PRIVATE_USE if mark not in text), PRIVATE_USE[0])


def _needs_space(left: str, right: str) -> bool:
    """Whether two words of Chinese text are separated by a space."""
    if not right or not _is_alphabetic(right[0]):
        return False
    return _is_alphabetic(left[-1]) or (left[-1] in ",;:!?" and right[0].isalpha())


def _is_alphabetic(character: str) -> bool:
    """Whether this is a letter or digit of a script that separates words by spaces."""
    return character.isalnum() and not "\u2e80" <= character < "\uac00" and character < "\uf900"


@functools.cache
def _load_jieba() -> Any:
    """The segmenter of jieba; loading its dictionary takes about a second per process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        require_package("jieba", extra="chinese", purpose="the tokenizer jieba")
        import jieba
    jieba.setLogLevel(logging.ERROR)
    segmenter = jieba.Tokenizer()
    # By default jieba loads a cache file from the shared temporary directory, which is not safe.
    with tempfile.TemporaryDirectory() as private:
        segmenter.tmp_dir = private
        segmenter.initialize()
    return segmenter


class TokenizerSpec(NamedTuple):
    """The tokenizer of a side; the arguments of `make_tokenizer`."""

    kind: str
    language: str
    reserved: tuple[str, ...] = ()


@functools.cache
def make_tokenizer(kind: str, language: str, reserved: tuple[str, ...] = ()) -> Tokenizer:
    """The tokenizer of a kind (`none`, `moses`, `jieba`, `line`) for a language such as `de`."""
    if reserved:
        return ReservedSymbols(make_tokenizer(kind, language), reserved)
    if kind == "none":
        return SpaceTokenizer()
    if kind == "line":
        return LineTokenizer()
    if kind == "moses":
        return MosesTokenizer(language)
    if kind == "jieba":
        _load_jieba()
        return JiebaTokenizer()
    raise DataError(f"expected a tokenizer none, moses or jieba, got {kind!r}")


def count_tokens(texts: Iterable[str], tokenizer: Tokenizer) -> Counter[str]:
    """The number of occurrences of each word in texts."""
    return Counter(chain.from_iterable(map(tokenizer.tokenize, texts)))
