"""Random data and models, for benchmarks without a corpus or a trained model."""

import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nmt.config.config import (
    Config,
    DataConfig,
    ModelConfig,
    ParallelFiles,
    SubwordConfig,
    TrainConfig,
    TrainingCorpus,
)
from nmt.data.codec import Codec
from nmt.data.corpus import CorpusWriter, EncodedCorpus, Tokens
from nmt.data.ragged import Integers
from nmt.data.text import SIDES, Side
from nmt.data.vocabulary import EOS
from nmt.storage.directories import seal
from nmt.storage.manifest import SealedDirectory

FIRST_WORD = 4  # lower ids are control symbols
BATCHES = 20  # of a random corpus; enough to group sentences of similar length


@dataclass(frozen=True)
class Shapes:
    """The shapes of random data and models; the defaults are those of a small Multi30k task."""

    dim: int = 256
    heads: int = 4
    layers: int = 3
    feed_forward_dim: int = 1024
    vocabulary: int = 8000
    length: int = 15  # mean subwords of a sentence
    same_length: bool = False  # all sentences have the mean length
    batch_tokens: int = 4096
    dropout: float = 0.3
    attention_dropout: float = 0.1


def synthetic_config(shapes: Shapes, *, precision: str = "float32") -> Config:
    """A config with these shapes and without files."""
    assert precision in ("auto", "float32", "bfloat16", "float16")
    train, validation = (TrainingCorpus((), ()),), (ParallelFiles((), ()),)
    return Config(
        run_dir=Path("."),
        data=DataConfig("xx", "yy", train, validation, subword=SubwordConfig("none")),
        model=ModelConfig(
            dim=shapes.dim,
            heads=shapes.heads,
            encoder_layers=shapes.layers,
            decoder_layers=shapes.layers,
            feed_forward_dim=shapes.feed_forward_dim,
            dropout=shapes.dropout,
            attention_dropout=shapes.attention_dropout,
            tie_embeddings="all",
        ),
        train=TrainConfig(
            batch_tokens=shapes.batch_tokens,
            accumulate=1,
            precision=precision,  # type: ignore[arg-type]
            compile=False,
        ),
    )


def sentence_lengths(shapes: Shapes, count: int, *, seed: int) -> list[int]:
    """Random lengths without the end token, from 1 to twice the mean, or all the mean."""
    if shapes.same_length:
        return [shapes.length] * count
    generator = random.Random(seed)
    return [generator.randint(1, 2 * shapes.length - 1) for _ in range(count)]


def write_synthetic_corpus(directory: Path, shapes: Shapes) -> EncodedCorpus:
    """Random pairs whose sides have similar lengths."""
    pairs = BATCHES * max(1, shapes.batch_tokens // (shapes.length + 1))
    generator = np.random.default_rng(1)
    source = np.array(sentence_lengths(shapes, pairs, seed=1)) + 1
    target = np.maximum(2, source + generator.integers(-1, 2, size=pairs))
    if shapes.same_length:
        target = source
    lengths: dict[Side, Integers] = {"source": source, "target": target}
    with CorpusWriter(directory, "train", {"source": "uint32", "target": "uint32"}) as writer:
        writer.append({side: random_tokens(lengths[side], shapes) for side in SIDES}, lengths)
    seal(directory, {"corpora": {"train": writer.describe()}})
    return EncodedCorpus(SealedDirectory(directory), "train")


def random_tokens(lengths: Integers, shapes: Shapes) -> Tokens:
    """The concatenated random token ids of sentences that end with EOS."""
    generator = np.random.default_rng(2)
    size = int(lengths.sum())
    tokens = generator.integers(FIRST_WORD, shapes.vocabulary, size=size, dtype=np.uint32)
    tokens[np.cumsum(lengths) - 1] = EOS
    return tokens


def synthetic_codec(config: Config, shapes: Shapes) -> Codec:
    """A codec whose words are the decimal numbers of its token ids."""
    text = " ".join(map(str, range(FIRST_WORD, shapes.vocabulary)))
    return Codec.learn(config.data, [(text, text)], shared_vocabulary=True)


def synthetic_lines(shapes: Shapes, count: int) -> list[str]:
    """Random sentences for `synthetic_codec`."""
    generator = random.Random(3)
    return [
        " ".join(str(generator.randrange(FIRST_WORD, shapes.vocabulary)) for _ in range(length))
        for length in sentence_lengths(shapes, count, seed=4)
    ]
