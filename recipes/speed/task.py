"""The data that all toolkits train on and translate, as plain arrays of numpy.

`train.npz`: all pairs as token ids, and an order of batches. `decode-SIZE/decode.npz`: under
`weight/NAME`, the weights of a model with softmax attention, and the sentences to translate, as
source ids with the end symbol. The ids 0 to 3 are padding, start, end and unknown.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PAD, BOS, EOS, UNK = 0, 1, 2, 3
FIRST_PIECE = 4
WORD = "{:06d}"  # the piece of an id in text
BATCH_TOKENS = 4096
DROPOUT = 0.1
LABEL_SMOOTHING = 0.1
LEARNING_RATE = 1e-3
WARMUP = 4000  # updates; the speed does not depend on it
BEAM = 4
LENGTH_PENALTY = 0.6
EPSILON = 1e-6  # of layer norms


@dataclass(frozen=True)
class Shape:
    """A Transformer of as many encoder as decoder layers, one table of embeddings for all."""

    dim: int
    heads: int
    layers: int
    feed_forward_dim: int


SHAPES = {
    "small": Shape(128, 4, 2, 512),
    "middle": Shape(256, 4, 3, 1024),
    "base": Shape(512, 8, 6, 2048),
}
# All sentences have one length, and so have all outputs: a translation is the same work for
# everyone, and nobody waits for a long one.
PIECES = 16  # of a sentence, the end not counted
STEPS = 16  # of the search: tokens of an output, with its end where a toolkit scores that
VOCABULARY = 8000
SENTENCES = 1024


class TrainingData:
    """Pairs of sentences and an order of batches."""

    def __init__(self, directory: Path) -> None:
        arrays = np.load(directory / "train.npz")
        self.vocabulary = int(arrays["vocabulary"])
        self.sides = {
            side: (arrays[f"{side}_tokens"], arrays[f"{side}_offsets"])
            for side in ("source", "target")
        }
        self.pairs, self.bounds = arrays["plan_pairs"], arrays["plan_bounds"]

    def __len__(self) -> int:
        return len(self.sides["source"][1]) - 1

    def sentence(self, side: str, index: int) -> Any:
        """The token ids of a sentence, the end symbol included."""
        tokens, offsets = self.sides[side]
        return tokens[offsets[index] : offsets[index + 1]]

    def write_text(self, directory: Path) -> None:
        """Write train.source and train.target, whose words are the ids."""
        for side in self.sides:
            path = directory / f"train.{side}"
            if not path.exists():
                sentences = (self.sentence(side, index)[:-1] for index in range(len(self)))
                lines = (" ".join(map(WORD.format, sentence)) for sentence in sentences)
                path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")

    def batch(self, number: int) -> Any:
        """The positions of the pairs of a batch; after the last comes the first again."""
        number %= len(self.bounds) - 1
        return self.pairs[self.bounds[number] : self.bounds[number + 1]]

    def padded(self, side: str, indices: Any) -> Any:
        """[B, L] int64, filled up with PAD."""
        return pad([self.sentence(side, index) for index in indices])


class DecodingData:
    """Sentences to translate and the model to do it with."""

    def __init__(self, task: Path, size: str) -> None:
        self.directory = decoding_directory(task, size)
        self.arrays = np.load(self.directory / "decode.npz")
        self.shape = SHAPES[size]
        self.vocabulary = VOCABULARY
        self.sentences = self.arrays["sentences"].tolist()

    def weight(self, name: str) -> Any:
        """A weight of our model, by our name."""
        return self.arrays[f"weight/{name}"]


def decoding_directory(task: Path, size: str) -> Path:
    """Where the models of a size and the sentences for them are."""
    return task / f"decode-{size}"


def pad(sentences: Any) -> Any:
    """[B, L] int64, filled up with PAD."""
    padded = np.full((len(sentences), max(map(len, sentences))), PAD, dtype=np.int64)
    for row, sentence in enumerate(sentences):
        padded[row, : len(sentence)] = sentence
    return padded


def positions(count: int, dim: int) -> Any:
    """[count, dim]: our position vectors; first all sines, then all cosines."""
    half = dim // 2
    rates = np.exp(np.arange(half) * (-np.log(10000.0) / (half - 1)))
    angles = np.arange(count)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)
