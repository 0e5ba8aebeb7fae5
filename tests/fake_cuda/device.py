"""A CUDA device that only fake tensors can be on: import this before torch.

Whole updates and decoding steps run on it, with their shapes, types and devices checked and their
operations recorded, but without a number computed.
"""

import ctypes
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

PROPERTIES = SimpleNamespace(
    name="A100", major=8, minor=0, total_memory=40 << 30, multi_processor_count=108
)


class Event:
    """A torch.cuda.Event that remembers how many were recorded before each wait."""

    is_counted = False  # whether a recorder counts waits for events as synchronisations
    recorded = 0
    waits: ClassVar[list[int]] = []  # of each wait, how many events were recorded after that one

    def record(self) -> None:
        Event.recorded += 1
        self.number = Event.recorded

    def synchronize(self) -> None:
        Event.waits.append(Event.recorded - self.number)
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

        for mode in _get_current_dispatch_mode_stack():
            if Event.is_counted and hasattr(mode, "_synchronise"):  # a recorder
                mode._synchronise("event")


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
    torch.cuda.get_device_properties = lambda *_arguments: PROPERTIES
    torch.cuda.get_rng_state = lambda *_arguments: torch.empty(16, dtype=torch.uint8)
    torch.cuda.set_rng_state = lambda *_arguments: None
    torch.accelerator.is_available = lambda: False  # dynamo would ask it for a stream
    torch.cuda.Event = Event
    torch.cuda.synchronize = lambda *_arguments: None
    torch.amp.grad_scaler.amp_definitely_not_available = lambda: False
    torch.Tensor.pin_memory = lambda self, *_arguments: self
    torch.utils._foreach_utils._foreach_supported_types.append(
        torch._subclasses.fake_tensor.FakeTensor
    )
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device="cuda")
    torch.nn.functional.scaled_dot_product_attention = choose_fused_attention


def choose_fused_attention(
    query: Any, key: Any, value: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False
) -> Any:
    """Attention by the operators that torch would choose on a GPU; the CPU build cannot choose.

    Without a mask that is flash attention in half precision. A boolean mask becomes a bias, filled
    up to a multiple of 16 keys, of memory-efficient attention.
    """
    import torch

    aten = torch.ops.aten
    if mask is None and query.dtype != torch.float32:
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal)[0]
    bias = None
    if mask is not None:
        lowest = torch.scalar_tensor(0.0, dtype=query.dtype, device=query.device)
        bias = torch.where(mask.logical_not(), -torch.inf, lowest).to(query.dtype)
        if extra := -mask.shape[-1] % 16:
            bias = torch.nn.functional.pad(bias, (0, extra))[..., : mask.shape[-1]]
        bias = bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    training = torch.is_grad_enabled()
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, training, dropout, causal
    )[0]


def answer_arrays(answer: Callable[[tuple[int, ...]], Any]) -> None:
    """Let `numpy()` of a fake tensor return the answer to its shape."""
    from torch._subclasses.fake_tensor import FakeTensor

    FakeTensor.numpy = lambda self: answer(tuple(self.shape))
