"""From text to numbers and back."""

import dataclasses
import json
import random
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.config.config import (
    DataConfig,
    ParallelFiles,
    SubwordConfig,
    TokenizerConfig,
    TrainingCorpus,
)
from nmt.data import codec as codec_module
from nmt.data.codec import Codec, Segmentation, SideCodec, follow_characters
from nmt.data.text import SIDES, LineWriter, read_text
from nmt.data.tokenizer import count_tokens, make_tokenizer
from nmt.data.vocabulary import BOS, EOS, PAD, UNK
from nmt.errors import ConfigError, DataError

CONTROL_LIKE = ["<s>", "</s>", "<unk>", "<pad>", "@@", "▁", "</w>", "[MASK]", "a@@", "▁▁", "<0x02>"]
ENGLISH = [
    "the old man sees a dog .",
    "a dog is running through the big garden , because the man calls it .",
    "it's 3,000 @@ times - isn't it ? </s> <unk> <s>",
    'don\'t ( ever ) go to "the" garden ; ▁ [MASK] <pad> </w>',
]
GERMAN = [
    "der alte Mann sieht einen Hund .",
    "ein Hund läuft durch den großen Garten , weil der Mann ihn ruft .",
    "es ist 3.000 @@ mal - oder ? </s> <unk> <s>",
    'geh nicht ( nie ) in "den" Garten ; ▁ [MASK] <pad> </w>',
]
PAIRS = list(zip(ENGLISH, GERMAN, strict=True)) * 3
ALPHABET = sorted(set("".join(ENGLISH + GERMAN)) - {" "})

SUBWORDS = {
    "bpe": SubwordConfig("bpe", merges=80),
    "bpe-threshold": SubwordConfig("bpe", merges=80, vocabulary_threshold=7),
    "bpe-separate": SubwordConfig("bpe", merges=80, joint=False),
    "unigram": SubwordConfig("sentencepiece", vocabulary_size=380),
    "sentencepiece-bpe": SubwordConfig("sentencepiece", vocabulary_size=380, model="bpe"),
    "unigram-separate": SubwordConfig("sentencepiece", vocabulary_size=380, joint=False),
    "none": SubwordConfig("none"),
}


def config(subword: str, tokenizer: str = "none", **changes: object) -> DataConfig:
    return DataConfig(
        "en",
        "de",
        (TrainingCorpus((), ()),),
        (ParallelFiles((), ()),),
        TokenizerConfig(tokenizer, tokenizer),  # type: ignore[arg-type]
        dataclasses.replace(SUBWORDS[subword], **changes),  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module", params=SUBWORDS)
def codec(request: pytest.FixtureRequest) -> Codec:
    return Codec.learn(config(request.param), PAIRS)


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def side(request: pytest.FixtureRequest) -> SideCodec:
    """The source side of a codec that has seen each character often."""
    alphabet = " ".join(character * 3 for character in ALPHABET)
    return Codec.learn(config(request.param), [*PAIRS, *[(alphabet, alphabet)] * 12]).source


def both(codec: Codec, pair: tuple[str, str]) -> tuple[list[int], list[int]]:
    return codec.source.encode(pair[0]), codec.target.encode(pair[1])


def test_training_text_survives(codec: Codec) -> None:
    for source, target in PAIRS:
        for side, text in ((codec.source, source), (codec.target, target)):
            ids = side.encode(text)
            assert side.decode(ids) == text
            assert ids.index(EOS) == len(ids) - 1
            assert not {PAD, BOS, UNK} & set(ids)
            assert max(ids) < len(side.vocabulary)


@given(st.lists(st.text(st.sampled_from(ALPHABET), min_size=1, max_size=6), max_size=8))
def test_new_text_of_known_characters_survives(side: SideCodec, words: list[str]) -> None:
    ids = side.encode("  ".join(words))
    assert UNK not in ids
    assert side.decode(ids) == " ".join(words)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=30))
def test_sentencepiece_keeps_all_unicode(text: str) -> None:
    side = sentencepiece_codec().source
    assert side.decode(side.encode(text)) == " ".join(word for word in text.split(" ") if word)


_CACHE: dict[str, Codec] = {}


def sentencepiece_codec() -> Codec:
    if not _CACHE:
        _CACHE["codec"] = Codec.learn(config("unigram"), PAIRS)
    return _CACHE["codec"]


