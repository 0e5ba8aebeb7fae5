"""The learning rate as a pure function of the update: nothing to save, nothing to restore."""

import math

from nmt.config.config import TrainConfig


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
