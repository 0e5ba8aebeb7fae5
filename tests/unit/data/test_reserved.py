"""Reserved symbols: one id each, never split or learned from, the same in text and back."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nmt.config.config import (
    DataConfig,
    ParallelFiles,
    SubwordConfig,
    TokenizerConfig,
    TrainingCorpus,
)
from nmt.data.codec import Codec
from nmt.data.tokenizer import make_tokenizer
from nmt.data.vocabulary import CONTROL, UNK
from nmt.errors import DataError

# Symbols that Moses, BPE and sentencepiece would each take apart, one of which begins another.
SYMBOLS = ("<num>", "<b>", "</b>", "__URL__", "a@@", "@@", "▁x", "(c)", "{0}", "{0}{1}")
ENGLISH = ["the old man sees a dog .", "a dog is running through the garden ."]
GERMAN = ["der alte Mann sieht einen Hund .", "ein Hund läuft durch den Garten ."]
PAIRS = [*zip(ENGLISH, GERMAN, strict=True)] * 3 + [("see <b> this", "sieh <b> das")] * 5
SUBWORDS = {
    "bpe": SubwordConfig("bpe", merges=80),
    "bpe-separate": SubwordConfig("bpe", merges=80, joint=False, vocabulary_threshold=3),
    "unigram": SubwordConfig("sentencepiece", vocabulary_size=340),
    "sentencepiece-bpe": SubwordConfig("sentencepiece", vocabulary_size=340, model="bpe"),
    "unigram-separate": SubwordConfig("sentencepiece", vocabulary_size=320, joint=False),
    "none": SubwordConfig("none", vocabulary_size=30),
}


def learn(kind: str, tokenizer: str = "none", *, shared: bool = False) -> Codec:
    files = (TrainingCorpus((), ()),), (ParallelFiles((), ()),)
    subword = replace(SUBWORDS[kind], reserved=SYMBOLS)
    tokenizers = TokenizerConfig(tokenizer, tokenizer)  # type: ignore[arg-type]
    config = DataConfig("en", "de", *files, tokenizers, subword)
    return Codec.learn(config, PAIRS, shared_vocabulary=shared)


@pytest.mark.parametrize("tokenizer", ["none", "moses"])
@pytest.mark.parametrize("kind", SUBWORDS)
def test_each_symbol_is_one_id_and_comes_back(kind: str, tokenizer: str, tmp_path: Path) -> None:
    learned = learn(kind, tokenizer)
    learned.save(tmp_path)
    for codec in (learned, Codec.load(tmp_path)):
        for side in (codec.source, codec.target):
            ids = [side.encode(symbol)[:-1] for symbol in SYMBOLS]
            assert all(len(own) == 1 for own in ids)
            assert len({own[0] for own in ids} - {UNK}) == len(SYMBOLS)
            for symbol in SYMBOLS:
                assert side.decode(side.encode(symbol)) == symbol
            assert side.decode(side.encode(" ".join(SYMBOLS))) == " ".join(SYMBOLS)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "none"])
def test_a_shared_vocabulary_has_them_once(kind: str) -> None:
    codec = learn(kind, shared=True)
    assert codec.source.vocabulary == codec.target.vocabulary
    assert codec.source.encode("<num> __URL__") == codec.target.encode("<num> __URL__")
    assert UNK not in codec.source.encode(" ".join(SYMBOLS))


@pytest.mark.parametrize("kind", SUBWORDS)
def test_nothing_is_learned_from_them(kind: str) -> None:
    codec = learn(kind)
    size = len(codec.source.vocabulary)
    pieces = [codec.source.vocabulary.piece(index) for index in range(len(CONTROL), size)]
    assert not any("b>" in piece for piece in pieces[: -len(SYMBOLS)])
    assert codec.source.subword.whole("<b>") == pieces[1 - len(SYMBOLS)]


@pytest.mark.parametrize("tokenizer", ["none", "moses"])
def test_they_are_found_inside_words_the_longest_first(tokenizer: str) -> None:
    words = make_tokenizer(tokenizer, "en", SYMBOLS).tokenize("a<b>dog</b>, {0}{1}{0}")
    assert words == ["a", "<b>", "dog", "</b>", ",", "{0}{1}", "{0}"]


def test_moses_splits_and_joins_around_them_as_around_words() -> None:
    tokenizer = make_tokenizer("moses", "en", SYMBOLS)
    text = "Mr. Smith (<num>) saw <num>, e.g. <b> here </b>."
    words = tokenizer.tokenize(text)
    assert words[:5] == ["Mr.", "Smith", "(", "<num>", ")"]
    assert "e.g." in words
    assert tokenizer.detokenize(words) == text


def test_jieba_keeps_them() -> None:
    tokenizer = make_tokenizer("jieba", "zh", SYMBOLS)
    words = tokenizer.tokenize("我爱<num>北京{0}天安门")
    assert words == ["我", "爱", "<num>", "北京", "{0}", "天安门"]
    assert tokenizer.detokenize(words) == "我爱<num>北京{0}天安门"


def test_characters_for_private_use_are_not_taken_for_symbols() -> None:
    tokenizer = make_tokenizer("none", "en", SYMBOLS)
    text = "\ue000 <num> \ue001 x\ue002<b>"
    words = ["\ue000", "<num>", "\ue001", "x\ue002", "<b>"]
    assert tokenizer.tokenize(text) == words
    assert tokenizer.detokenize(words) == "\ue000 <num> \ue001 x\ue002 <b>"


def test_pieces_belong_to_raw_words() -> None:
    codec = learn("bpe", "moses")
    text = "the<b>dog</b> (<num>)."
    segmentation = codec.source.segment(text)
    assert segmentation.words == ["the<b>dog</b>", "(<num>)."]
    assert set(segmentation.word_of_piece) == {0, 1}
    assert segmentation.ids == codec.source.encode(text)


def test_a_codec_with_symbols_has_a_format_that_earlier_versions_refuse(tmp_path: Path) -> None:
    learn("bpe").save(tmp_path)
    description = json.loads((tmp_path / "codec.json").read_text())
    assert description["format"] == 2
    assert description["reserved"] == list(SYMBOLS)
    for wrong in ("<num>", [1], [""], ["a b"]):
        text = json.dumps({**description, "reserved": wrong})
        (tmp_path / "codec.json").write_text(text)
        with pytest.raises(DataError, match=r"codec\.json: expected the description"):
            Codec.load(tmp_path)