def control_like_strings(number: int) -> list[str]:
    generator = random.Random(7)
    parts = [*CONTROL_LIKE, " ", " ", "a", "Hund", "<", ">", "@", "/", "\u2028", "\ufdd0"]
    return ["".join(generator.choices(parts, k=generator.randint(1, 6))) for _ in range(number)]


def check_control_like(codec: Codec, texts: list[str]) -> None:
    for text in texts:
        ids = codec.source.encode(text)
        assert ids[-1] == EOS
        assert not {PAD, BOS, EOS} & set(ids[:-1])
        if UNK not in ids:
            expected = " ".join(word for word in text.split(" ") if word)
            assert codec.source.decode(ids) == expected


def test_text_never_becomes_a_control_symbol(codec: Codec) -> None:
    check_control_like(codec, control_like_strings(2000))


@pytest.mark.slow
def test_text_never_becomes_a_control_symbol_in_many_strings(codec: Codec) -> None:
    check_control_like(codec, control_like_strings(100_000))


def check_scalar_values(codec: Codec, path: Path, *, every: int) -> int:
    """Read, encode, decode and write every `every`-th block of 1,000 scalar values.

    Each is inside a word on a line of its own; returns how many there were.
    """
    values = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000 and code != 10]
    assert len(values) == 1_112_063
    chosen = [
        value
        for start in range(0, len(values), 1000 * every)
        for value in values[start : start + 1000]
    ]
    path.write_bytes("".join(f"a{value}b\n" for value in chosen).encode())
    unknown = []
    with LineWriter(path.with_name("written")) as writer:
        for line in read_text(path):
            ids = codec.source.encode(line)
            assert codec.source.segment(line).words == line.split(" ")
            unknown.append(UNK in ids)
            writer.write(codec.source.decode(ids))
    written = path.with_name("written").read_bytes().decode().split("\n")[:-1]
    for value, line, is_unknown in zip(chosen, written, unknown, strict=True):
        assert is_unknown or line == f"a{value}b"
    return len(chosen)


def test_scalar_values_keep_their_lines(codec: Codec, tmp_path: Path) -> None:
    """A sixtieth of them; all are in the slow run."""
    assert check_scalar_values(codec, tmp_path / "text", every=60) == 19_000


@pytest.mark.slow
def test_all_scalar_values_keep_their_lines(codec: Codec, tmp_path: Path) -> None:
    assert check_scalar_values(codec, tmp_path / "text", every=1) == 1_112_063


def test_decode_stops_at_the_end_and_passes_over_padding(codec: Codec) -> None:
    ids = codec.target.encode(GERMAN[0])
    noisy = [BOS, PAD, *ids[:3], PAD, *ids[3:], *codec.target.encode(GERMAN[1])]
    assert codec.target.decode(noisy) == GERMAN[0]
    assert codec.target.decode([]) == ""
    assert codec.target.decode([EOS]) == ""


def test_unknown_words_are_shown() -> None:
    codec = Codec.learn(config("none", vocabulary_size=3), PAIRS)
    assert len(codec.source.vocabulary) == 7
    ids = codec.source.encode("the unheard-of .")
    assert ids.count(UNK) == 1
    assert codec.source.decode(ids) == "the <unk> ."


@pytest.mark.parametrize("code", ["en-US", "en_XX", "EN", "eng", "eng_Latn"])
def test_moses_knows_a_language_by_all_its_codes(code: str) -> None:
    data = dataclasses.replace(config("bpe", "moses"), source_language=code)
    codec = Codec.learn(data, PAIRS)
    text = "it isn't a dog's garden"
    assert codec.source.decode(codec.source.encode(text)) == text


@pytest.mark.parametrize("shared", [False, True])
def test_saved_codec_is_the_same(codec: Codec, shared: bool, tmp_path: Path) -> None:
    if shared:
        codec = Codec.learn(config("bpe", vocabulary_threshold=7), PAIRS, shared_vocabulary=True)
    codec.save(tmp_path / "codec")
    assert sorted(path.name for path in (tmp_path / "codec").iterdir()) == codec.files()
    loaded = Codec.load(tmp_path / "codec")
    assert loaded.files() == codec.files()
    new = [("sees garden_ ruft @@ü", "Hundgarten 3.0 sieht</s>")]
    for pair in PAIRS + new:
        assert both(loaded, pair) == both(codec, pair)
    loaded.save(tmp_path / "again")
    for name in codec.files():
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "codec" / name).read_bytes()


