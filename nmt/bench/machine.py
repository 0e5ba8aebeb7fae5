"""What a benchmark ran on: the machine by name, how quickly it multiplies, how much memory."""

import contextlib
import ctypes
import gc
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from nmt.bench.timing import seconds
from nmt.native.library import loaded_build

PROCESS = Path("/proc/self")
PRODUCT_SIZE = {"cpu": 1024, "cuda": 4096}  # rows and columns of the reference product
PRODUCT_CALLS = 3


@dataclass(frozen=True)
class Machine:
    """Everything that a reader needs to judge numbers from another machine."""

    processor: str
    cores: int
    threads: int  # that torch uses
    kernels: str | None  # which build of our own
    gpu: str | None
    torch: str
    python: str
    load: float | None  # programs that wanted a core in the last minute, before we began

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        hardware = f"{self.processor}, {self.cores} cores, {threads}"
        if self.gpu is not None:
            hardware = f"{self.gpu}; {hardware}"
        load = "" if self.load is None else f"; load before {self.load:.1f}"
        kernels = f"kernels {self.kernels}" if self.kernels else "no kernels"
        return f"{hardware}; {kernels}; torch {self.torch}, Python {self.python}{load}"


def describe_machine(device: torch.device) -> Machine:
    """This machine, as torch would use it now."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return Machine(
        processor=processor_name(),
        cores=os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        kernels=loaded_build(),
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        torch=torch.__version__,
        python=platform.python_version(),
        load=load,
    )


def processor_name() -> str:
    """The model of the CPU, or at least its architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n"):
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


class MatrixProduct:
    """A large square product: how quickly this machine multiplies matrices at best."""

    def __init__(self, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        size = PRODUCT_SIZE[device.type]
        self.device = device
        self.operands = [torch.randn(size, size).to(device, dtype) for _ in range(2)]
        self.result = torch.empty(size, size, device=device, dtype=dtype)
        self.operations = 2 * size**3

    def rate(self) -> float:
        """Operations (a multiplication and an addition count as two) a second, now."""
        return self.operations / seconds(self, PRODUCT_CALLS, self.device)

    def __call__(self) -> None:
        torch.mm(self.operands[0], self.operands[1], out=self.result)


class PeakMemory:
    """How much memory came on top of what was in use: `bytes` after the context, None if unknown.

    On a GPU what tensors take, on Linux what the process takes.
    """

    bytes: int | None = None


@contextlib.contextmanager
def peak_memory(device: torch.device) -> Iterator[PeakMemory]:
    """Measure the peak of the body."""
    found = PeakMemory()
    before = start_peak(device)
    yield found
    if before is not None:
        found.bytes = max(0, read_peak(device) - before)


def start_peak(device: torch.device) -> int | None:
    """Forget the peak so far; the bytes in use, None where peaks cannot be forgotten."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        # What was freed but not given back would hide the same amount of new memory.
        ctypes.CDLL(None).malloc_trim(0)
        (PROCESS / "clear_refs").write_text("5", encoding="ascii")  # resets VmHWM
        return status_bytes("VmRSS")
    except (OSError, AttributeError, TypeError):
        return None


def read_peak(device: torch.device) -> int:
    """The highest number of bytes in use since `start_peak`."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    return status_bytes("VmHWM")


def status_bytes(key: str) -> int:
    """A size from what Linux says of this process."""
    for line in (PROCESS / "status").read_text(encoding="ascii").split("\n"):
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {key} in {PROCESS / 'status'}")
