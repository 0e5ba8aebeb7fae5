"""The float type of a run: chosen by the device at its start, and kept to its end.

Weights, their gradients, Adam's state, norms and losses are float32 in every precision.
"""

import logging
from dataclasses import replace

import torch

from nmt.config.config import Config
from nmt.errors import ConfigError
from nmt.ops.cuda_device import has_bfloat16, tf32_is_on
from nmt.ops.half_linear import products_in_c

logger = logging.getLogger(__name__)

HALF_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# On a CPU, whole updates in bfloat16 are 1.5 times as fast as in float32 at this width, and 1.3
# times at half of it (docs/training_on_gpus.md).
LEAST_CPU_WIDTH = 128


def with_precision(config: Config, device: torch.device, *, begun: Config | None = None) -> Config:
    """The config with the precision that `auto` stands for.

    That is the precision of the run if it has `begun`; else bfloat16 on a device that computes
    faster in it, and float32 elsewhere.
    """
    chosen = config.train.precision
    if chosen == "auto" and begun is not None:
        chosen = begun.train.precision
    elif chosen == "auto":
        chosen = "bfloat16" if gains_from_bfloat16(config, device) else "float32"
    if chosen == "float16" and device.type == "cpu":
        raise ConfigError("train.precision float16 needs a GPU; use float32 or bfloat16")
    return replace(config, train=replace(config.train, precision=chosen))


def gains_from_bfloat16(config: Config, device: torch.device) -> bool:
    """Whether updates in bfloat16 are clearly faster on a device."""
    if device.type != "cpu":
        return has_bfloat16(device)
    compiled = config.train.compile is True  # products in C are out of reach of the compiler
    return config.model.dim >= LEAST_CPU_WIDTH and not compiled and products_in_c()


def with_stored_precision(config: Config) -> Config:
    """The config of a checkpoint; one that does not say its precision was trained in float32."""
    if config.train.precision != "auto":
        return config
    return replace(config, train=replace(config.train, precision="float32"))


def describe_precision(config: Config, device: torch.device) -> str:
    """The precision of a run as the log tells it."""
    precision = config.train.precision
    if device.type == "cuda":
        products = "TF32" if tf32_is_on() else "exact"
        return f"{precision} (products of float32: {products})"
    if precision == "bfloat16":
        relation = "faster" if products_in_c() else "slower"
        return f"bfloat16 ({relation} than float32 on this processor)"
    if gains_from_bfloat16(config, device):
        return "float32 (train.precision: bfloat16 is faster on this processor)"
    return precision