@pytest.mark.parametrize("kind", ["bpe", "bpe-threshold", "bpe-separate", "unigram", "none"])
def test_a_shared_vocabulary_has_one_number_a_piece(kind: str) -> None:
    codec = Codec.learn(config(kind), PAIRS, shared_vocabulary=True)
    assert codec.source.vocabulary == codec.target.vocabulary
    for side, texts in ((codec.source, ENGLISH), (codec.target, GERMAN)):
        for text in texts:
            assert side.decode(side.encode(text)) == text


def test_a_shared_vocabulary_spells_new_words() -> None:
    """Characters that only BPE's spelling of new words needs have a count of 0."""
    pairs = [("abab ab", "cdcd cd")] * 20
    codec = Codec.learn(config("bpe"), pairs, shared_vocabulary=True)
    assert UNK not in codec.source.encode("ba bb aab")
    assert UNK not in codec.target.encode("dc dd ccd")


def test_separate_vocabularies_hold_the_pieces_of_their_side() -> None:
    codec = Codec.learn(config("bpe"), PAIRS)
    assert codec.source.vocabulary != codec.target.vocabulary
    assert "ß@@" not in codec.source.vocabulary
    assert "der" in codec.target.vocabulary
    assert codec.source.vocabulary.counts["the"] == 9


def test_threshold_splits_rare_pieces() -> None:
    plain = Codec.learn(config("bpe"), PAIRS)
    codec = Codec.learn(config("bpe-threshold"), PAIRS)
    assert len(codec.source.encode(ENGLISH[1])) > len(plain.source.encode(ENGLISH[1]))
    for piece, count in codec.source.vocabulary.counts.items():
        assert count >= 7 or len(piece.removesuffix("@@")) == 1


def test_shared_sentencepiece_needs_a_joint_model() -> None:
    with pytest.raises(ConfigError, match=r"data\.subword\.joint"):
        Codec.learn(config("unigram-separate"), PAIRS, shared_vocabulary=True)


def test_no_words_are_an_error() -> None:
    with pytest.raises(DataError, match="target side"):
        Codec.learn(config("bpe"), [("a b", "   ")])


def test_counts_of_parts_add_up_to_the_same_codec() -> None:
    tokenizer = make_tokenizer("none", "en")
    counts = {}
    for index, side in enumerate(SIDES):
        texts = [pair[index] for pair in PAIRS]
        counts[side] = count_tokens(texts[5:], tokenizer) + count_tokens(texts[:5], tokenizer)
    codec = Codec.from_counts(config("bpe"), counts)
    assert all(both(codec, pair) == both(Codec.learn(config("bpe"), PAIRS), pair) for pair in PAIRS)


@pytest.mark.parametrize("word", ["{}", "{:\U0001f600>90}"])
def test_remembered_words_take_a_bounded_memory(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_module, "CACHED_BYTES", 1_000_000)
    side = Codec.learn(config("bpe"), PAIRS).source
    tracemalloc.start()
    for number in range(10_000):
        side.encode(word.format(number))
    current, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 50_000 < current < 1_200_000
    text = f"the {word.format(1)} dog"
    assert side.encode(text) == side.encode(text)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("codec.json", None, "cannot be read"),
        ("codec.json", b"{", "expected JSON"),
        ("codec.json", b"[" * 100_000, "expected JSON"),
        ("codec.json", b"[]", "expected the description"),
        ("codec.json", b'{"format": 2}', "expected the description"),
        ("joint.codes", None, "cannot be read"),
        ("joint.codes", b"x\n", "expected `#version"),
        ("source.vocabulary", None, "cannot be read"),
        ("target.vocabulary", b"", "no vocabulary"),
    ],
)
def test_unusable_files_are_named(
    name: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    Codec.learn(config("bpe"), PAIRS).save(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name}.*{message}"):
        Codec.load(tmp_path)


def test_unknown_tokenizer_in_the_description_is_an_error(tmp_path: Path) -> None:
    Codec.learn(config("bpe"), PAIRS).save(tmp_path)
    description = json.loads((tmp_path / "codec.json").read_text())
    description["source"]["tokenizer"] = "os.system"
    (tmp_path / "codec.json").write_text(json.dumps(description))
    with pytest.raises(DataError, match=r"os\.system"):
        Codec.load(tmp_path)


# Words and their pieces


def check_segmentation(segmentation: Segmentation, ids: list[int]) -> None:
    assert segmentation.ids == ids
    assert len(segmentation.word_of_piece) == len(ids) - 1
    assert all(0 <= word < len(segmentation.words) for word in segmentation.word_of_piece)
    assert segmentation.word_of_piece == sorted(segmentation.word_of_piece)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=40))
