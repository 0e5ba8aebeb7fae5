"""The learning rate as a pure function of the update: nothing to save, nothing to restore."""

import math

from nmt.config.config import TrainConfig

LEAST_FACTOR = 0.05  # of noam; below this it was meant as a rate


def learning_rate(config: TrainConfig, *, dim: int, update: int) -> float:
    """The rate of update 1, 2, 3, ...; `config.learning_rate` is a factor (noam) or the peak."""
    warmup = config.schedule.warmup
    if config.schedule.kind == "noam":
        # Vaswani et al. (2017), section 5.3
        shape = min(1.0 / math.sqrt(update), update / math.sqrt(warmup) ** 3)
        return config.learning_rate * shape / math.sqrt(dim)
    rising = min(1.0, update / warmup) if warmup else 1.0
    if config.schedule.kind == "inverse_sqrt" and update > warmup:
        return config.learning_rate * math.sqrt(max(warmup, 1) / update)
    return config.learning_rate * rising


def low_peak(config: TrainConfig, *, dim: int) -> str | None:
    """A warning for noam with an ordinary rate as its factor: such a run would learn nothing."""
    if config.schedule.kind != "noam" or config.learning_rate >= LEAST_FACTOR:
        return None
    peak = learning_rate(config, dim=dim, update=config.schedule.warmup)
    return (
        f"train.learning_rate {config.learning_rate:g} is a factor with train.schedule.kind noam, "
        f"usually 1 or 2, and makes the highest rate {peak:.1e}; for a rate of "
        f"{config.learning_rate:g} set train.schedule.kind: inverse_sqrt"
    )
