"""Tensors in safetensors files, written without copies and read only as what is expected.

The form (https://huggingface.co/docs/safetensors): eight bytes of length, a JSON header that gives
each tensor's dtype, shape and place, then the bytes of the tensors, end to end. Tensors that share
their memory (tied embeddings) are stored once, under the name that sorts first.
"""

import json
import math
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nmt.errors import IntegrityError, UserError
from nmt.storage.directories import Writer
from nmt.storage.hashing import ByteSink, HashingReader
from nmt.storage.manifest import parse_json

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
MAX_HEADER_BYTES = 10_000_000
MAX_DIMENSIONS = 8
METADATA = "__metadata__"

assert sys.byteorder == "little", "safetensors files are little-endian, and so must the machine be"


class ModelMismatchError(UserError):
    """A file holds other tensors than the model (or optimizer) has."""


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor is like, without its numbers."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorSpec":
        """The spec of an existing tensor."""
        return cls(tensor.dtype, tuple(tensor.shape))

    @property
    def num_bytes(self) -> int:
        """How many bytes the numbers take."""
        return math.prod(self.shape) * self.dtype.itemsize

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

    def write(sink: ByteSink) -> None:
        # Wide types first keeps every tensor aligned, as other readers of the format like it.
        ordered = sorted(unique_tensors(tensors).items(), key=lambda item: -item[1].dtype.itemsize)
        sink.write(encode_header({name: TensorSpec.of(tensor) for name, tensor in ordered}))
        for _, tensor in ordered:
            if tensor.numel():
                sink.write(bytes_of(tensor.detach().contiguous().cpu()))

    return write


def encode_header(specs: Mapping[str, TensorSpec]) -> bytes:
    """Length and JSON for tensors that follow in this order; a multiple of eight bytes."""
    header = {}
    begin = 0
    for name, spec in specs.items():
        end = begin + spec.num_bytes
        header[name] = {
            "dtype": NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def read_header(reader: HashingReader) -> dict[str, TensorSpec]:
    """The tensors of a safetensors file in the order in which their bytes follow."""
    if reader.remaining < 8:
        raise IntegrityError(f"{reader.name}: too short for a safetensors file")
    (length,) = struct.unpack("<Q", reader.read(8))
    if length > min(reader.remaining, MAX_HEADER_BYTES):
        raise IntegrityError(f"{reader.name}: not a safetensors file (header of {length} bytes)")
    header = parse_json(reader.read(length), reader.name)
    header.pop(METADATA, None)
    placed = [(*parse_offsets(item, name, reader), name) for name, item in header.items()]
    specs = {}
    position = 0
    for begin, end, name in sorted(placed):
        spec = parse_spec(header[name], name, reader)
        if begin != position or end - begin != spec.num_bytes:
            raise IntegrityError(f"{reader.name}: tensor {name!r:.80} is not where it should be")
        specs[name] = spec
        position = end
    if position != reader.remaining:
        raise IntegrityError(
            f"{reader.name}: expected {position} bytes of tensors, got {reader.remaining}"
        )
    return specs


def parse_offsets(item: Any, name: str, reader: HashingReader) -> tuple[int, int]:
    """Where the bytes of one tensor begin and end."""
    match item:
        case {"data_offsets": [int(begin), int(end)]} if 0 <= begin <= end <= reader.remaining:
            return int(begin), int(end)
    raise IntegrityError(f"{reader.name}: tensor {name!r:.80} has malformed offsets")


def parse_spec(item: Any, name: str, reader: HashingReader) -> TensorSpec:
    """What one tensor of a header is like."""
    match item:
        case {"dtype": str(dtype), "shape": list(shape)} if dtype in DTYPES:
            sizes_fit = all(type(size) is int and 0 <= size < 1 << 40 for size in shape)
            if sizes_fit and len(shape) <= MAX_DIMENSIONS:
                return TensorSpec(DTYPES[dtype], tuple(shape))
    raise IntegrityError(f"{reader.name}: tensor {name!r:.80} has a malformed dtype or shape")


def check_specs(
    found: Mapping[str, TensorSpec], expected: Mapping[str, TensorSpec], name: str
) -> None:
    """Raise a ModelMismatchError that names what is missing, too much or of another shape."""
    problems = [f"{key} is missing" for key in expected if key not in found]
    problems += [f"{key:.80} is not part of the model" for key in found if key not in expected]
    problems += [
        f"{key} is {found[key]} but should be {spec}"
        for key, spec in expected.items()
        if key in found and found[key] != spec
    ]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ModelMismatchError(f"{name}: does not fit the model: {'; '.join(problems[:5])}{more}")


def read_into(reader: HashingReader, destinations: Mapping[str, Tensor]) -> None:
    """Fill tensors in place from a file that must hold exactly them."""
    fill(reader, read_header(reader), destinations)


def fill(
    reader: HashingReader, found: Mapping[str, TensorSpec], destinations: Mapping[str, Tensor]
) -> None:
    """Fill tensors in place from what follows a header, if it names exactly them."""
    unique = unique_tensors(destinations)
    check_specs(found, {name: TensorSpec.of(item) for name, item in unique.items()}, reader.name)
    with torch.no_grad():
        for name, spec in found.items():
            tensor = unique[name]
            if tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.numel():
                reader.readinto(bytes_of(tensor))
            else:
                tensor.copy_(read_one(reader, spec))


def read_tensors(reader: HashingReader, expected: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
    """New tensors from a file that must hold exactly what is `expected`."""
    found = read_header(reader)
    check_specs(found, expected, reader.name)
    return read_rest(reader, found)


def read_rest(reader: HashingReader, found: Mapping[str, TensorSpec]) -> dict[str, Tensor]:
    """The tensors that follow a header that was checked."""
    return {name: read_one(reader, spec) for name, spec in found.items()}


def read_one(reader: HashingReader, spec: TensorSpec) -> Tensor:
    """The next tensor of the file."""
    tensor = torch.empty(spec.shape, dtype=spec.dtype)
    if tensor.numel():
        reader.readinto(bytes_of(tensor))
    return tensor
