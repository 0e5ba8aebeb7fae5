"""The numbering of pieces and its file."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.data.vocabulary import BOS, CONTROL, EOS, PAD, UNK, Vocabulary
from nmt.errors import DataError

PIECES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
COUNTS = st.dictionaries(
    PIECES | st.sampled_from(["\t", "\\", "\\t", "\r", "\n", "a\u2028", "\ufeffx", "#", *CONTROL]),
    st.integers(0, 10**17),
    max_size=30,
)


def test_control_symbols_come_first() -> None:
    vocabulary = Vocabulary({"a": 2, "b": 1})
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert [vocabulary.piece(number) for number in range(6)] == [*CONTROL, "a", "b"]
    assert len(vocabulary) == 6
    assert vocabulary.encode(["b", "a", "c"]) == [5, 4, UNK]


@given(COUNTS)
def test_no_text_has_the_number_of_a_control_symbol(counts: dict[str, int]) -> None:
    vocabulary = Vocabulary(counts)
    for piece in [*counts, *CONTROL]:
        (number,) = vocabulary.encode([piece])
        assert number not in (PAD, BOS, EOS)
        assert (number == UNK) == (piece not in counts)
        assert number == UNK or vocabulary.piece(number) == piece


def test_build_sorts_by_count_and_then_by_characters() -> None:
    counts = {"z": 5, "b": 1, "a": 1, "y": 7}
    assert list(Vocabulary.build(counts).counts) == ["y", "z", "a", "b"]
    assert list(Vocabulary.build(counts, max_pieces=3).counts) == ["y", "z", "a"]


@settings(max_examples=60)
@given(COUNTS)
def test_file_restores_every_piece(
    tmp_path_factory: pytest.TempPathFactory, counts: dict[str, int]
) -> None:
    path = tmp_path_factory.mktemp("vocabulary") / "pieces"
    vocabulary = Vocabulary(counts)
    vocabulary.save(path)
    assert path.read_bytes().count(b"\n") == len(counts) + 1
    assert Vocabulary.load(path) == vocabulary
    assert list(Vocabulary.load(path).counts) == list(counts)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"b\t1\n", b"a\t1\n", ":3: the piece 'a' occurs twice"),
        (b"b\t1\n", b"\n", ":3: expected `piece<tab>count`"),
        (b"b\t1\n", b"\t1\n", ":3: expected `piece<tab>count`"),
        (b"b\t1\n", b"b\n", ":3: expected `piece<tab>count`"),
        (b"b\t1\n", b"b\tmany\n", ":3: expected `piece<tab>count`"),
        (b"b\t1\n", b"b\t" + b"9" * 5000 + b"\n", ":3: expected `piece<tab>count`"),
        (b"b\t1\n", b"b\t1 \n", ":3: expected `piece<tab>count`"),
        (b"b\t1\n", b"b\\x\t1\n", ":3: bad escape"),
        (b"b\t1\n", b"b\\\t1\n", ":3: bad escape"),
        (b"b\t1\n", b"\xff\t1\n", ":3: invalid UTF-8"),
        (b"b\t1\n", b"", ": expected 2 pieces, got 1"),
        (b"b\t1\n", b"b\t1\nc\t1\n", ": expected 2 pieces, got 3"),
        (b"nmt-vocabulary", b"something", ":1: expected `nmt-vocabulary 1<tab>"),
        (b"1\t2\n", b"1\n", ":1: expected `nmt-vocabulary 1<tab>"),
    ],
)
def test_doubtful_files_are_errors(old: bytes, new: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "pieces"
    Vocabulary({"a": 2, "b": 1}).save(path)
    whole = path.read_bytes()
    assert old in whole
    path.write_bytes(whole.replace(old, new))
    with pytest.raises(DataError) as caught:
        Vocabulary.load(path)
    assert f"{path}{message}" in str(caught.value)


@pytest.mark.parametrize("piece", ["a", "\u2028", "a\u2028b", "\x85", "<s>", "</s>", "\ufeff"])
def test_one_piece_is_a_vocabulary(tmp_path: Path, piece: str) -> None:
    Vocabulary({piece: 1}).save(tmp_path / "pieces")
    vocabulary = Vocabulary.load(tmp_path / "pieces")
    assert (len(vocabulary), vocabulary.encode([piece, "other"])) == (5, [4, 3])


def test_windows_line_ends_are_harmless(tmp_path: Path) -> None:
    path = tmp_path / "pieces"
    vocabulary = Vocabulary({"a\r": 2, "b": 1})
    vocabulary.save(path)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert Vocabulary.load(path) == vocabulary


@pytest.mark.slow
def test_a_million_pieces(tmp_path: Path) -> None:
    vocabulary = Vocabulary({f"piece{number}": number for number in range(1_000_000)})
    vocabulary.save(tmp_path / "pieces")
    assert Vocabulary.load(tmp_path / "pieces") == vocabulary
