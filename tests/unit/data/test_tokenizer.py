"""Tokenizers and their detokenizers."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.data import tokenizer as tokenizer_module
from nmt.data.tokenizer import make_tokenizer
from nmt.errors import DataError, UserError

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=60)


@given(TEXT)
def test_none_splits_at_blanks_only(text: str) -> None:
    tokenizer = make_tokenizer("none", "en")
    words = tokenizer.tokenize(text)
    assert all(words)
    assert tokenizer.detokenize(words) == " ".join(part for part in text.split(" ") if part)


def test_none_keeps_other_spaces_inside_words() -> None:
    words = make_tokenizer("none", "fr").tokenize("12\xa0000 a\u2028b \t  c\u3000")
    assert words == ["12\xa0000", "a\u2028b", "\t", "c\u3000"]


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("en", 'He said, "it\'s 3,000."', ["He", "said", ",", '"', "it", "'s", "3,000", ".", '"']),
        ("de", "Dr. Müller kommt, oder?", ["Dr.", "Müller", "kommt", ",", "oder", "?"]),
        ("fr", "l'homme n'a pas d'eau.", ["l'", "homme", "n'", "a", "pas", "d'", "eau", "."]),
        ("en", "well-known & <b> | [x]", ["well-known", "&", "<", "b", ">", "|", "[", "x", "]"]),
    ],
)
def test_moses_splits_without_escaping_and_dashes(
    language: str, text: str, words: list[str]
) -> None:
    assert make_tokenizer("moses", language).tokenize(text) == words


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", 'He said: "it\'s 3,000 (or so)."'),
        ("en", "A man in a well-known T-shirt isn't here; she is."),
        ("de", "Dr. Müller kommt, oder? Ja!"),
        ("fr", "l'homme n'a pas d'eau."),
        ("fi", "Olen Suomessa, kiitos."),
        ("xx", "No language, but words."),
    ],
)
def test_moses_restores_ordinary_text(language: str, text: str) -> None:
    tokenizer = make_tokenizer("moses", language)
    assert tokenizer.detokenize(tokenizer.tokenize(text)) == text


def test_moses_leaves_entities_alone() -> None:
    assert make_tokenizer("moses", "en").detokenize(["AT", "&amp;", "T"]) == "AT &amp; T"


@pytest.mark.parametrize("language", ["en", "fr", "fi", "cs", "xx"])
@settings(max_examples=60)
@given(text=TEXT)
def test_moses_never_fails_and_gives_proper_words(language: str, text: str) -> None:
    tokenizer = make_tokenizer("moses", language)
    words = tokenizer.tokenize(text)
    assert all(word and " " not in word for word in words)
    assert "\n" not in tokenizer.detokenize(words)


def test_moses_detokenizes_czech_dashes() -> None:
    words = ["e", "-", "mail", "je", "-", "li"]
    assert "".join(words) in make_tokenizer("moses", "cs").detokenize(words).replace(" ", "")


def test_jieba_finds_words_and_joins_them() -> None:
    tokenizer = make_tokenizer("jieba", "zh")
    words = tokenizer.tokenize("我爱北京天安门 Python 3.14 很好，对吗？")
    assert words[:4] == ["我", "爱", "北京", "天安门"]
    assert tokenizer.detokenize(words) == "我爱北京天安门Python 3.14很好，对吗？"
    english = tokenizer.tokenize("Hello, big world 2024 end")
    assert tokenizer.detokenize(english) == "Hello, big world 2024 end"


@given(TEXT)
def test_jieba_keeps_all_but_blanks(text: str) -> None:
    tokenizer = make_tokenizer("jieba", "zh")
    words = tokenizer.tokenize(text)
    assert all(word and " " not in word for word in words)
    assert "".join(words) == text.replace(" ", "")
    assert tokenizer.detokenize(words).replace(" ", "") == text.replace(" ", "")


def test_jieba_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jieba", None)
    tokenizer_module._load_jieba.cache_clear()
    tokenizer_module.make_tokenizer.cache_clear()
    with pytest.raises(UserError, match=r"pip install 'nmt\[chinese\]'"):
        make_tokenizer("jieba", "zh")


def test_unknown_tokenizer_is_an_error() -> None:
    with pytest.raises(DataError, match="got 'mosses'"):
        make_tokenizer("mosses", "en")
