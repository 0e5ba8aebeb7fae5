"""A trained model as a directory: weights, configuration and codec, and nothing else is needed."""

import functools
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from nmt.config.config import Config, ModelConfig
from nmt.config.loading import dump_config, parse_config
from nmt.data.codec import Codec
from nmt.errors import IntegrityError, UserError
from nmt.model.transformer import Transformer
from nmt.storage.arrays import check_specs
from nmt.storage.directories import Writer, bytes_writer, settled
from nmt.storage.files import storage_errors
from nmt.storage.manifest import FileEntry, SealedDirectory
from nmt.storage.tensors import TensorFile, TensorSpec, open_tensors, tensors_writer

WEIGHTS_FILE = "model.safetensors"
STATE = "state.json"
CONFIG_FILE = "config.yaml"
TENSORS = ".safetensors"
MOST_READS = 100  # of a directory that is replaced again and again


class ModelMismatchError(UserError):
    """Model directories, or the files of one, that do not belong together."""


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to translate, and what belongs to it."""

    config: Config
    codec: Codec
    model: Transformer
    path: Path
    files: Mapping[str, FileEntry] = field(default_factory=dict)  # that it was read from


def load_model(path: Path) -> LoadedModel:
    """The model in evaluation mode; every file that is read is verified while it is read.

    A directory that is replaced while it is read (a better `best`) is read again, up to
    MOST_READS times.
    """
    for read in range(1, MOST_READS + 1):
        place = settled(path) or path
        before = identity(place)
        try:
            return read_model(place)
        except UserError:
            if read == MOST_READS or identity(settled(path) or path) == before:
                raise
    raise AssertionError("the last read returns or raises")


def identity(path: Path) -> tuple[int, int] | None:
    """The inode and time that tell a directory from its replacement; None if it is missing."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns


def read_model(path: Path) -> LoadedModel:
    """The model of a directory, which takes memory only when its weights are what it expects."""
    directory = SealedDirectory(path)
    directory.verify([name for name in directory.entries if not name.endswith(TENSORS)])
    config = read_config(directory)
    codec = Codec.load(path)
    with directory.open(WEIGHTS_FILE) as weights, open_tensors(weights) as file:
        model = shape_model(config.model, codec, file)
        model.allocate()
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                tensor.copy_(file.tensor(name))
    return LoadedModel(config, codec, model.eval(), path, directory.entries)


def shape_model(config: ModelConfig, codec: Codec, file: TensorFile) -> Transformer:
    """The model without memory for its weights, after their names and shapes were compared.

    The layers are counted first: a file of a few bytes must not cause a thousand layers to be made.
    """
    for part, expected in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        layers = {name.split(".")[1] for name in file.specs if name.startswith(f"{part}.")}
        if len(layers) != expected:
            raise ModelMismatchError(
                f"{file.name}: does not fit the model: {len(layers)} layers in the {part}, "
                f"but {CONFIG_FILE} says {expected}"
            )
    with torch.device("meta"):
        model = model_for(config, codec)
    expected_specs = {name: TensorSpec.of(tensor) for name, tensor in model.state_dict().items()}
    check_specs(file.specs, expected_specs, file.name)
    return model


def read_config(directory: SealedDirectory) -> Config:
    """The configuration that a model was trained with."""
    path = directory.path / CONFIG_FILE
    try:
        text = directory.read_bytes(CONFIG_FILE).decode()
    except UnicodeDecodeError as error:
        raise IntegrityError(f"{path}: not UTF-8") from error
    return parse_config(text, name=str(path), directory=directory.path)


def model_for(config: ModelConfig, codec: Codec) -> Transformer:
    """A model with new weights for the vocabularies of a codec."""
    return Transformer(
        config,
        source_vocabulary_size=len(codec.source.vocabulary),
        target_vocabulary_size=len(codec.target.vocabulary),
    )


def model_files(
    config: Config, codec: Codec, state_dict: Mapping[str, Tensor]
) -> dict[str, Writer]:
    """The files of a model directory; the weights are read when they are written."""
    return {
        CONFIG_FILE: bytes_writer(dump_config(config).encode()),
        **{name: bytes_writer(data) for name, data in codec_files(codec).items()},
        WEIGHTS_FILE: tensors_writer(state_dict),
    }


@functools.lru_cache(maxsize=1)
def codec_files(codec: Codec) -> dict[str, bytes]:
    """The files of a codec, which does not change during a run."""
    place = Path(os.environ.get("TMPDIR", "/tmp"))  # as far as messages go
    with storage_errors(place), tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        codec.save(directory)
        return {name: (directory / name).read_bytes() for name in codec.files()}


def is_needed(name: str) -> bool:
    """Whether a file of a checkpoint is needed to translate."""
    return name == WEIGHTS_FILE or not name.endswith(TENSORS)


def is_codec_file(name: str) -> bool:
    """Whether a file of a model directory belongs to the codec."""
    return name not in (CONFIG_FILE, STATE) and not name.endswith(TENSORS)
