"""The machine of a benchmark: its name, its rate of matrix products, the memory in use."""

import contextlib
import ctypes
import gc
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from nmt.bench.timing import Times
from nmt.ops.native.library import loaded_build

PROCESS = Path("/proc/self")
PRODUCT_SIZE = {"cpu": 1024, "cuda": 4096}  # rows and columns of the reference product
PRODUCT_CALLS = 3


@dataclass(frozen=True)
class Machine:
    """The facts that a reader needs to judge numbers from another machine."""

    processor: str
    cores: int
    threads: int  # of torch
    kernels: str | None  # the build of our kernels that is loaded
    gpu: str | None
    torch: str
    python: str
    load: float | None  # load average of the last minute before the benchmark

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        hardware = f"{self.processor}, {self.cores} cores, {threads}"
        if self.gpu is not None:
            hardware = f"{self.gpu}; {hardware}"
        load = "" if self.load is None else f"; load before {self.load:.1f}"
        kernels = f"kernels {self.kernels}" if self.kernels else "no kernels"
        return f"{hardware}; {kernels}; torch {self.torch}, Python {self.python}{load}"


def describe_machine(device: torch.device) -> Machine:
    """This machine, and how torch uses it now."""
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
    """The model name of the CPU, or its architecture where the name is unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n"):
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


class MatrixProduct:
    """A large square matrix product: the highest rate of operations to expect of this machine."""

    def __init__(self, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        size = PRODUCT_SIZE[device.type]
        self.operands = [torch.randn(size, size).to(device, dtype) for _ in range(2)]
        self.result = torch.empty(size, size, device=device, dtype=dtype)
        self.operations = 2 * size**3  # multiplications and additions

    def __call__(self) -> None:
        torch.mm(self.operands[0], self.operands[1], out=self.result)

    def case(self) -> None:
        """A few products, to be timed beside the models."""
        for _ in range(PRODUCT_CALLS):
            self()

    def rates(self, seconds: Times) -> Times:
        """Operations per second, for the times of `case`."""
        rates: Times = PRODUCT_CALLS * self.operations / seconds
        return rates


class PeakMemory:
    """The memory that a block of code needed on top of what was in use before.

    `bytes` is set when the block ends; it stays None where the system does not tell. It counts
    tensors on a GPU, and the whole process on Linux.
    """

    bytes: int | None = None


@contextlib.contextmanager
def peak_memory(device: torch.device) -> Iterator[PeakMemory]:
    """Measure the peak memory of the block."""
    found = PeakMemory()
    before = start_peak(device)
    yield found
    if before is not None:
        found.bytes = max(0, read_peak(device) - before)


def start_peak(device: torch.device) -> int | None:
    """Reset the peak and return the bytes in use, or None where it cannot be reset."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        # Memory that was freed but not returned to the system would hide new allocations.
        ctypes.CDLL(None).malloc_trim(0)
        (PROCESS / "clear_refs").write_text("5", encoding="ascii")  # resets VmHWM
        return status_bytes("VmRSS")
    except (OSError, AttributeError, TypeError):
        return None


def read_peak(device: torch.device) -> int:
    """The most bytes in use since `start_peak`."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    return status_bytes("VmHWM")


def status_bytes(key: str) -> int:
    """A size from Linux's status of this process."""
    for line in (PROCESS / "status").read_text(encoding="ascii").split("\n"):
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {key} in {PROCESS / 'status'}")
