"""Finds and loads the compiled kernels, if there are any for this machine.

They are built when the package is installed, once for each set of instructions, where there is a C
compiler. Without them everything works the same, more slowly. `NMT_NATIVE=0` switches them off,
`NMT_NATIVE=x86_64_v3` chooses a build. They share torch's threads, so torch is imported first.
"""

import ctypes
import enum
import logging
import os
import sysconfig
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

# What a build needs of the processor, as Linux names it; the first that fits is taken.
BUILDS = {
    "x86_64_v4": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
    "x86_64_v3": {"avx2", "fma", "bmi2"},
}


class RowMap(enum.IntEnum):
    """How a row of scores becomes weights, as score_maps.h numbers it."""

    SOFTMAX = 0
    SPARSEMAX = 1
    ENTMAX15 = 2
    ENTMAX = 3
    RELU = 4
    GELU = 5
    LEAKY_RELU = 6
    SQUARED_RELU = 7
    IDENTITY = 8
    TOP_K = 9


def processor_flags() -> set[str]:
    """The instructions that the processor has, as far as the system says."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


def pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    """Where a contiguous tensor begins; NULL for none."""
    assert tensor is None or tensor.is_contiguous()
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def kernels_for(tensor: Tensor) -> ctypes.CDLL | None:
    """The kernels, if they can work on this tensor: numbers in float32 on the CPU."""
    suits = tensor.dtype == torch.float32 and not tensor.is_cuda and tensor.is_contiguous()
    return load() if suits else None


def builds() -> list[Path]:
    """The builds that are there and run on this processor, the quickest first."""
    flags = processor_flags()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    paths = [
        Path(__file__).with_name(f"{name}{suffix}")
        for name, needed in BUILDS.items()
        if needed <= flags
    ]
    return [path for path in paths if path.exists()]


@cache
def load() -> ctypes.CDLL | None:
    """The kernels for this processor, or None."""
    choice = os.environ.get("NMT_NATIVE", "")
    for path in builds():
        if choice not in ("", path.name.partition(".")[0]):
            continue
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            logger.warning("%s: cannot be loaded (%s); going on without it", path.name, error)
    return None


def loaded_build() -> str | None:
    """The name of the build that is used, for people to read."""
    kernels = load()
    return None if kernels is None else Path(kernels._name).name.partition(".")[0]
