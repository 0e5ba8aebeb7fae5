"""Records what a piece of code would ask of a GPU: launches, bytes, synchronisations, memory.

Counts are of eager execution. An operator of torch counts as the launches that its CUDA
implementation makes for tensors of these sizes (LAUNCHES, read in torch's sources), most as one.
"""

import math
import traceback
import weakref
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PACKAGE = Path(__file__).parents[2] / "nmt"
FREE = {  # views and allocations launch nothing
    "view", "_unsafe_view", "t", "transpose", "permute", "expand", "slice", "select", "unsqueeze",
    "squeeze", "unbind", "detach", "alias", "as_strided", "diagonal", "split", "split_with_sizes",
    "_reshape_alias", "lift_fresh", "view_as", "unfold", "empty", "empty_like", "new_empty",
    "empty_strided", "new_empty_strided", "_local_scalar_dense", "is_pinned", "_pin_memory",
}  # fmt: skip
LAUNCHES = {
    "embedding_dense_backward": 8,
    "_index_put_impl_": 7,
    "index_put_": 7,
    "index_put": 7,
    "sort": 4,
    "argsort": 4,
    "nonzero": 4,
    "topk": 3,
    "native_layer_norm_backward": 3,
    "_scaled_dot_product_efficient_attention_backward": 2,
    "_fused_rms_norm_backward": 2,
    "cumsum": 2,
    # Ours: kernels, and torch's sums of their parts.
    "attention_backward": 3,
    "gated_norm_backward": 3,
    "add_norm_backward": 3,
}
TENSORS_PER_LAUNCH = 110  # of operators on lists, such as the fused optimizer
PAGE = 512  # bytes in which CUDA memory is given out


def place_in_package() -> str:
    """The innermost line of the package that is being executed."""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if path.is_relative_to(PACKAGE):
            return f"{path.relative_to(PACKAGE)}:{frame.lineno} {frame.name}"
    return "elsewhere"


def real_bytes(tensor: Tensor) -> int:
    """Bytes that are read or written: a broadcast dimension counts once."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(size for size, stride in sizes if stride != 0) * tensor.element_size()


class Recorder(TorchDispatchMode):
    """Counts while it is active; fake tensors have to be made inside or handed in."""

    def __init__(self, answers: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.answers = answers or {}  # what `item()` returns, by the name of the function
        self.launches: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.synchronisations: Counter[str] = Counter()
        self.flops = 0
        self.peak = 0
        self._live = 0
        self._storages: dict[int, int] = {}

    def __torch_dispatch__(  # type: ignore[override]
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        on_gpu = any(x.is_cuda for x in inputs)
        if name == "_local_scalar_dense" and on_gpu:
            return self._answer(inputs[0])
        if name == "nonzero" and on_gpu:
            place = self._synchronise("nonzero")
            count = self.answers.get(place.split()[-1], inputs[0].numel())
            self.launches[name] += LAUNCHES[name]
            return inputs[0].new_empty(count, inputs[0].dim(), dtype=torch.int64)
        result = func(*args, **kwargs)
        outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        for tensor in outputs:
            self._allocate(tensor)
        self._copies(name, args, kwargs, inputs, outputs)
        if (on_gpu or any(x.is_cuda for x in outputs)) and name not in FREE:
            self._launch(name, inputs, outputs)
        return result

    def _answer(self, tensor: Tensor) -> float | int | bool:
        """The number on the device that the host waits for."""
        place = self._synchronise("item")
        value = self.answers.get(place.split()[-1], 0)
        if tensor.dtype == torch.bool:
            return bool(value)
        return float(value) if tensor.is_floating_point() else int(value)

    def _synchronise(self, why: str) -> str:
        place = place_in_package()
        self.synchronisations[f"{why} at {place}"] += 1
        return place

    def _copies(
        self, name: str, args: tuple[Any, ...], kwargs: Any, inputs: Any, outputs: Any
    ) -> None:
        """A copy between host and device makes the host wait, unless it may go on meanwhile."""
        if name not in ("_to_copy", "copy_") or not inputs:
            return
        source = inputs[1] if name == "copy_" and len(inputs) > 1 else inputs[0]
        target = inputs[0] if name == "copy_" else outputs[0]
        if source.is_cuda == target.is_cuda:
            return
        may_go_on = kwargs.get("non_blocking", False) or (name == "copy_" and len(args) > 2)
        if not may_go_on:
            self._synchronise(f"copy from {source.device.type} to {target.device.type}")

    def _launch(self, name: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        count = LAUNCHES.get(name, 1)
        if name.startswith(("_foreach", "_fused_adam")):
            count = math.ceil(len(inputs) / TENSORS_PER_LAUNCH)
        self.launches[name] += count
        tensors = {id(x): x for x in [*inputs, *outputs] if x.is_cuda}
        self.bytes[name] += sum(map(real_bytes, tensors.values()))
        if name in ("mm", "addmm", "bmm", "baddbmm"):
            left, right = (inputs[-2], inputs[-1])
            self.flops += 2 * left.numel() * right.shape[-1]

    def _allocate(self, tensor: Tensor) -> None:
        """Follow the memory of a storage until it is freed."""
        if not tensor.is_cuda:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        size = -(-storage.nbytes() // PAGE) * PAGE
        self._storages[key] = size
        self._live += size
        self.peak = max(self.peak, self._live)
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self._live -= self._storages.pop(key, 0)
