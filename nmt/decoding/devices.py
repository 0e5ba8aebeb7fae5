"""Devices by name, and the float type that a model computes in on a device without training."""

import contextlib
from typing import Literal

import torch

from nmt.errors import UserError
from nmt.model.attention import HeadParameters
from nmt.model.norms import HeadNorm
from nmt.model.transformer import Transformer

Precision = Literal["auto", "float32", "bfloat16"]


def find_devices(names: str) -> list[torch.device]:
    """The devices that `auto`, `cpu`, `cuda`, `cuda:1`, `cuda:all`, or several of them name.

    `auto` is the first GPU if there is one, and else the CPU; `cuda` is the first GPU. A device
    that is named twice is there twice.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found: list[torch.device] = []
    for name in names.split(","):
        if name == "cpu" or (name == "auto" and count == 0):
            found.append(torch.device("cpu"))
        elif count == 0:
            raise UserError(f"--device {name}: torch finds no CUDA device; give cpu or auto")
        elif name == "cuda:all":
            found.extend(torch.device("cuda", index) for index in range(count))
        else:
            index = int(name.removeprefix("cuda:")) if ":" in name else 0
            if index >= count:
                raise UserError(f"--device {name}: expected cuda:0 to cuda:{count - 1}")
            found.append(torch.device("cuda", index))
    return found


def find_device(name: str) -> torch.device:
    """The one device that a name stands for."""
    found = find_devices(name)
    if len(found) > 1:
        raise UserError(f"--device {name}: expected one device, got {len(found)}")
    return found[0]


def current(device: torch.device | str) -> contextlib.AbstractContextManager[object]:
    """Makes a GPU the current one, on which Triton launches its kernels."""
    place = torch.device(device)
    return torch.cuda.device(place) if place.index is not None else contextlib.nullcontext()


def float_type(precision: Precision, device: torch.device) -> torch.dtype:
    """The type of weights and activations; `auto` is bfloat16 on a GPU that computes in it."""
    if precision != "auto":
        return torch.float32 if precision == "float32" else torch.bfloat16
    if device.type != "cuda":
        return torch.float32
    with current(device):
        able = torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if able else torch.float32


def place(model: Transformer, device: torch.device, precision: Precision) -> Transformer:
    """The model on a device, in the float type of a precision.

    What attention kinds learn besides matrices (gains, gates, alphas, thresholds) stays float32:
    the operations on it are computed in float32, and it is small.
    """
    kept = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, HeadNorm | HeadParameters)
        for parameter in module.parameters()
    }
    dtype = float_type(precision, device)
    for parameter in model.parameters():
        if id(parameter) not in kept:
            parameter.data = parameter.data.to(dtype)
    return model.to(device)
