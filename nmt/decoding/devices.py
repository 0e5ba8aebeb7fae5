"""Devices by name, and the float type that a model computes in on a device without training."""

import contextlib

import torch

from nmt.decoding.translation import Precision
from nmt.errors import UserError
from nmt.model.attention import HeadParameters
from nmt.model.norms import HeadNorm
from nmt.model.transformer import Transformer
from nmt.ops.cuda_device import (
    cuda_problem,
    has_bfloat16,
    set_cuda_defaults,
    warn_of_unused_card,
)


def find_devices(names: str) -> list[torch.device]:
    """The devices that `auto`, `cpu`, `cuda`, `cuda:1`, `cuda:all`, or several of them name.

    `auto` is the first GPU if there is one, and else the CPU; `cuda` is the first GPU. A device
    that is named twice is there twice.
    """
    found: list[torch.device] = []
    for name in names.split(","):
        problem = None if name == "cpu" else cuda_problem()
        if name == "auto" and problem is not None:
            warn_of_unused_card(problem)
        if name == "cpu" or (name == "auto" and problem is not None):
            found.append(torch.device("cpu"))
        elif problem is not None:
            raise UserError(f"--device {name}: torch cannot use a CUDA device: {problem}")
        elif name == "cuda:all":
            found.extend(torch.device("cuda", index) for index in range(torch.cuda.device_count()))
        else:
            found.append(torch.device("cuda", gpu_index(name)))
    return found


def gpu_index(name: str) -> int:
    """The number of a GPU that is there: 1 for cuda:1, 0 for cuda."""
    index, count = int(name.partition(":")[2] or 0), torch.cuda.device_count()
    if index >= count:
        raise UserError(f"--device {name}: expected cuda:0 to cuda:{count - 1}, got cuda:{index}")
    return index


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


def release_memory(_size: int) -> None:
    """Give memory of GPUs that torch keeps for later back, when a batch did not fit."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def float_type(precision: Precision, device: torch.device) -> torch.dtype:
    """The type of weights and activations; `auto` is bfloat16 on a GPU that computes in it."""
    if precision == "auto":
        return torch.bfloat16 if has_bfloat16(device) else torch.float32
    return torch.float32 if precision == "float32" else torch.bfloat16


def cast(model: Transformer, dtype: torch.dtype) -> None:
    """Let a model compute in a float type.

    What attention kinds learn besides matrices (gains, gates, alphas, thresholds) stays float32:
    the operations on it are computed in float32, and it is small.
    """
    kept = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, HeadNorm | HeadParameters)
        for parameter in module.parameters()
    }
    for parameter in model.parameters():
        if id(parameter) not in kept:
            parameter.data = parameter.data.to(dtype)


def place(model: Transformer, device: torch.device, precision: Precision) -> Transformer:
    """The model on a device, in the float type of a precision."""
    if device.type == "cuda":
        set_cuda_defaults()
    cast(model, float_type(precision, device))
    return model.to(device)
