"""The float type of a run: chosen by the device at its start, and kept to its end.

Weights, their gradients, Adam's state, norms and losses are float32 in every precision. On CPUs
`auto` is float32 everywhere, so that a config makes the same run on all of them.
"""

import logging
from dataclasses import replace

import torch

from nmt.config.config import Config
from nmt.errors import ConfigError
from nmt.ops.cuda_device import has_bfloat16, tf32_is_on
from nmt.ops.native.bfloat16 import missing_products

logger = logging.getLogger(__name__)

HALF_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def with_precision(config: Config, device: torch.device, *, begun: Config | None = None) -> Config:
    """The config with the precision that `auto` stands for.

    That is the precision of the run if it has `begun`; else bfloat16 on a GPU that has it, and
    float32 elsewhere.
    """
    chosen = config.train.precision
    if chosen == "auto" and begun is not None:
        chosen = begun.train.precision
    elif chosen == "auto":
        chosen = "bfloat16" if has_bfloat16(device) else "float32"
    if chosen == "float16" and device.type == "cpu":
        raise ConfigError("train.precision float16 needs a GPU; use float32 or bfloat16")
    return replace(config, train=replace(config.train, precision=chosen))


def with_stored_precision(config: Config) -> Config:
    """The config of a checkpoint; one that does not say its precision was trained in float32."""
    if config.train.precision != "auto":
        return config
    return replace(config, train=replace(config.train, precision="float32"))


def describe_precision(config: Config, device: torch.device) -> str:
    """The precision of a run as the log tells it."""
    precision = config.train.precision
    if device.type == "cpu" and precision == "float32" and missing_products() is None:
        return "float32 (train.precision: bfloat16 is faster on this processor)"
    if device.type != "cuda":
        return precision
    products = "TF32" if tf32_is_on() else "exact"
    return f"{precision} (products of float32: {products})"
