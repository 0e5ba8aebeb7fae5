"""A packed model as a directory: all that translating needs without torch, and nothing else.

`packed.yaml` describes it, `packed.safetensors` has the arrays of the engine in C, and beside them
are the files of the codec and a manifest. What is read is verified by the manifest, compared with
what the description and the vocabularies imply, and then by the kernels again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from nmt.config.limits import Length
from nmt.config.scalars import Range
from nmt.config.schema import to_yaml
from nmt.config.search_options import DecodeConfig
from nmt.config.sections import parse_section
from nmt.config.start import PACKED
from nmt.data.codec import Codec
from nmt.decoding.packed_model import NUM_POSITIONS, PackedModel, PackedSettings
from nmt.errors import IntegrityError
from nmt.storage.arrays import ArrayFile, ArraySpec, arrays_writer, check_specs
from nmt.storage.directories import Writer, bytes_writer
from nmt.storage.manifest import SealedDirectory

ARRAYS = "packed.safetensors"
FORMAT = 1


@dataclass(frozen=True)
class PackedConfig:
    """The description of a packed model: the content of packed.yaml."""

    format: Annotated[int, Range(1, 1_000_000)]
    source_language: str
    target_language: str
    max_source_length: Length  # in subwords
    attention: dict[str, str]  # by type: a description of the kind, for people
    decode: DecodeConfig
    model: PackedSettings


@dataclass(frozen=True)
class PackedDirectory:
    """A packed model that was read."""

    config: PackedConfig
    codec: Codec
    model: PackedModel


def packed_files(config: PackedConfig, model: PackedModel) -> dict[str, Writer]:
    """The files of a packed model but for those of its codec."""
    return {
        PACKED: bytes_writer(to_yaml(config).encode()),
        ARRAYS: arrays_writer(model.arrays),
    }


def read_packed_config(directory: SealedDirectory) -> PackedConfig:
    """The verified description of a packed model."""
    path = directory.path / PACKED
    try:
        text = directory.read_bytes(PACKED).decode()
    except UnicodeDecodeError as error:
        raise IntegrityError(f"{path}: not UTF-8") from error
    config = parse_section(text, PackedConfig, name=str(path))
    if config.format != FORMAT:
        raise IntegrityError(
            f"{path}: expected format {FORMAT}, got {config.format}; use the version of nmt that "
            "wrote it, or export the model again"
        )
    settings = config.model
    if settings.dim % settings.heads != 0:
        raise IntegrityError(
            f"{path}: model.heads: expected a divisor of {settings.dim}, got {settings.heads}"
        )
    expected = set(sublayers(settings))
    for key, found in (("score_maps", settings.score_maps), ("head_norms", settings.head_norms)):
        if set(found) != expected:
            raise IntegrityError(f"{path}: model.{key}: expected the sublayers of the model")
    return config


def read_packed(path: Path) -> PackedDirectory:
    """The packed model in a directory; its arrays are views of the mapped file."""
    directory = SealedDirectory(path)
    directory.verify([name for name in directory.entries if name != ARRAYS])
    config = read_packed_config(directory)
    codec = Codec.load(path)
    with directory.open(ARRAYS) as place:
        file = ArrayFile(place)
        expected = expected_arrays(
            config.model,
            source_vocabulary=len(codec.source.vocabulary),
            target_vocabulary=len(codec.target.vocabulary),
            found=file.specs,
        )
        check_specs(file.specs, expected, str(place))
    arrays = {name: file.array(name) for name in expected}
    return PackedDirectory(config, codec, PackedModel(config.model, arrays))


def sublayers(settings: PackedSettings) -> Iterator[str]:
    """The names of all attention sublayers."""
    for layer in range(settings.encoder_layers):
        yield f"encoder.{layer}.self"
    for layer in range(settings.decoder_layers):
        yield from (f"decoder.{layer}.self", f"decoder.{layer}.cross")


def expected_arrays(
    settings: PackedSettings,
    *,
    source_vocabulary: int,
    target_vocabulary: int,
    found: Mapping[str, object],
) -> dict[str, ArraySpec]:
    """The arrays that a model must have, and those that it may have as far as they are found."""
    dim, hidden = settings.dim, settings.hidden_dim
    names = ArrayNames(int8=settings.int8)
    names.add("target_embedding", target_vocabulary, dim)
    if "source_embedding" in found or source_vocabulary != target_vocabulary:
        names.add("source_embedding", source_vocabulary, dim)
    names.add("positions", NUM_POSITIONS, dim)
    if settings.int8 or "output.weight" in found:
        names.weight("output", target_vocabulary, dim)
    if "output.bias" in found:
        names.add("output.bias", target_vocabulary)
    for name in sublayers(settings):
        cross = name.endswith(".cross")
        names.linear(f"{name}.input", dim if cross else 3 * dim, dim)
        if cross:
            names.linear(f"{name}.key_value", 2 * dim, dim)
        names.linear(f"{name}.output", dim, dim)
        names.norm(name, dim)
        names.add(f"{name}.parameters", settings.heads)
        if settings.head_norms[name] != "none":
            names.add(f"{name}.gain", dim)
        if f"{name}.gate" in found:
            names.add(f"{name}.gate", dim)
    for side, count in (("encoder", settings.encoder_layers), ("decoder", settings.decoder_layers)):
        for layer in range(count):
            name = f"{side}.{layer}.feed_forward"
            names.linear(f"{name}.input", hidden, dim)
            names.linear(f"{name}.output", dim, hidden)
            names.norm(name, dim)
        if settings.pre_norm:
            names.norm(side, dim)
    return names.specs


class ArrayNames:
    """Collects the names, types and shapes of arrays."""

    def __init__(self, *, int8: bool) -> None:
        self.int8 = int8
        self.specs: dict[str, ArraySpec] = {}

    def add(self, name: str, *shape: int) -> None:
        """An array in float32."""
        self.specs[name] = ArraySpec(np.dtype(np.float32), shape)

    def weight(self, name: str, outputs: int, inputs: int) -> None:
        """The weight of a linear layer, with its scales in 8 bits."""
        dtype = np.dtype(np.int8 if self.int8 else np.float32)
        self.specs[f"{name}.weight"] = ArraySpec(dtype, (outputs, inputs))
        if self.int8:
            self.add(f"{name}.scales", outputs)

    def linear(self, name: str, outputs: int, inputs: int) -> None:
        """A linear layer with a bias."""
        self.weight(name, outputs, inputs)
        self.add(f"{name}.bias", outputs)

    def norm(self, name: str, dim: int) -> None:
        """A LayerNorm."""
        self.add(f"{name}.norm.gain", dim)
        self.add(f"{name}.norm.bias", dim)
