"""An extended vocabulary: old pieces keep their ids, old text its encoding, new text is spelled."""

import random
from pathlib import Path
from typing import Any

import pytest

from nmt.config.config import (
    DataConfig,
    ParallelFiles,
    SubwordConfig,
    TokenizerConfig,
    TrainingCorpus,
)
from nmt.data.codec import Codec, SideCodec
from nmt.data.text import SIDES
from nmt.data.tokenizer import count_tokens, make_tokenizer
from nmt.data.vocabulary import UNK
from nmt.errors import ConfigError

NEW = [
    ("старый человек видит собаку", "der alte Mann sieht die Hündin"),
    ("собака видит старого человека", "die Hündin sieht den alten Mann"),
    ("pneumonia and myocarditis of the patient", "Pneumonie und Myokarditis der Patientin"),
    ("myocarditis @@ ▁ </w>", "Myokarditis @@ ▁ </w>"),
] * 12


def old_pairs() -> list[tuple[str, str]]:
    generator = random.Random(5)
    words = ["the", "old", "man", "sees", "a", "dog", "patient", "of", "and", "men", "dogs", "pen"]
    lines = [" ".join(generator.choices(words, k=generator.randint(1, 8))) for _ in range(200)]
    return [(line, " ".join(word[::-1] for word in reversed(line.split()))) for line in lines]


def data(*, kind: str = "bpe", joint: bool = True) -> DataConfig:
    sizes: dict[str, Any] = {"merges": 40} if kind == "bpe" else {"vocabulary_size": 300}
    return DataConfig(
        source_language="en",
        target_language="de",
        train=(TrainingCorpus((Path("a"),), (Path("b"),)),),
        validation=(ParallelFiles((Path("c"),), (Path("d"),)),),
        tokenizer=TokenizerConfig("none", "none"),
        subword=SubwordConfig(kind=kind, joint=joint, **sizes),  # type: ignore[arg-type]
    )


def extended(codec: Codec, most: int) -> Codec:
    counts = {
        side: count_tokens((pair[index] for pair in NEW), make_tokenizer(*codec.source.spec))
        for index, side in enumerate(SIDES)
    }
    return codec.extended(counts, most=most)


def old_and_new(
    kind: str, *, joint: bool, shared: bool, most: int, directory: Path
) -> tuple[Codec, Codec]:
    """A codec, and its extension as it is read from its files."""
    codec = Codec.learn(data(kind=kind, joint=joint), old_pairs(), shared_vocabulary=shared)
    extended(codec, most).save(directory)
    return codec, Codec.load(directory)


def sides(one: Codec, other: Codec) -> list[tuple[SideCodec, SideCodec, int]]:
    return [(one.source, other.source, 0), (one.target, other.target, 1)]


LAYOUTS = [
    ("bpe", True, False),
    ("bpe", True, True),
    ("bpe", False, False),
    ("none", True, False),
    ("none", True, True),
]


@pytest.mark.parametrize("most", [1, 30, 1000])
@pytest.mark.parametrize(("kind", "joint", "shared"), LAYOUTS)
def test_old_pieces_keep_their_ids_and_old_text_its_encoding(
    tmp_path: Path, kind: str, joint: bool, shared: bool, most: int
) -> None:
    before, after = old_and_new(kind, joint=joint, shared=shared, most=most, directory=tmp_path)
    for old, new, index in sides(before, after):
        size = len(old.vocabulary)
        assert 0 < len(new.vocabulary) - size <= most
        assert [new.vocabulary.piece(i) for i in range(size)] == [
            old.vocabulary.piece(i) for i in range(size)
        ]
        same = 0
        for pair in [*old_pairs(), *NEW]:
            ids = new.encode(pair[index])
            if max(ids) < size:
                assert ids == old.encode(pair[index])
                same += 1
        assert same > 0


@pytest.mark.parametrize(("kind", "joint", "shared"), LAYOUTS)
def test_new_text_is_encoded_without_loss(
    tmp_path: Path, kind: str, joint: bool, shared: bool
) -> None:
    before, after = old_and_new(kind, joint=joint, shared=shared, most=1000, directory=tmp_path)
    for old, new, index in sides(before, after):
        for pair in NEW:
            assert UNK in old.encode(pair[index])
            ids = new.encode(pair[index])
            assert UNK not in ids
            assert new.decode(ids) == pair[index]
            assert len(ids) <= len(old.encode(pair[index]))


def test_common_characters_come_before_long_pieces(tmp_path: Path) -> None:
    """Few new pieces suffice to spell the new script."""
    _, after = old_and_new("bpe", joint=True, shared=False, most=90, directory=tmp_path)
    words = ["собака", "человек", "тарелка"]  # the last is not in the text
    assert all(UNK not in after.source.encode(word) for word in words)


def test_an_extension_can_be_extended_again(tmp_path: Path) -> None:
    before, once = old_and_new("bpe", joint=True, shared=True, most=20, directory=tmp_path)
    twice = extended(once, 20)
    size = len(once.source.vocabulary)
    assert size > len(before.source.vocabulary)
    assert [twice.source.vocabulary.piece(i) for i in range(size)] == [
        once.source.vocabulary.piece(i) for i in range(size)
    ]


def test_sentencepiece_is_refused() -> None:
    codec = Codec.learn(data(kind="sentencepiece"), old_pairs())
    with pytest.raises(ConfigError, match="sentencepiece model, which cannot be extended"):
        extended(codec, 10)
