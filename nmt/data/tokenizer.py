"""Splitting raw text into words before subwords, and putting words together again."""

import functools
import logging
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any, Protocol

from nmt.errors import DataError


class Tokenizer(Protocol):
    """One way of splitting a line into words; no word is empty or holds a blank (U+0020)."""

    def tokenize(self, text: str) -> list[str]:
        """The words of a line."""

    def detokenize(self, words: Sequence[str]) -> str:
        """A line of these words."""


class BlankTokenizer:
    """Words are what blanks separate; other kinds of space belong to the words."""

    def tokenize(self, text: str) -> list[str]:
        """The parts between blanks."""
        words = text.split(" ")
        return [word for word in words if word] if "" in words else words

    def detokenize(self, words: Sequence[str]) -> str:
        """The words with blanks between."""
        return " ".join(words)


class MosesTokenizer:
    """The rules of the Moses scripts for a language: punctuation becomes words of its own.

    As in Moses, control characters are lost and every kind of space counts as a blank.
    """

    def __init__(self, language: str) -> None:
        import sacremoses

        self._tokenizer = sacremoses.MosesTokenizer(lang=language)
        self._detokenizer = sacremoses.MosesDetokenizer(lang=language)
        self._plain_detokenizer = sacremoses.MosesDetokenizer(lang="")

    def tokenize(self, text: str) -> list[str]:
        """Words and punctuation marks, as they are (no `&amp;` for `&`)."""
        tokens: list[str] = self._tokenizer.tokenize(text, escape=False)
        return tokens

    def detokenize(self, words: Sequence[str]) -> str:
        """Raw text with punctuation where it belongs."""
        text: str
        try:
            text = self._detokenizer.detokenize(list(words), unescape=False)
        except TypeError:  # sacremoses 0.2 stumbles over Czech words like `e-mail`
            text = self._plain_detokenizer.detokenize(list(words), unescape=False)
        return text


class JiebaTokenizer:
    """Chinese words found by jieba; other scripts in between are kept together."""

    def tokenize(self, text: str) -> list[str]:
        """The words; blanks only separate them."""
        return [word for word in _load_jieba().lcut(text) if word.strip(" ")]

    def detokenize(self, words: Sequence[str]) -> str:
        """Chinese without blanks, one between two words or numbers in letters of other scripts."""
        parts: list[str] = []
        for word in words:
            if parts and _needs_blank(parts[-1], word):
                parts.append(" ")
            parts.append(word)
        return "".join(parts)


def _needs_blank(left: str, right: str) -> bool:
    """Whether a blank belongs between two words of Chinese text."""
    if not right or not _is_alphabetic(right[0]):
        return False
    return _is_alphabetic(left[-1]) or (left[-1] in ",;:!?" and right[0].isalpha())


def _is_alphabetic(character: str) -> bool:
    """A letter or digit of a script that puts blanks between words."""
    return character.isalnum() and not "\u2e80" <= character < "\uac00" and character < "\uf900"


@functools.cache
def _load_jieba() -> Any:
    """The segmenter of jieba with its dictionary, which takes about a second once a process."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import jieba
    except ImportError:
        raise DataError(
            "the tokenizer `jieba` needs the package of that name: pip install nmt[chinese]"
        ) from None
    jieba.setLogLevel(logging.ERROR)
    segmenter = jieba.Tokenizer()
    # By default jieba trusts a cache file that anybody could have put into the temporary folder.
    with tempfile.TemporaryDirectory() as private:
        segmenter.tmp_dir = private
        segmenter.initialize()
    return segmenter


@functools.cache
def make_tokenizer(kind: str, language: str) -> Tokenizer:
    """The tokenizer of a kind (`none`, `moses`, `jieba`) for a language such as `de`."""
    if kind == "none":
        return BlankTokenizer()
    if kind == "moses":
        return MosesTokenizer(language)
    if kind == "jieba":
        _load_jieba()
        return JiebaTokenizer()
    raise DataError(f"expected a tokenizer none, moses or jieba, got {kind!r}")
