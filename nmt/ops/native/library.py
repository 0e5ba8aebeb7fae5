"""Finds and loads the compiled kernels, if there are any for this machine.

They are built when the package is installed, once for each set of instructions, where there is a C
compiler. Without them everything works the same, more slowly. `NMT_NATIVE=0` switches them off,
`NMT_NATIVE=x86_64_v3` chooses a build, `NMT_KERNELS=DIR` a directory with other builds, such as
those with sanitizers. They share torch's threads, so torch is imported first.
"""

import ctypes
import logging
import os
import platform
import sys
from functools import cache
from pathlib import Path

from nmt.ops.environment import BUILDS, requested_backend, requested_build
from nmt.ops.native import interface

logger = logging.getLogger(__name__)

AT_HWCAP = 16  # of <sys/auxv.h>
HWCAP_BITS = {1: "asimd", 20: "asimddp"}  # of <asm/hwcap.h> on aarch64

_forked = False


def forget_threads() -> None:
    """Let a forked process compute with one thread: OpenMP would wait for its parent's for ever."""
    global _forked
    _forked = True
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_threads)


def usable_threads(wanted: int) -> int:
    """The threads that a process without torch computes with: one if it was forked."""
    return 1 if _forked else wanted


def processor_flags() -> set[str]:
    """The instructions that the processor has, as far as the system says."""
    if platform.machine() == "aarch64":
        return arm_flags()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())


def arm_flags() -> set[str]:
    """The same on aarch64. An emulator answers this call, but shows its host's /proc/cpuinfo."""
    try:
        ask = ctypes.CDLL(None).getauxval
    except (OSError, AttributeError):
        return set()
    ask.argtypes, ask.restype = [ctypes.c_ulong], ctypes.c_ulong
    found = ask(AT_HWCAP)
    return {name for bit, name in HWCAP_BITS.items() if found >> bit & 1}


def build_path(name: str) -> Path:
    """The file of a build, whether it is there or not."""
    directory = Path(os.environ.get("NMT_KERNELS") or Path(__file__).parent)
    return directory / f"{name}.so"


def builds() -> list[Path]:
    """The builds that are there and run on this processor, the fastest first."""
    flags = processor_flags()
    paths = [build_path(name) for name, needed in BUILDS.items() if needed <= flags]
    return [path for path in paths if path.exists()]


def build_problem(name: str) -> str | None:
    """Why a build cannot be used here, or None."""
    path = build_path(name)
    if not path.exists():
        return f"not built: there is no file {path}"
    if lacking := BUILDS[name] - processor_flags():
        return f"the processor has no {', '.join(sorted(lacking))}"
    opened = read_build(path)
    return opened if isinstance(opened, str) else None


def read_build(path: Path) -> ctypes.CDLL | str:
    """The kernels of one build, or why they are of no use to this package."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return str(error)
    return interface.declare(library) or library


def open_build(path: Path) -> ctypes.CDLL | None:
    """The kernels of one build, or None, with a warning, if it is of no use to this package."""
    opened = read_build(path)
    if not isinstance(opened, str):
        return opened
    logger.warning(
        "%s: the kernels cannot be used (%s); install the package again to build them, without "
        "them everything is slower",
        *(path.name, opened),
    )
    return None


@cache
def load() -> ctypes.CDLL | None:
    """The kernels for this processor, or None."""
    choice = requested_build()
    for path in builds():
        if choice in (None, path.name.partition(".")[0]):
            library = open_build(path)
            if library is not None:
                return library
    return None


def kernels() -> ctypes.CDLL:
    """The kernels, where `native_refusal` has found no reason against them."""
    found = load()
    assert found is not None
    return found


def loaded_build() -> str | None:
    """The name of the build that is used, for people to read."""
    found = load() if requested_backend() in ("auto", "native") else None
    return None if found is None else Path(found._name).name.partition(".")[0]
