"""Subword models: what is split comes back, whatever the text looks like."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.data import subword
from nmt.data.subword import (
    BPE,
    CONTINUED,
    LONGEST_WORD,
    REPLACEMENT,
    WORD_START,
    SentencePiece,
    Subword,
    WholeWords,
    count_pieces,
    escape,
    learn_bpe,
    learn_sentencepiece,
    unescape,
)
from nmt.errors import DataError

SPECIAL = [
    *("@@", "@", "a@@", "@@a", "@@@", "the@@", "▁", "▁a", "a▁", "</w>", "a</w>", "</w>a", "<unk>"),
    *("</s>", "<s>", "<pad>", "[MASK]", "<0x41>", "\r", "a\rb", "\ra", "\u2028", "12\xa0000", "\0"),
    *("\ufdd0", "\ufdd0A", "\ufdef@@", "\ufeff", "#version:", "\\", "\\g<0>", "👩‍👩‍👧", "e\u0301"),
]
WORDS = st.one_of(
    st.sampled_from(SPECIAL),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n "), min_size=1),
    st.lists(st.sampled_from(["@", "▁", "<", "/w>", "\ufdd0", "\ufdd1", "A", "a", "\xa0"])).map(
        lambda parts: "".join(parts) or "x"
    ),
)
SENTENCES = st.lists(WORDS, max_size=8)

TEXT = (
    "der alte Mann sieht einen Hund und die alte Frau sieht den Mann im Garten . "
    "ein Hund läuft durch den großen Garten , weil der Mann ihn ruft @@ </w> a@@b 12\xa0000 ▁ "
    "the old man sees a dog in the garden because the dog is running 3,000 times - a@@b ▁"
)


def segment(subword: Subword, words: Iterable[str]) -> list[str]:
    return [piece for word in words for piece in subword.split(word)]


def join(subword: Subword, pieces: Sequence[str]) -> list[str]:
    groups: dict[int, list[str]] = {}
    for piece, number in zip(pieces, subword.words_of(pieces), strict=True):
        groups.setdefault(number, []).append(piece)
    assert list(groups) == list(range(len(groups)))
    return [word for group in groups.values() if (word := subword.merge(group))]


@pytest.fixture(scope="module")
def counts() -> Counter[str]:
    return Counter(TEXT.split(" ") * 3 + SPECIAL * 2)


@pytest.fixture(scope="module", params=["bpe", "restricted", "unigram", "sentencepiece-bpe"])
def model(request: pytest.FixtureRequest, counts: Counter[str]) -> Subword:
    if request.param == "bpe":
        return learn_bpe(counts, merges=60)
    if request.param == "restricted":
        merges = learn_bpe(counts, merges=60).merges
        return BPE(merges, {"der", "Mann", "e@@"})
    kind = "unigram" if request.param == "unigram" else "bpe"
    return learn_sentencepiece(counts, vocabulary_size=400, model=kind)


@given(WORDS)
def test_escape_is_reversible_and_leaves_nothing_special(word: str) -> None:
    escaped = escape(word)
    assert unescape(escaped) == word
    assert CONTINUED not in escaped
    assert WORD_START not in escaped
    assert "</w>" not in escaped
    assert not any(character.isspace() for character in escaped)


@given(st.text(st.characters(categories=["L", "N", "P", "S"], exclude_characters="@▁<")))
def test_ordinary_words_are_not_escaped(word: str) -> None:
    assert escape(word) == word


@settings(max_examples=80)
@given(SENTENCES)
def test_words_survive(model: Subword, words: list[str]) -> None:
    pieces = segment(model, words)
    assert join(model, pieces) == words
    assert "" not in pieces
    assert all(" " not in piece and "\n" not in piece for piece in pieces)


@settings(max_examples=80)
@given(SENTENCES)
def test_pieces_know_their_words(model: Subword, words: list[str]) -> None:
    expected = [number for number, word in enumerate(words) for _ in model.split(word)]
    assert model.words_of(segment(model, words)) == expected


def test_saved_model_splits_alike(model: Subword, tmp_path: Path) -> None:
    path = tmp_path / "model"
    model.save(path)
    loaded: Subword
    if isinstance(model, BPE):
        loaded = BPE.load(path)
        model = BPE(model.merges)
    else:
        loaded = SentencePiece.load(path)
    words = [*SPECIAL, *TEXT.split(" "), "unseen", "Großgärtner"]
    assert segment(loaded, words) == segment(model, words)


def test_bpe_equals_the_tool_of_its_authors(tmp_path: Path) -> None:
    """learn-joint-bpe-and-vocab and apply-bpe with a threshold, on text without odd strings."""
    from subword_nmt import apply_bpe, learn_bpe, learn_joint_bpe_and_vocab

    text = "\n".join([TEXT.replace("@@", "x").replace("</w>", "y").replace("▁", "z")] * 4) + "\n"
    text = text.replace("\xa0", "")
    paths = {name: tmp_path / name for name in ("text", "codes", "vocabulary")}
    paths["text"].write_text(text, encoding="utf-8", newline="\n")
    parser = learn_joint_bpe_and_vocab.create_parser()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learn_bpe, "tqdm", lambda iterator: iterator)
        learn_joint_bpe_and_vocab.learn_joint_bpe_and_vocab(
            parser.parse_args(
                [
                    *("-i", str(paths["text"]), "-s", "50", "-o", str(paths["codes"])),
                    *("--write-vocabulary", str(paths["vocabulary"])),
                ]
            )
        )
    with paths["codes"].open(encoding="utf-8") as codes, paths["vocabulary"].open() as listed:
        theirs = apply_bpe.BPE(codes, vocab=apply_bpe.read_vocabulary(listed, 9))

    words = text.replace("\n", " ").split(" ")[:-1]
    plain = subword.learn_bpe(Counter(words), merges=50)
    frequent = {piece for piece, count in count_pieces(plain, Counter(words)).items() if count >= 9}
    ours = BPE(plain.merges, frequent)
    assert segment(ours, words) == theirs.segment_tokens(words)
    assert segment(ours, words) != segment(plain, words)


def test_restriction_to_nothing_splits_into_characters(counts: Counter[str]) -> None:
    merges = learn_bpe(counts, merges=60).merges
    assert BPE(merges, set()).split("Mann") == ["M@@", "a@@", "n@@", "n"]


def test_bpe_without_anything_to_merge() -> None:
    model = learn_bpe(Counter({"a": 3, "b": 1}), merges=10)
    assert model.merges == []
    assert model.split("abc") == ["a@@", "b@@", "c"]


def test_merges_do_not_depend_on_the_order_of_counting(counts: Counter[str]) -> None:
    items = list(counts.items())
    random.Random(1).shuffle(items)
    assert learn_bpe(dict(items), merges=60).merges == learn_bpe(counts, merges=60).merges


def test_learning_is_silent(counts: Counter[str], capfd: pytest.CaptureFixture[str]) -> None:
    learn_bpe(counts, merges=10_000)
    learn_sentencepiece(counts, vocabulary_size=400, model="unigram")
    assert capfd.readouterr() == ("", "")


def test_endless_words_take_little_time_and_survive(model: Subword) -> None:
    word = "".join(random.Random(1).choices("abcdermanfu@▁\xa0", k=100_000))
    assert len(word) > 100 * LONGEST_WORD
    assert join(model, segment(model, [word, "x"])) == [word, "x"]


def test_endless_words_do_not_hinder_learning(counts: Counter[str]) -> None:
    with_noise = counts | Counter({"ab" * 1_000_000: 5})
    assert learn_bpe(with_noise, merges=60).merges == learn_bpe(counts, merges=60).merges


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"a b\n",
        b"#version: 0.1\na b\n",
        b"#version: 0.2\na b\nc\n",
        b"#version: 0.2\na b c\n",
        b"#version: 0.2\n\na b\n",
        b"#version: 0.2\n a\n",
        b"#version: 0.2\na \xc2\xa0\n",
    ],
)
def test_bad_codes_files_are_errors(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "codes"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"codes:[0-9]+: expected"):
        BPE.load(path)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x00" * 1000])
def test_bad_sentencepiece_files_are_errors(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(content)
    with pytest.raises(DataError, match="model: no sentencepiece model"):
        SentencePiece.load(path)
    with pytest.raises(DataError, match="missing: cannot be read"):
        SentencePiece.load(tmp_path / "missing")


def test_truncated_sentencepiece_files_are_errors(tmp_path: Path, counts: Counter[str]) -> None:
    model = learn_sentencepiece(counts, vocabulary_size=400, model="bpe").model
    for size in range(1, len(model), len(model) // 23):
        (tmp_path / "model").write_bytes(model[:size])
        with pytest.raises(DataError):
            SentencePiece.load(tmp_path / "model")


def test_a_sentencepiece_piece_that_is_not_utf8_is_an_error(
    tmp_path: Path, counts: Counter[str]
) -> None:
    learned = learn_sentencepiece(counts, vocabulary_size=400, model="bpe")
    longest = max((piece for piece in learned.pieces if piece.isascii()), key=len).encode()
    path = tmp_path / "joint.model"
    path.write_bytes(learned.model.replace(longest, longest[:-1] + b"\xff"))
    with pytest.raises(
        DataError, match=r"joint\.model: (a piece is not UTF-8|no sentencepiece model)"
    ):
        SentencePiece.load(path)


def test_too_small_a_sentencepiece_vocabulary_is_an_error(counts: Counter[str]) -> None:
    with pytest.raises(DataError, match=r"data\.subword\.vocabulary_size"):
        learn_sentencepiece(counts, vocabulary_size=100, model="unigram")


def test_broken_output_of_a_model_becomes_text(counts: Counter[str]) -> None:
    spelled = learn_sentencepiece(counts, vocabulary_size=400, model="bpe")
    pieces = ["▁", "<0xE4>", "▁", "<0x0A>", "<0x20>", "▁", "▁", "a", "<0x40>"]
    assert join(spelled, pieces) == [REPLACEMENT, REPLACEMENT * 2, "a@"]
    bpe = learn_bpe(counts, merges=10)
    assert join(bpe, ["a@@", "b", "@@", "c", "d@@"]) == ["ab", "c", "d"]
    assert join(bpe, ["\ufdd0", "\ufdd0Z@@", "A"])[0] == "\ufdd0"


def test_whole_words_are_left_alone() -> None:
    words = ["a@@", "▁b", "</w>"]
    assert segment(WholeWords(), words) == words
    assert join(WholeWords(), words) == words
