"""Attention and measures of a few sentence pairs, by the functions that the commands use."""

from collections.abc import Iterable
from pathlib import Path

from nmt.analysis.measures import unnormalised_sites
from nmt.analysis.pairs import PairAttention, PairBatch, batch_attention, map_pairs, run_batch
from nmt.analysis.statistics import AttentionStatistics
from nmt.checkpoint.model_directory import LoadedModel
from nmt.config.config import Config
from nmt.data.codec import Codec
from nmt.model.transformer import Transformer


def loaded_model(config: Config, codec: Codec, model: Transformer) -> LoadedModel:
    """A model in memory as if it were loaded from a directory."""
    return LoadedModel(config, codec, model, Path("model"))


def observe_pairs(
    loaded: LoadedModel, pairs: Iterable[tuple[str, str]], **options: int
) -> list[PairAttention]:
    """The attention of each pair."""

    def look(batch: PairBatch) -> list[PairAttention | None]:
        return list(batch_attention(loaded.model, batch))

    found = map_pairs(loaded, pairs, look, lambda _problem: None, **options)
    return [one for one in found if one is not None]


def corpus_statistics(
    loaded: LoadedModel, pairs: Iterable[tuple[str, str]], **options: int
) -> AttentionStatistics:
    """The sums of all measures over the pairs."""
    statistics = AttentionStatistics(unnormalised_sites(loaded.model))

    def look(batch: PairBatch) -> list[None]:
        observer = statistics.observer(batch.source_visible, batch.target_visible)
        run_batch(loaded.model, batch, observer)
        return [None] * len(batch.pairs)

    for _ in map_pairs(loaded, pairs, look, lambda _problem: None, **options):
        pass
    return statistics
