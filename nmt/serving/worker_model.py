"""A model as a worker process serves it, and how a packed one is loaded; does not import torch."""

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

from nmt.config.search_options import DecodeConfig, SearchOptions
from nmt.decoding.packed_directory import read_packed_config
from nmt.decoding.translation import Precision
from nmt.decoding.translator import Translator
from nmt.errors import UserError
from nmt.serving.messages import ServedModel, WorkerPlan
from nmt.storage.manifest import MANIFEST, SealedDirectory


@dataclass(frozen=True)
class WorkerModel:
    """A model that is ready to translate and to be looked into."""

    facts: ServedModel
    translator: Translator
    options: SearchOptions
    attend: Callable[[str, str | None], dict[str, Any]]  # of a source, and a target or None


def load_translator(path: Path, plan: WorkerPlan) -> Translator:
    """The translator of a model directory."""
    return Translator.load(
        path,
        device=plan.device,
        precision=cast(Precision, plan.precision),
        int8=plan.int8,
        threads=plan.threads,
    )


def search_options(decode: DecodeConfig, plan: WorkerPlan) -> SearchOptions:
    """The options of the server over those of a model."""
    return dataclasses.replace(
        SearchOptions.of(decode), fill_memory="batch_tokens" not in plan.search, **plan.search
    )


def served_layers(encoder: int, decoder: int) -> dict[str, int]:
    """The number of layers by type of attention."""
    return {"encoder_self": encoder, "decoder_self": decoder, "cross": decoder}


def read_version(path: Path) -> str:
    """The hash of the manifest, which has the hashes of all files of a model."""
    try:
        return hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def load_packed_model(name: str, path: Path, plan: WorkerPlan) -> WorkerModel:
    """A packed model, which has no attention to look into."""
    version = read_version(path)
    translator = load_translator(path, plan)
    config = read_packed_config(SealedDirectory(path))
    if read_version(path) != version:
        return load_packed_model(name, path, plan)  # it was replaced meanwhile
    options = search_options(config.decode, plan)
    facts = ServedModel(
        name=name,
        path=str(path),
        source=config.source_language,
        target=config.target_language,
        version=version,
        beam=options.beam,
        attention=config.attention,
        layers=served_layers(config.model.encoder_layers, config.model.decoder_layers),
        heads=config.model.heads,
    )

    def attend(_source: str, _target: str | None) -> NoReturn:
        raise UserError(f"the model {name} can only translate: it is packed, without attention")

    return WorkerModel(facts, translator, options, attend)
