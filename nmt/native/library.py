"""Finds and loads the compiled kernels, if there are any for this machine.

They are built when the package is installed, once for each set of instructions, where there is a C
compiler. Without them everything works the same, more slowly. `NMT_NATIVE=0` switches them off.
"""

import ctypes
import enum
import logging
import os
import sysconfig
from functools import cache
from pathlib import Path

import torch  # first: the kernels share its threads  # noqa: F401

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


@cache
def load() -> ctypes.CDLL | None:
    """The kernels for this processor, or None."""
    if os.environ.get("NMT_NATIVE") == "0":
        return None
    flags = processor_flags()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for name, needed in BUILDS.items():
        path = Path(__file__).with_name(f"{name}{suffix}")
        if needed <= flags and path.exists():
            try:
                return ctypes.CDLL(str(path))
            except OSError as error:
                logger.warning("%s: cannot be loaded (%s); going on without it", path.name, error)
    return None
