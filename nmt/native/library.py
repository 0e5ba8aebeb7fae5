"""Finds and loads the compiled kernels, if there are any for this machine.

They are built when the package is installed, once for each set of instructions, where there is a C
compiler. Without them everything works the same, more slowly. `NMT_NATIVE=0` switches them off,
`NMT_NATIVE=x86_64_v3` chooses a build, `NMT_KERNELS=DIR` a directory with other builds, such as
those with sanitizers. They share torch's threads, so torch is imported first.
"""

import ctypes
import logging
import os
import sysconfig
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from nmt.native import interface

logger = logging.getLogger(__name__)

# What a build needs of the processor, as Linux names it; the first that fits is taken.
BUILDS = {
    "x86_64_v4": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
    "x86_64_v3": {"avx2", "fma", "bmi2"},
}


def processor_flags() -> set[str]:
    """The instructions that the processor has, as far as the system says."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


def kernels_for(tensor: Tensor) -> ctypes.CDLL | None:
    """The kernels, if they can work on this tensor: numbers in float32 on the CPU."""
    can_run = tensor.dtype == torch.float32 and not tensor.is_cuda and tensor.is_contiguous()
    return load() if can_run else None


def builds() -> list[Path]:
    """The builds that are there and run on this processor, the fastest first."""
    flags = processor_flags()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    directory = Path(os.environ.get("NMT_KERNELS") or Path(__file__).parent)
    paths = [directory / f"{name}{suffix}" for name, needed in BUILDS.items() if needed <= flags]
    return [path for path in paths if path.exists()]


def open_build(path: Path) -> ctypes.CDLL | None:
    """The kernels of one build, or None, with a warning, if it is of no use to this package."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        problem: str | None = str(error)
    else:
        problem = interface.declare(library)
    if problem is None:
        return library
    logger.warning(
        "%s: the kernels cannot be used (%s); install the package again to build them, without "
        "them everything is slower",
        *(path.name, problem),
    )
    return None


@cache
def load() -> ctypes.CDLL | None:
    """The kernels for this processor, or None."""
    choice = os.environ.get("NMT_NATIVE", "")
    for path in builds():
        if choice in ("", path.name.partition(".")[0]):
            library = open_build(path)
            if library is not None:
                return library
    return None


def loaded_build() -> str | None:
    """The name of the build that is used, for people to read."""
    kernels = load()
    return None if kernels is None else Path(kernels._name).name.partition(".")[0]
