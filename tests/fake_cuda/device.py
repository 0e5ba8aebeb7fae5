"""A CUDA device that only fake tensors can be on: import this before torch.

Whole updates and decoding steps run on it, with their shapes, types and devices checked and their
operations recorded, but without a number computed.
"""

import ctypes
import importlib.util
import subprocess
import sys
from pathlib import Path


def build(directory: Path) -> Path:
    """Compile the device guard against torch's headers; the library."""
    specification = importlib.util.find_spec("torch")
    assert specification is not None
    assert specification.origin is not None
    torch = Path(specification.origin).parent
    library = directory / "guard.so"
    source = Path(__file__).with_name("guard.cpp")
    command = ["g++", "-std=c++20", "-O0", "-shared", "-fPIC", str(source), "-o", str(library)]
    command += [f"-I{torch / 'include'}", f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu"]
    command += [f"-Wl,-rpath,{torch / 'lib'}"]
    subprocess.run(command, check=True)
    return library


def load(directory: Path) -> None:
    """Make torch see the device from its first import on."""
    assert "torch" not in sys.modules
    ctypes.CDLL(str(build(directory)), mode=ctypes.RTLD_GLOBAL)
    import torch

    torch.cuda.is_available = lambda: True
    torch.cuda.is_bf16_supported = lambda *_arguments, **_options: True
    torch.cuda.get_device_capability = lambda *_arguments: (8, 0)
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.synchronize = lambda *_arguments: None
    torch.amp.grad_scaler.amp_definitely_not_available = lambda: False
