"""Arrays of a safetensors file as views of the mapped file, without copies and without torch.

What the header says is compared with what is expected before any array is made.
"""

import errno
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nmt.errors import IntegrityError, UserError
from nmt.storage.directories import Writer
from nmt.storage.manifest import parse_json, reading

ARRAY_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype(np.float32), "I8": np.dtype(np.int8)}
MAX_HEADER_BYTES = 10_000_000
MOST_PROBLEMS = 5  # that a message names
OS_ERROR = re.compile(r"\(os error (\d+)\)")


class TensorMismatchError(UserError):
    """A file holds other tensors than those that are to be filled."""


@dataclass(frozen=True)
class ArraySpec:
    """The dtype and shape of an array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def read_header(file: BufferedReader, path: Path) -> dict[str, Any]:
    """The header of a safetensors file, after which its data begin; names come once."""
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER_BYTES:
        raise IntegrityError(f"{path}: not a safetensors file (header of {length} bytes)")
    return parse_json(file.read(length), str(path))


def check_specs(found: Mapping[str, object], expected: Mapping[str, object], name: str) -> None:
    """Raise a TensorMismatchError that names what is missing, too much or of another shape."""
    problems = [f"{key} is missing" for key in expected if key not in found]
    problems += [f"{key:.80} is not expected" for key in found if key not in expected]
    problems += [
        f"{key} is {found[key]} but should be {spec}"
        for key, spec in expected.items()
        if key in found and found[key] != spec
    ]
    if problems:
        left = len(problems) - MOST_PROBLEMS
        more = f" and {left} more" if left > 0 else ""
        listed = "; ".join(problems[:MOST_PROBLEMS])
        raise TensorMismatchError(f"{name}: holds other tensors than expected: {listed}{more}")


def write_safetensors(specs: Mapping[str, Any], path: Path) -> None:
    """Write a file of the safetensors library's `TensorSpec`s; a failing disk is an OSError."""
    import safetensors

    with safetensors_errors():
        safetensors.serialize_file(dict(specs), path)


@contextmanager
def safetensors_errors() -> Iterator[None]:
    """A context in which a disk that fails the safetensors library is an OSError."""
    import safetensors

    try:
        yield
    except safetensors.SafetensorError as error:
        found = OS_ERROR.search(str(error))
        number = int(found[1]) if found else errno.EIO
        raise OSError(number, os.strerror(number)) from error


def arrays_writer(arrays: Mapping[str, npt.NDArray[Any]]) -> Writer:
    """A writer of a safetensors file; equal arrays give equal bytes, whatever their order."""

    def write(path: Path) -> None:
        from safetensors import TensorSpec

        memory = {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}
        specs = {
            name: TensorSpec(
                dtype=str(array.dtype),
                shape=list(array.shape),
                data_ptr=array.ctypes.data,
                data_len=array.nbytes,
            )
            for name, array in memory.items()
        }
        write_safetensors(specs, path)

    return write


class ArrayFile:
    """A mapped safetensors file, which stays mapped while one of its arrays is used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path), path.open("rb") as file:
            header = read_header(file, path)
            self._first = file.tell()  # of the data
            self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        header.pop("__metadata__", None)
        self._places: dict[str, int] = {}  # of each array in the file
        self.specs = {name: self._spec(name, entry) for name, entry in header.items()}

    def _spec(self, name: str, entry: Any) -> ArraySpec:
        """The checked entry of an array: all its numbers are in the file, and aligned."""
        match entry:
            case {"dtype": str(kind), "shape": list(shape), "data_offsets": [int(first), int(end)]}:
                dtype, place = ARRAY_DTYPES.get(kind), self._first + first
                if (
                    dtype is not None
                    and all(type(size) is int and size >= 0 for size in shape)
                    and 0 <= first <= end <= len(self._mapped) - self._first
                    and end - first == prod(shape) * dtype.itemsize
                    and place % dtype.itemsize == 0
                ):
                    self._places[name] = place
                    return ArraySpec(dtype, tuple(shape))
        raise IntegrityError(
            f"{self.path}: tensor {name!r:.80} has an unknown dtype, or is not in the file"
        )

    def array(self, name: str) -> npt.NDArray[Any]:
        """A view of one array, which cannot be written to."""
        spec = self.specs[name]
        place = self._places[name]
        flat = np.frombuffer(self._mapped, spec.dtype, count=prod(spec.shape), offset=place)
        return flat.reshape(spec.shape)
