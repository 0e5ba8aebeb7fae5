"""Tensors in safetensors files, written without copies and read only as what is expected.

The safetensors library (https://huggingface.co/docs/safetensors) writes and reads the format; it
checks that the tensors of a file lie end to end, and none beyond the file. Tensors that share their
memory (tied embeddings) are stored once, under the name that sorts first.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from nmt.errors import IntegrityError
from nmt.storage.arrays import check_specs, read_header, write_safetensors
from nmt.storage.directories import Writer
from nmt.storage.manifest import reading

TENSOR_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
}
MAX_DIMENSIONS = 8


@dataclass(frozen=True)
class TensorSpec:
    """The dtype and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorSpec":
        """The spec of an existing tensor."""
        return cls(tensor.dtype, tuple(tensor.shape))

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"


def unique_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without the second and later names of the same memory, sorted by name."""
    unique: dict[object, tuple[str, Tensor]] = {}
    for name, tensor in sorted(tensors.items()):
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        unique.setdefault(place if tensor.numel() else name, (name, tensor))
    return dict(unique.values())


def tensors_writer(tensors: Mapping[str, Tensor]) -> Writer:
    """A writer of a safetensors file; equal tensors give equal bytes, whatever their order."""

    def write(path: Path) -> None:
        memory = {
            name: tensor.detach().contiguous().cpu()
            for name, tensor in unique_tensors(tensors).items()
        }
        stored = {
            name: safetensors.TensorSpec(
                dtype=str(tensor.dtype).removeprefix("torch."),
                shape=list(tensor.shape),
                data_ptr=tensor.data_ptr(),
                data_len=tensor.nbytes,
            )
            for name, tensor in memory.items()
        }
        write_safetensors(stored, path)

    return write


class TensorFile:
    """An open safetensors file: what its header says of each tensor, and the tensors."""

    def __init__(self, file: Any, name: str) -> None:
        self._file = file
        self.name = name
        self.specs = {key: self._spec(key) for key in file.offset_keys()}

    def _spec(self, key: str) -> TensorSpec:
        view = self._file.get_slice(key)
        shape = view.get_shape()
        if view.get_dtype() not in TENSOR_DTYPES or len(shape) > MAX_DIMENSIONS:
            raise IntegrityError(f"{self.name}: tensor {key!r:.80} has an unknown dtype or shape")
        return TensorSpec(TENSOR_DTYPES[view.get_dtype()], tuple(shape))

    def tensor(self, key: str) -> Tensor:
        """A copy of one tensor in memory."""
        tensor: Tensor = self._file.get_tensor(key)
        return tensor


@contextmanager
def open_tensors(path: Path) -> Iterator[TensorFile]:
    """Open a safetensors file whose content was verified; nonsense is an IntegrityError."""
    with reading(path), path.open("rb") as file:
        # The library takes ten times as much memory for a long header, and lets a name come twice.
        read_header(file, path)
    try:
        with reading(path):
            opened = safetensors.safe_open(path, framework="pt", backend="pread")
        with opened as tensors:
            yield TensorFile(tensors, str(path))
    except safetensors.SafetensorError as error:
        raise IntegrityError(f"{path}: not a safetensors file ({error!s:.200})") from error


def read_into(path: Path, destinations: Mapping[str, Tensor]) -> None:
    """Fill tensors in place from a file that must hold exactly them."""
    unique = unique_tensors(destinations)
    with open_tensors(path) as file, torch.no_grad():
        expected = {name: TensorSpec.of(item) for name, item in unique.items()}
        check_specs(file.specs, expected, file.name)
        for name, tensor in unique.items():
            tensor.copy_(file.tensor(name))
