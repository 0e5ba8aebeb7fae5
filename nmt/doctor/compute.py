"""The devices of this machine, the kernels in C, and what computes each operation."""

import importlib
import os
import platform
from dataclasses import dataclass

import torch

from nmt.bench.machine import processor_name
from nmt.errors import UserError
from nmt.ops.backend import Verdict, verdicts
from nmt.ops.environment import requested_backend

ENVIRONMENT_NAMES = (
    "NMT_BACKEND",
    "NMT_NATIVE",
    "NMT_KERNELS",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
)


@dataclass(frozen=True)
class Device:
    """A device that torch can compute on."""

    name: str  # as torch writes it
    model: str
    memory: int | None  # bytes


@dataclass(frozen=True)
class Computer:
    """The machine as this process sees it."""

    system: str
    python: str
    cores: int
    usable_cores: int
    threads: int  # of torch
    cuda: str | None  # the version of CUDA that torch was built with
    devices: list[Device]
    settings: dict[str, str | None]  # the environment variables that change what runs


@dataclass(frozen=True)
class DeviceTable:
    """Every implementation of every operation on one device, or why there is no such table."""

    device: str
    verdicts: list[Verdict]
    failure: str | None = None

    @property
    def problems(self) -> list[str]:
        """Why the requested backend cannot run on this device, one line per reason."""
        if self.failure is not None:
            return [self.failure]
        backend = requested_backend()
        computed = {row.operation for row in self.verdicts if row.reason is None}
        operations: dict[str, list[str]] = {}
        for row in self.verdicts:
            if row.operation not in computed and row.backend == backend and row.reason:
                operations.setdefault(row.reason, []).append(row.operation)
        return [
            f"NMT_BACKEND={backend} cannot compute on {self.device}: {'; '.join(names)} ({reason})"
            for reason, names in operations.items()
        ]


def examine_computer() -> Computer:
    """The machine that this process runs on."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    cores = os.cpu_count() or 1
    return Computer(
        system=platform.platform(),
        python=platform.python_version(),
        cores=cores,
        usable_cores=usable or cores,
        threads=torch.get_num_threads(),
        cuda=torch.version.cuda,
        devices=find_devices(),
        settings={name: os.environ.get(name) for name in ENVIRONMENT_NAMES},
    )


def find_devices() -> list[Device]:
    """The CPU, and the GPUs that torch can use."""
    devices = [Device("cpu", processor_name(), main_memory())]
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        facts = torch.cuda.get_device_properties(index)
        devices.append(Device(f"cuda:{index}", facts.name, facts.total_memory))
    return devices


def main_memory() -> int | None:
    """Bytes of main memory, where the system tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def examine_operations(device: str) -> DeviceTable:
    """The implementations of each operation on a device, including decoding."""
    importlib.import_module("nmt.decoding.decoder")  # which adds an operation to the table
    try:
        return DeviceTable(device, verdicts(torch.device(device)))
    except UserError as error:
        return DeviceTable(device, [], str(error))