def test_pieces_belong_to_the_words_that_blanks_separate(codec: Codec, text: str) -> None:
    side = codec.source
    segmentation = side.segment(text)
    check_segmentation(segmentation, side.encode(text))
    assert segmentation.words == [word for word in text.split(" ") if word]
    assert set(segmentation.word_of_piece) == set(range(len(segmentation.words)))


@pytest.mark.parametrize("subword", ["bpe", "unigram"])
def test_moses_pieces_belong_to_raw_words(subword: str) -> None:
    codec = Codec.learn(config(subword, "moses"), PAIRS)
    text = 'the "dog" , isn\'t it?  (running) \x01man.'
    segmentation = codec.source.segment(text)
    check_segmentation(segmentation, codec.source.encode(text))
    assert segmentation.words == ["the", '"dog"', ",", "isn't", "it?", "(running)", "\x01man."]
    spelled = [""] * len(segmentation.words)
    for number, word in zip(segmentation.ids, segmentation.word_of_piece, strict=False):
        spelled[word] += codec.source.vocabulary.piece(number).removesuffix("@@").replace("▁", "")
    assert [word.lstrip("\x01") for word in segmentation.words] == spelled


@settings(max_examples=100)
@given(data=st.data())
def test_any_output_of_a_model_can_be_segmented(codec: Codec, data: st.DataObject) -> None:
    side = codec.target
    ids = data.draw(st.lists(st.integers(0, len(side.vocabulary) - 1), max_size=15))
    segmentation = side.segment_ids(ids)
    assert segmentation.ids[-1] == EOS
    check_segmentation(segmentation, segmentation.ids)
    text = side.decode(ids)
    assert "\n" not in text
    assert " ".join(segmentation.words) == text


@settings(max_examples=100)
@given(data=st.data())
def test_any_output_can_be_segmented_with_moses(data: st.DataObject) -> None:
    side = moses_codec().target
    ids = data.draw(st.lists(st.integers(0, len(side.vocabulary) - 1), max_size=15))
    segmentation = side.segment_ids(ids)
    check_segmentation(segmentation, segmentation.ids)
    assert " ".join(segmentation.words) == side.decode(ids)


_MOSES: dict[str, Codec] = {}


def moses_codec() -> Codec:
    if not _MOSES:
        _MOSES["codec"] = Codec.learn(config("bpe", "moses"), PAIRS)
    return _MOSES["codec"]


def test_own_output_with_moses_has_the_words_of_the_raw_text() -> None:
    side = moses_codec().source
    ids = side.encode('isn\'t it "the" dog (running)?')
    segmentation = side.segment_ids([BOS, *ids, PAD])
    assert segmentation == side.segment('isn\'t it "the" dog (running)?')
    assert segmentation.words == ["isn't", "it", '"the"', "dog", "(running)?"]


def test_jieba_words_are_those_of_the_tokenizer() -> None:
    pairs = [("我爱北京天安门", "I love Beijing"), ("我爱 Python 很好", "I love Python")] * 4
    settings = dataclasses.replace(
        config("bpe"), source_language="zh", tokenizer=TokenizerConfig("jieba", "none")
    )
    codec = Codec.learn(settings, pairs)
    segmentation = codec.source.segment("我爱北京天安门")
    assert segmentation.words == ["我", "爱", "北京", "天安门"]
    assert codec.source.decode(codec.source.encode("我爱 Python 很好")) == "我爱Python很好"


@pytest.mark.parametrize(
    ("words", "tokens", "expected"),
    [
        (["a,", "b."], ["a", ",", "b", "."], [0, 0, 1, 1]),
        (["aa", "a", "aa"], ["a", "a", "a", "a", "a"], [0, 0, 1, 2, 2]),
        (["x\x01y", "z"], ["xy", "z"], [0, 1]),
        (["R&D", "z"], ["R&amp;D", "z"], [0, 1]),
        (["a"], ["completely", "different"], [0, 0]),
        ([], ["a", "b"], [0, 0]),
        (["a"], [], []),
    ],
)
def test_characters_are_followed(words: list[str], tokens: list[str], expected: list[int]) -> None:
    assert follow_characters(words, tokens) == expected


@pytest.mark.clock
def test_encoding_is_fast() -> None:
    codec = Codec.learn(config("bpe"), PAIRS)
    pairs = PAIRS * 500
    start = time.process_time()
    for pair in pairs:
        both(codec, pair)
    assert len(pairs) / (time.process_time() - start) > 4000  # far more on an idle machine
