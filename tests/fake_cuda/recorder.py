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
    "device",
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
    "choose_beam": 2,  # ours
}
# Tensors per launch of operators on lists, such as the fused optimizer, by the number of lists.
TENSORS_PER_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
NUMBERS_PER_LAUNCH = 320 * 65536
GATHERING = ("embedding", "index", "index_select", "gather")  # read what they write, no more
PRODUCTS = ("mm", "addmm", "_addmm_activation", "bmm", "baddbmm")
FUSED_INPUTS = "inputs of fused products"  # which are read while others are multiplied
ATTENTION = {  # multiples of queries x keys x width in the products of fused attention
    "_scaled_dot_product_efficient_attention": 4,
    "_scaled_dot_product_efficient_attention_backward": 10,
    "_scaled_dot_product_flash_attention": 4,
    "_scaled_dot_product_flash_attention_backward": 10,
    "attention": 4,
    "cached_attention": 4,
    "growing_attention": 4,
    "attention_backward": 10,
}
# Work per score outside of products: forward, backward by queries, backward by keys, by the number
# of a mapping. Counted in the code for sm_80 with dropout, as the difference between 257 keys and
# 256, which take one tile less, or in the loop over tiles: operations on floats, and those on
# integers that are no copies; an exponential or logarithm counts as 4. Four steps of Newton's
# method, three after the start of a learned alpha, eight of top-k's bisection; of branches on a
# learned alpha, those of one that is not close to 1.
VECTOR_FLOPS = {
    0: (25, 30, 24), 1: (40, 32, 22), 2: (36, 33, 22), 3: (71, 40, 29), 4: (15, 21, 21),
    9: (54, 39, 26),
}  # fmt: skip
VECTOR_FLOPS_OF_OTHERS = (35, 35, 35)
VECTOR_FLOPS_OF_TORCH = (32, 32)  # of softmax in one pass, forward and backward
RANDOM_BITS = 12  # of these, where there is dropout
NEWTON_STEPS = 5
ONE_HEAD = 32  # queries and keys of a head that one program of the backward pass holds
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


