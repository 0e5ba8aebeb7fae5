"""Arrays of NumPy's .npz files, read with limits and without unpickling anything."""

import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from nmt.errors import DataError

MAX_ARRAYS = 100_000
MAX_ARRAY_BYTES = 1 << 34
NPZ_MAX_DIMENSIONS = 4
SMALL_BYTES = 1 << 24  # arrays up to here may be packed as densely as zeros can be
MAX_PACKING = 100  # bytes of a larger array for one in the archive; weights have about 1
NPY_HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# float16 and the numbers of settings; a pickled object has the type O, which is not among them.
NPZ_TYPES = ("float32", "float16", "int8", "uint8", "int32")
# What the libraries raise for archives and headers with wrong bytes.
NPZ_ERRORS = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError),
    *(OSError, EOFError, KeyError, ValueError, SyntaxError, RuntimeError, MemoryError),
)


@dataclass(frozen=True)
class NpyHeader:
    """The type and shape that the header of an array states."""

    dtype: str
    shape: tuple[int, ...]
    is_fortran: bool

    @property
    def num_bytes(self) -> int:
        """The bytes of its numbers."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass
class Npz:
    """The arrays of a file."""

    archive: zipfile.ZipFile
    name: str
    specs: dict[str, NpyHeader]

    @classmethod
    def read(cls, path: Path, file: IO[bytes]) -> "Npz":
        """The specs of all arrays; their numbers are read when they are taken."""
        try:
            archive = zipfile.ZipFile(file)
            members = archive.infolist()
            if len(members) > MAX_ARRAYS:
                raise DataError(f"{path}: expected at most {MAX_ARRAYS} arrays")
            specs = {
                member.filename.removesuffix(".npy"): read_spec(archive, member, path)
                for member in members
            }
        except NPZ_ERRORS as error:
            raise DataError(f"{path}: not an .npz file, or damaged ({error!s:.100})") from None
        if len(specs) != len(members):
            raise DataError(f"{path}: an array comes twice")
        return cls(archive, str(path), specs)

    def array(self, key: str) -> Any:
        """The numbers of an array, as its header describes them."""
        spec = self.specs[key]
        try:
            with self.archive.open(f"{key}.npy") as file:
                skip_header(file)
                data = file.read(spec.num_bytes)
        except NPZ_ERRORS as error:
            raise DataError(f"{self.name}: {key}: cannot be read ({error!s:.100})") from None
        if len(data) != spec.num_bytes:
            raise DataError(f"{self.name}: {key}: expected {spec.num_bytes} bytes, got {len(data)}")
        order: Any = "F" if spec.is_fortran else "C"
        return np.frombuffer(data, spec.dtype).reshape(spec.shape, order=order)

    def tensor(self, key: str) -> Tensor:
        """The numbers of an array as a tensor of their type."""
        return torch.from_numpy(np.ascontiguousarray(self.array(key)).copy())


def skip_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, Any]:
    """Shape, order and type by the header of an array; the file is then at its numbers."""
    version = npy.read_magic(file)
    if version not in NPY_HEADER_READERS:
        raise ValueError(f"version {version} of the format of arrays")
    shape, is_fortran, dtype = NPY_HEADER_READERS[version](file)
    return shape, is_fortran, dtype


def read_spec(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> NpyHeader:
    """The checked header of an array; what it states has to be what the archive holds."""
    name = member.filename
    try:
        with archive.open(member) as file:
            shape, is_fortran, dtype = skip_header(file)
    except (tokenize.TokenError, ValueError, SyntaxError, RuntimeError) as error:
        raise DataError(f"{path}: {name!r:.80}: not an array ({error!s:.100})") from None
    if dtype.name not in NPZ_TYPES or not dtype.isnative:
        raise DataError(f"{path}: {name!r:.80}: expected numbers, got the type {dtype!s:.40}")
    if len(shape) > NPZ_MAX_DIMENSIONS:
        raise DataError(f"{path}: {name!r:.80}: expected at most {NPZ_MAX_DIMENSIONS} dimensions")
    spec = NpyHeader(dtype.name, tuple(map(int, shape)), is_fortran)
    # A few bytes of a compressed archive can stand for very many: both sizes are looked at.
    if min(spec.shape, default=0) < 0 or spec.num_bytes > min(member.file_size, MAX_ARRAY_BYTES):
        raise DataError(
            f"{path}: {name!r:.80}: its header states {list(spec.shape)!s:.80} {spec.dtype}, which "
            f"the archive does not hold ({member.file_size} bytes)"
        )
    if spec.num_bytes > max(SMALL_BYTES, MAX_PACKING * member.compress_size):
        raise DataError(
            f"{path}: {name!r:.80}: expected weights, got {spec.num_bytes} bytes packed into "
            f"{member.compress_size}"
        )
    return spec
