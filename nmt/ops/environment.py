"""Which implementations the environment asks for: NMT_BACKEND and NMT_NATIVE. Imports no torch."""

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from nmt.errors import UserError

AUTO = "auto"
BACKENDS = (AUTO, "reference", "torch", "native", "triton")

# What each build of the kernels in C needs of the processor, in the words of Linux, by the machine
# that it is for; the first that fits is taken.
BUILDS_BY_MACHINE = {
    "x86_64": {
        "x86_64_v4": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
        "x86_64_v3": {"avx2", "fma", "bmi2"},
    },
    "aarch64": {"aarch64_dotprod": {"asimd", "asimddp"}, "aarch64": {"asimd"}},
}
BUILDS = BUILDS_BY_MACHINE.get(platform.machine(), {}) if sys.platform == "linux" else {}

_forced: str | None = None


def requested_backend() -> str:
    """The backend that `force_backend` or NMT_BACKEND names; `auto`: the best for each call."""
    global _forced
    if _forced is None:
        _forced = read_backend()
    return _forced


def read_backend() -> str:
    """The backend that the environment names."""
    backend = os.environ.get("NMT_BACKEND", "") or AUTO
    if backend not in BACKENDS:
        raise UserError(f"NMT_BACKEND: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    if os.environ.get("NMT_NATIVE") != "0":
        requested_build()  # only to reject what it cannot mean
        return backend
    if backend == "native":
        raise UserError("NMT_NATIVE=0 and NMT_BACKEND=native contradict each other; leave one out")
    return "torch" if backend == AUTO else backend


def requested_build() -> str | None:
    """The build of the kernels that NMT_NATIVE names; None: the best for this processor."""
    choice = os.environ.get("NMT_NATIVE", "")
    if choice in ("", "0", "1"):
        return None
    if choice not in BUILDS:
        raise UserError(
            "NMT_NATIVE: expected 0 (no kernels in C), 1 (the best build) or one of "
            f"{', '.join(BUILDS) or '(there are no builds for this machine)'}, got {choice!r}"
        )
    return choice


@contextmanager
def force_backend(backend: str) -> Iterator[None]:
    """Let all operations of this process run by one backend while the context lasts."""
    global _forced
    assert backend in BACKENDS, f"expected one of {', '.join(BACKENDS)}, got {backend!r}"
    before, _forced = _forced, backend
    try:
        yield
    finally:
        _forced = before
