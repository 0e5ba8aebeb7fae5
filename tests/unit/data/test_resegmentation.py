"""Subword sampling: the same text in other pieces, with the right probabilities."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from subword_nmt import apply_bpe

from nmt.config.config import (
    DataConfig,
    ParallelFiles,
    SubwordConfig,
    SubwordDropoutConfig,
    TokenizerConfig,
    TrainingCorpus,
)
from nmt.data.codec import Codec, SideCodec
from nmt.data.pair_table import ABSENT, PairTable, mix
from nmt.data.ragged import Ragged
from nmt.data.resegmentation import Resegmenter, make_resegmenter
from nmt.data.subword import BPE, SentencePiece
from nmt.data.vocabulary import EOS, UNK
from nmt.errors import ConfigError

WORDS = ["low", "lower", "lowest", "newer", "newest", "wide", "widest", "in", "inner"]
WORDS += ["banana", "bananas", "ananas", "aaaa", "aaaaaaa"]
SYMBOL = "<num>"
SUBWORDS = {
    "bpe": SubwordConfig("bpe", merges=40, dropout=SubwordDropoutConfig(0.1, 0.1)),
    "bpe-plain": SubwordConfig("bpe", merges=40, vocabulary_threshold=30),
    "unigram": SubwordConfig("sentencepiece", vocabulary_size=330),
    "sentencepiece-bpe": SubwordConfig("sentencepiece", vocabulary_size=310, model="bpe"),
}
MADE: dict[str, SideCodec] = {}


def text(lines: int, *, seed: int = 1) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(1, 9))) for _ in range(lines)]


def codec(kind: str) -> SideCodec:
    if kind not in MADE:
        config = DataConfig(
            "xx",
            "yy",
            (TrainingCorpus((), ()),),
            (ParallelFiles((), ()),),
            TokenizerConfig("none", "none"),
            replace(SUBWORDS[kind], reserved=(SYMBOL,)),
        )
        lines = text(200)
        MADE[kind] = Codec.learn(config, list(zip(lines, lines, strict=True))).source
    return MADE[kind]


def make(kind: str, strength: float) -> Resegmenter:
    return make_resegmenter(codec(kind), strength, unigram=kind == "unigram")


def keys(count: int, *, first: int = 0) -> np.ndarray:
    return mix(np.arange(first, first + count, dtype=np.uint64))


NEW = [
    *text(80, seed=2),
    "",
    SYMBOL,
    f"low{SYMBOL}er wide",
    "lo\u2603wer \u2603",
    "bananabanana aaaaaaaaaaaa",
]


@pytest.mark.parametrize("kind", ["bpe", "bpe-plain", "sentencepiece-bpe"])
def test_without_dropout_nothing_changes(kind: str) -> None:
    tokens = Ragged.of([codec(kind).encode(line) for line in NEW])
    sampled = make(kind, 0.0).sample(tokens, keys(len(NEW)))
    assert sampled.offsets.tolist() == tokens.offsets.tolist()
    assert sampled.values.tolist() == tokens.values.tolist()


@pytest.mark.parametrize("strength", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("kind", SUBWORDS)
def test_the_text_stays(kind: str, strength: float) -> None:
    side = codec(kind)
    rows = [side.encode(line) for line in NEW]
    sampled = make(kind, strength).sample(Ragged.of(rows), keys(len(NEW)))
    assert len(sampled) == len(rows)
    changed = 0
    for index, row in enumerate(rows):
        own = sampled.rows(index, index + 1).values.tolist()
        assert own[-1] == EOS
        assert own.count(EOS) == 1
        assert own.count(UNK) == row.count(UNK)
        assert side.decode(own) == side.decode(row)
        changed += own != row
    assert changed or (kind, strength) == ("unigram", 0.99)  # the best one is almost certain


@pytest.mark.parametrize("kind", SUBWORDS)
def test_a_sentence_does_not_depend_on_its_neighbours(kind: str) -> None:
    tokens = Ragged.of([codec(kind).encode(line) for line in NEW])
    resegmenter = make(kind, 0.3)
    together = resegmenter.sample(tokens, keys(len(NEW)))
    alone = resegmenter.sample(tokens.rows(20, 23), keys(len(NEW))[20:23])
    assert alone.values.tolist() == together.rows(20, 23).values.tolist()
    other = resegmenter.sample(tokens, keys(len(NEW), first=1000))
    assert other.values.tolist() != together.values.tolist()


@pytest.mark.parametrize("kind", ["bpe", "bpe-plain"])
@pytest.mark.parametrize("word", ["lowest", "bananas", "aaaaaaa"])
def test_bpe_dropout_has_the_probabilities_of_subword_nmt(kind: str, word: str) -> None:
    side, count, dropout = codec(kind), 6000, 0.25
    subword = side.subword
    assert isinstance(subword, BPE)
    random.seed(3)
    bpe = subword._bpe
    expected: Counter[tuple[int, ...]] = Counter()
    for _ in range(count):
        pieces = apply_bpe.BPE.segment_tokens(bpe, [word], dropout)
        expected[tuple(side.vocabulary.encode(pieces))] += 1
    bpe.cache.clear()
    assert len(expected) > 1
    assert distance(drawn(kind, dropout, word, count), expected) < 0.04


@pytest.mark.parametrize("alpha", [0.2, 0.9])
@pytest.mark.parametrize("word", ["lowest", "banana", "aaaa"])
def test_a_unigram_model_has_the_probabilities_of_its_pieces(word: str, alpha: float) -> None:
    side, count = codec("unigram"), 6000
    model = side.subword
    assert isinstance(model, SentencePiece)
    spelled, known = f"▁{word}", set(model.pieces)
    weights: Counter[tuple[int, ...]] = Counter()
    for size in range(len(spelled)):
        for cuts in itertools.combinations(range(1, len(spelled)), size):
            bounds = [0, *cuts, len(spelled)]
            pieces = [spelled[a:b] for a, b in itertools.pairwise(bounds)]
            if all(piece in known for piece in pieces):
                score = sum(model.score(piece) for piece in pieces)
                weights[tuple(side.vocabulary.encode(pieces))] = math.exp(alpha * score)  # type: ignore[assignment]
    assert len(weights) > 1
    assert distance(drawn("unigram", alpha, word, count), weights) < 0.05


def drawn(kind: str, strength: float, word: str, count: int) -> Counter[tuple[int, ...]]:
    tokens = Ragged.of([codec(kind).encode(word)] * count)
    sampled = make(kind, strength).sample(tokens, keys(count))
    return Counter(
        tuple(sampled.rows(index, index + 1).values[:-1].tolist()) for index in range(count)
    )


def distance(one: Counter[tuple[int, ...]], other: Counter[tuple[int, ...]]) -> float:
    """The total variation of two distributions."""
    sums = sum(one.values()), sum(other.values())
    return sum(abs(one[key] / sums[0] - other[key] / sums[1]) for key in {*one, *other}) / 2


def test_with_dropout_the_vocabulary_has_the_parts_of_its_pieces() -> None:
    parts = {"lo@@", "low@@", "bana@@", "na@@"}
    dropped, plain = (set(codec(kind).vocabulary.counts) for kind in ("bpe", "bpe-plain"))
    assert len(parts & dropped) > len(parts & plain)
    assert len(drawn("bpe", 0.25, "lowest", 2000)) > len(drawn("bpe-plain", 0.25, "lowest", 2000))


def test_whole_words_cannot_be_sampled() -> None:
    config = DataConfig(
        "xx",
        "yy",
        (TrainingCorpus((), ()),),
        (ParallelFiles((), ()),),
        TokenizerConfig("none", "none"),
        SubwordConfig("none"),
    )
    with pytest.raises(ConfigError, match=r"data\.subword\.dropout: expected BPE or SentencePiece"):
        make_resegmenter(Codec.learn(config, [("a b", "c d")]).source, 0.1, unigram=True)


def test_many_pairs_are_found_and_no_others() -> None:
    generator = np.random.default_rng(5)
    left, right = generator.integers(0, 3000, size=(2, 200_000))
    pairs = dict.fromkeys(zip(left.tolist(), right.tolist(), strict=True))
    known = np.array([*pairs][:50_000])
    table = PairTable(np.ascontiguousarray(known[:, 0]), np.ascontiguousarray(known[:, 1]))
    expected = {pair: number for number, pair in enumerate(map(tuple, known.tolist()))}
    found = table.find(left, right).tolist()
    asked = zip(left.tolist(), right.tolist(), strict=True)
    assert found == [expected.get(pair, ABSENT) for pair in asked]


@pytest.mark.clock
@pytest.mark.parametrize("kind", SUBWORDS)
def test_sampling_is_fast(
    kind: str, process_seconds: Callable[[Callable[[], object]], float]
) -> None:
    tokens = Ragged.of([codec(kind).encode(line) for line in text(500)])
    resegmenter = make(kind, 0.1)
    seconds = process_seconds(lambda: resegmenter.sample(tokens, keys(500)))
    assert len(tokens.values) / seconds > 250_000  # about a million was measured


@pytest.fixture
def process_seconds() -> Callable[[Callable[[], object]], float]:
    """The shortest processor time of a function in five calls."""
    import time

    def measure(function: Callable[[], object]) -> float:
        times = []
        for _ in range(5):
            start = time.process_time()
            function()
            times.append(time.process_time() - start)
        return min(times)

    return measure
