"""A model that torch computes as a worker process serves it, with its attention."""

from pathlib import Path
from typing import Any

from nmt.checkpoint.model_directory import LoadedModel, read_config
from nmt.checkpoint.selection import find_model
from nmt.decoding.alignment import recommended_head
from nmt.decoding.torch_models import TorchModels
from nmt.serving.attention import attention_of_pair
from nmt.serving.messages import ServedModel, WorkerPlan
from nmt.serving.worker_model import (
    WorkerModel,
    load_translator,
    read_version,
    search_options,
    served_layers,
)
from nmt.storage.manifest import SealedDirectory


def load_torch_model(name: str, directory: Path, plan: WorkerPlan) -> WorkerModel:
    """The model of a model or run directory."""
    path = find_model(directory)
    version = read_version(path)
    translator = load_translator(path, plan)
    config = read_config(SealedDirectory(path))
    if read_version(path) != version:
        return load_torch_model(name, directory, plan)  # it was replaced meanwhile
    options = search_options(config.decode, plan)
    facts = ServedModel(
        name=name,
        path=str(path),
        source=config.data.source_language,
        target=config.data.target_language,
        version=version,
        beam=options.beam,
        attention=config.model.attention_labels(),
        layers=served_layers(config.model.encoder_layers, config.model.decoder_layers),
        heads=config.model.heads,
    )
    assert isinstance(translator.models, TorchModels)
    member = translator.models.members[0]
    loaded = LoadedModel(config, member.codec, member.model, path)
    alignment = recommended_head(path)

    def attend(source: str, target: str | None) -> dict[str, Any]:
        return attention_of_pair(
            loaded, translator, options, alignment, name=name, source=source, target=target
        )

    return WorkerModel(facts, translator, options, attend)
