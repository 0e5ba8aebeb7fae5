"""The scores of the pairs of large corpora, computed on a Ray cluster."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nmt.analysis.filtering import PairScores, scored_pairs
from nmt.checkpoint.model_directory import LoadedModel, load_model
from nmt.decoding.devices import find_device, place
from nmt.decoding.ray_cluster import Blocks
from nmt.decoding.text_blocks import read_block
from nmt.decoding.translation import Precision


@dataclass(frozen=True)
class FilterJob:
    """Scores pairs: the text, with the directory that its paths are relative to, and how."""

    directory: Path
    paths: tuple[Path, Path]  # source and target
    model: Path
    precision: Precision
    batch_tokens: int
    max_length: int

    def load(self, device: str) -> Callable[[Blocks], Iterator[PairScores]]:
        """The scoring of blocks."""
        loaded = load_model(self.model)
        place(loaded.model, find_device(device), self.precision)
        return functools.partial(self.score, loaded)

    def score(self, loaded: LoadedModel, blocks: Blocks) -> Iterator[PairScores]:
        """The scores of the pairs of two blocks, in order."""
        source, target = (
            read_block(self.directory / path, block)
            for path, block in zip(self.paths, blocks, strict=True)
        )
        return scored_pairs(
            loaded,
            zip(source, target, strict=True),
            batch_tokens=self.batch_tokens,
            max_length=self.max_length,
        )
