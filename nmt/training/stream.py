"""The stream of training batches that a config and its prepared data lead to."""

from nmt.config.config import Config
from nmt.data.batching import BatchStream
from nmt.data.mixture import Mixture
from nmt.data.prepare import Prepared
from nmt.data.sampling import SubwordSampling


def training_stream(
    config: Config,
    prepared: Prepared,
    *,
    rank: int = 0,
    world_size: int = 1,
    prefetch: int = 0,
    pinned: bool = False,
) -> BatchStream:
    """The batches of a run, or the share of one of several processes in them."""
    return BatchStream(
        prepared.train,
        batch_tokens=config.train.batch_tokens,
        seed=config.seed,
        mixture=Mixture.of(config.data.train, prepared.sizes),
        sampling=SubwordSampling.of(
            config.data.subword,
            prepared.codec,
            seed=config.seed,
            max_length=config.data.max_length,
        ),
        accumulate=config.train.accumulate,
        rank=rank,
        world_size=world_size,
        prefetch=prefetch,
        pinned=pinned,
    )
