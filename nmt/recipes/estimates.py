"""How long the long stages will take, by arithmetic: an estimate to plan with, never a measurement.

GPU rates are those that `nmt-doctor --plan` calculates for Transformer-base on an A100 in bfloat16,
plus and minus 40 %; CPU rates are those of a core with AVX2 in float32 and of one with AVX512_BF16
in bfloat16.
"""

from nmt.config.config import Config, ModelConfig
from nmt.data.encoding import available_cores

UNKNOWN_VOCABULARY = 32_000  # when it is not known yet
GPU_FLOPS = (71e12, 167e12)  # operations per second of one GPU, slow and fast
GPU_EFFICIENCY = 0.85  # of several GPUs together
CPU_FLOPS = (30e9, 120e9)  # of one core, slow and fast
LINES = (1_000, 2_500)  # per second that one core cleans, tokenises and encodes


def flops_per_token(model: ModelConfig, vocabulary: int = UNKNOWN_VOCABULARY) -> float:
    """Operations of the matrix products for one target token, forward and backward."""
    encoder = model.encoder_layers * (4 * model.dim**2 + 2 * model.dim * model.feed_forward_dim)
    decoder = model.decoder_layers * (8 * model.dim**2 + 2 * model.dim * model.feed_forward_dim)
    return 6.0 * (encoder + decoder + model.dim * vocabulary)


def training_hours(config: Config, gpus: int, cores: int) -> tuple[float, float]:
    """The least and the most hours that the updates of a run will take."""
    train = config.train
    tokens = train.max_updates * train.batch_tokens * train.accumulate
    vocabulary = min(UNKNOWN_VOCABULARY, config.data.subword.merges or UNKNOWN_VOCABULARY)
    work = tokens * flops_per_token(config.model, vocabulary)
    if gpus:
        together = gpus * (GPU_EFFICIENCY if gpus > 1 else 1.0)
        slow, fast = (rate * together for rate in GPU_FLOPS)
    else:
        slow, fast = (rate * cores for rate in CPU_FLOPS)
    return work / fast / 3600, work / slow / 3600


def training_estimate(config: Config, gpus: int) -> str:
    """The estimate in words."""
    cores = config.train.threads or available_cores()
    least, most = training_hours(config, gpus, cores)
    devices = f"{gpus} GPU(s) of the size of an A100" if gpus else f"{cores} CPU core(s)"
    return f"{span(least, most)} on {devices} for {config.train.max_updates:,} updates"


def preparation_estimate(pairs: int) -> str:
    """How long cleaning and encoding will take, in words."""
    cores = available_cores()
    least, most = (2 * pairs / (rate * cores) / 3600 for rate in reversed(LINES))
    return f"{span(least, most)} on {cores} CPU core(s) beside the download"


def span(least: float, most: float) -> str:
    """Two numbers of hours, in minutes where those are few."""
    if most < 2:
        return f"{60 * least:.2g} to {60 * most:.2g} minutes"
    return f"{least:.2g} to {most:.2g} hours"
