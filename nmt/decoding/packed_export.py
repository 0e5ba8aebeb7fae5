"""Writes a model as a packed directory, which translates without torch."""

from pathlib import Path

from nmt.checkpoint.model_directory import LoadedModel, codec_files
from nmt.decoding.decoder import refuses_mapping
from nmt.decoding.pack_transformer import pack_transformer
from nmt.decoding.packed_directory import FORMAT, PackedConfig, packed_files
from nmt.errors import UserError
from nmt.storage.directories import bytes_writer, write_directory


def export_packed(loaded: LoadedModel, output: Path, *, int8: bool) -> None:
    """Write a new directory; raises for a model that the engine in C cannot compute."""
    if reason := refuses_mapping(loaded.model):
        raise UserError(f"{loaded.path}: cannot be packed for the engine in C: {reason}")
    config = loaded.config
    packed = pack_transformer(loaded.model, int8=int8)
    description = PackedConfig(
        format=FORMAT,
        source_language=config.data.source_language,
        target_language=config.data.target_language,
        max_source_length=config.data.max_length,
        attention=config.model.attention_labels(),
        decode=config.decode,
        model=packed.settings,
    )
    codec = {name: bytes_writer(data) for name, data in codec_files(loaded.codec).items()}
    write_directory(output, {**packed_files(description, packed), **codec})
