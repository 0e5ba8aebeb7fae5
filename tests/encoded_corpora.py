"""Small encoded corpora for tests."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from nmt.data.corpus import CorpusWriter, EncodedCorpus
from nmt.storage.directories import seal
from nmt.storage.manifest import SealedDirectory

EOS = 2


def random_sentences(pairs: int) -> tuple[list[list[int]], list[list[int]]]:
    """Sentences of 1 to 30 tokens and their EOS, for both sides."""
    random = np.random.default_rng(pairs)
    source, target = (
        [[*random.integers(4, 1000, size=size).tolist(), EOS] for size in sizes]
        for sizes in random.integers(1, 31, size=(2, pairs))
    )
    return source, target


def write_corpus(
    directory: Path,
    source: Sequence[Sequence[int]],
    target: Sequence[Sequence[int]],
    *,
    token_type: str = "uint16",
    chunk: int = 7,
) -> EncodedCorpus:
    """Write the sentences as the training corpus of a directory, in chunks, and open it."""
    types = {"source": token_type, "target": token_type}
    with CorpusWriter(directory, "train", types) as writer:
        for start in range(0, len(source), chunk):
            sides = {
                "source": source[start : start + chunk],
                "target": target[start : start + chunk],
            }
            tokens = {
                side: np.array(list(chain(*rows)), token_type) for side, rows in sides.items()
            }
            lengths = {side: np.array([len(row) for row in rows]) for side, rows in sides.items()}
            writer.append(tokens, lengths)
    seal(directory, {"corpora": {"train": writer.describe()}})
    return EncodedCorpus(SealedDirectory(directory), "train")