def moved_bytes(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Bytes that an operator reads and writes on the device."""
    if name in GATHERING:
        return 2 * sum(map(real_bytes, outputs))
    tensors = {id(x): x for x in [*inputs, *outputs] if x.is_cuda}
    total = sum(map(real_bytes, tensors.values()))
    if name == "_fused_adam_":
        return total * 7 // 4  # three of its four lists are read and written
    if name in ("add_", "mul_", "sub_", "div_", "_foreach_add_", "_foreach_mul_", "_foreach_sub_"):
        total += real_bytes(inputs[0]) if not name.startswith("_") else total // 2
    return total


def count_launches(name: str, args: tuple[Any, ...]) -> int:
    """The launches of an operator in torch's CUDA build, or of ours."""
    if name.startswith(("_foreach", "_fused_adam")):
        lists = [x for x in args if isinstance(x, list | tuple) and x]
        first = [x for x in lists[0] if isinstance(x, Tensor)]
        numbers = sum(tensor.numel() for tensor in first)
        tensors = TENSORS_PER_LAUNCH[min(5, len(lists))]
        count = max(math.ceil(len(first) / tensors), math.ceil(numbers / NUMBERS_PER_LAUNCH))
        return 2 * count if name == "_foreach_norm" else count
    if name == "sum_parts":
        from nmt.ops.triton.rows import SUMMED_AT_ONCE

        return math.ceil(len(args[0]) / SUMMED_AT_ONCE)
    if name == "attention_backward":
        projections, learned = args[1], args[-1]
        short = max(projections[0].shape[1], projections[-1].shape[1]) <= ONE_HEAD
        return (1 if short else 2) + bool(learned)
    return LAUNCHES.get(name, 1)


def fused_work(name: str, queries: int, keys: int, *, mapping: int) -> tuple[int, int]:
    """Multiples of queries x keys x width in products, and of queries x keys in other work."""
    from nmt.ops.triton import attention

    forward, by_queries, by_keys = VECTOR_FLOPS.get(mapping, VECTOR_FLOPS_OF_OTHERS)
    states = attention.state_numbers(mapping)
    if name != "attention_backward":
        held = attention.forward_tiles(queries, keys, 64, mapping).held
        again = 0 if states == 0 or held else NEWTON_STEPS + 1  # scores are computed again
        return ATTENTION[name] + 2 * again, forward
    if max(queries, keys) <= ONE_HEAD:
        return ATTENTION[name], by_queries
    held = attention.backward_tiles(queries, keys, 64, mapping)[0].held
    return ATTENTION[name] + (4 if states == 0 or held else 8), by_queries + by_keys


class Recorder(TorchDispatchMode):
    """Counts while it is active; fake tensors have to be made inside or handed in."""

    def __init__(self, answers: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.answers = answers or {}  # what `item()` returns, by the name of the function
        self.launches: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.synchronisations: Counter[str] = Counter()
        self.product_flops = 0
        self.fused_flops = 0
        self.cache_bytes = 0
        self.attention_flops = 0
        self.vector_flops = 0
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
        if name == "nonzero":
            return self._positions(inputs[0])
        result = func(*args, **kwargs)
        outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        for tensor in outputs:
            self._allocate(tensor)
        self._copies(name, args, kwargs, inputs, outputs)
        if (on_gpu or any(x.is_cuda for x in outputs)) and name not in FREE:
            self._launch(name, args, inputs, outputs)
        return result

    def _answer(self, tensor: Tensor) -> float | int | bool:
        """The number on the device that the host waits for."""
        place = self._synchronise("item")
        value = self.answers.get(place.split()[-1], 0)
        if tensor.dtype == torch.bool:
            return bool(value)
        return float(value) if tensor.is_floating_point() else int(value)

    def _positions(self, tensor: Tensor) -> Tensor:
        """Where a tensor is not 0: as many places as the answer says, else all."""
        place = self._synchronise("nonzero") if tensor.is_cuda else place_in_package()
        if tensor.is_cuda:
            self.launches["nonzero"] += LAUNCHES["nonzero"]
        count = self.answers.get(place.split()[-1], tensor.numel())
        return tensor.new_empty(count, tensor.dim(), dtype=torch.int64)

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

    def clear(self) -> None:
        """Forget the counts; memory that is in use stays."""
        for counter in (self.launches, self.bytes, self.synchronisations):
            counter.clear()
        self.product_flops = self.attention_flops = self.vector_flops = 0
        self.fused_flops = self.cache_bytes = 0
        self.peak = self._live

    def _launch(self, name: str, args: Any, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        self.launches[name] += count_launches(name, args)
        self.bytes[name] += moved_bytes(name, inputs, outputs)
        if name in PRODUCTS:
            left, right = [x for x in args if isinstance(x, Tensor)][-2:]  # `out` is no factor
            self.product_flops += 2 * left.numel() * right.shape[-1]
        elif name == "product_norm":
            self._multiply_and_norm(*inputs[:2])
        elif name in ATTENTION:
            self._attend(name, args, inputs)

    def _multiply_and_norm(self, x: Tensor, weight: Tensor) -> None:
        """Count a product that norms its output; its sums stay in the L2 cache."""
        from nmt.ops.triton.products import cache_bytes

        (rows, inputs), outputs = x.shape, len(weight)
        read = real_bytes(x) + real_bytes(weight)
        self.bytes["product_norm"] -= read
        self.bytes[FUSED_INPUTS] += read
        self.fused_flops += 2 * rows * inputs * outputs
        self.cache_bytes += cache_bytes(rows, inputs, outputs, x.element_size())

    def _attend(self, name: str, args: tuple[Any, ...], inputs: list[Tensor]) -> None:
        """Count the products and the other work of fused attention."""
        if name.startswith("_scaled"):
            query, key = inputs["backward" in name :][:2]
            batch, heads, queries, _ = query.shape
            keys, width = key.shape[2], heads * key.shape[3]
            products, vector = ATTENTION[name], VECTOR_FLOPS_OF_TORCH["backward" in name]
        elif name == "cached_attention":
            (batch, heads, queries, head_dim), keys = inputs[0].shape, inputs[1].shape[2]
            width = heads * head_dim
            products, vector = fused_work(name, queries, keys, mapping=args[5])
            vector -= RANDOM_BITS
        elif name == "growing_attention":
            (batch, queries, total), keys, heads = inputs[0].shape, inputs[1].shape[3], args[5]
            width = total // 3
            products, vector = fused_work(name, queries, keys, mapping=args[6])
            vector -= RANDOM_BITS
        else:
            projections = args["backward" in name]
            heads, mapping = [x for x in args if type(x) is int][:2]
            (batch, queries, _), keys = projections[0].shape, projections[-1].shape[1]
            width = sum(projection.shape[-1] for projection in projections) // 3
            products, vector = fused_work(name, queries, keys, mapping=mapping)
        self.attention_flops += products * batch * queries * keys * width
        self.vector_flops += vector * batch * heads * queries * keys

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
