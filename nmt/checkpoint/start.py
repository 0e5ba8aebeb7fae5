"""Starting a run from a trained model: its codec, and the weights that fit the new model."""

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nmt.checkpoint.model_directory import WEIGHTS_FILE, LoadedModel, is_codec_file, load_model
from nmt.checkpoint.selection import find_model
from nmt.config.config import AttentionTypesConfig, Config
from nmt.config.differences import differences
from nmt.config.start import START_KEY
from nmt.data.codec import Codec
from nmt.data.prepare import StartCodec
from nmt.data.prepared_directory import fingerprint
from nmt.errors import ConfigError, NoCheckpointError
from nmt.model.attention import Site
from nmt.model.transformer import Transformer
from nmt.storage.manifest import FileEntry

# The settings of model and codec in which a run may differ from its start.
FREE = (
    "model.dropout",
    "model.attention_dropout",
    "model.feed_forward_dropout",
    "model.initializer",
    "model.initial_score_scale",
    "model.attention",
    "data.subword.sample_pairs",
    "data.subword.dropout",  # of the batches, not of the codec
)
RESERVED_KEY = "data.subword.reserved"  # may have more symbols than in the start
CODEC_SETTINGS = ("source_language", "target_language", "tokenizer", "subword")
SUBLAYERS = {
    "encoder_self": "encoder.{}.self_attention.",
    "decoder_self": "decoder.{}.self_attention.",
    "cross": "decoder.{}.cross_attention.",
}
LAYER = re.compile(r"\.\d+\.")
MOST_NAMES = 6  # of modules in a message


@dataclass(frozen=True)
class Start:
    """The model that a run starts from."""

    loaded: LoadedModel

    @property
    def codec(self) -> StartCodec:
        """Its codec, with the digest that prepared data records."""
        return StartCodec(self.loaded.codec, codec_digest(self.loaded.files))

    def record(self) -> dict[str, Any]:
        """The record of the start in the run's checkpoints."""
        return {
            "path": str(self.loaded.path.resolve()),
            "sha256": self.loaded.files[WEIGHTS_FILE].sha256,
            "codec": self.codec.digest,
        }


@dataclass(frozen=True)
class Transfer:
    """The names of the weights that a model took from its start, and of the others."""

    taken: list[str]
    drawn: list[str]  # of the model, without a counterpart in the start
    left_out: list[str]  # of the start, without a counterpart in the model
    new_rows: dict[str, int]  # of tables that are longer than in the start

    def __str__(self) -> str:
        rows = {"taken": self.taken, "drawn": self.drawn, "left out": self.left_out}
        lines = [f"{name}: {describe_names(names)}" for name, names in rows.items()]
        lines += [f"drawn: {count} rows of {name}" for name, count in self.new_rows.items()]
        return "\n".join(lines)


def describe_names(names: Iterable[str]) -> str:
    """The number of tensors and the names of their modules: few names, of all layers together."""
    count = len(names := list(names))
    modules = {LAYER.sub(".*.", name).rpartition(".")[0] or name for name in names}
    if len(modules) > MOST_NAMES:
        modules = {name.partition(".")[0] for name in modules}
    return f"{count} tensors ({', '.join(sorted(modules))})" if names else "nothing"


def read_start(config: Config) -> Start | None:
    """The start of a config, checked; ConfigError names what does not fit."""
    path = config.train.start_from
    if path is None:
        return None
    try:
        loaded = load_model(find_model(path))
    except NoCheckpointError as error:
        raise ConfigError(f"{START_KEY}: {error}") from None
    check_agreement(loaded.config, config, path=path)
    return Start(loaded)


def check_agreement(start: Config, config: Config, *, path: Path) -> None:
    """Raise a ConfigError for settings in which a run cannot differ from its start."""
    rows = differences(start.model, config.model, "model", ignored=FREE)
    symbols = (set(data.subword.reserved) for data in (start.data, config.data))
    free = (*FREE, RESERVED_KEY) if operator.le(*symbols) else FREE
    for name in CODEC_SETTINGS:
        before, after = getattr(start.data, name), getattr(config.data, name)
        rows += differences(before, after, f"data.{name}", ignored=free)
    if rows:
        raise ConfigError(
            f"{START_KEY}: the config does not fit {path}: {'; '.join(rows[:5])}; leave these keys "
            "out, they are taken from the start"
        )


def start_codec(config: Config) -> StartCodec | None:
    """The codec of a config's start."""
    start = read_start(config)
    return None if start is None else start.codec


def begun_codec(directory: Path, record: Mapping[str, Any]) -> StartCodec:
    """The codec of a run that has begun, from its checkpoint and what that says of the start."""
    return StartCodec(Codec.load(directory), str(record["codec"]), is_extended=True)


def codec_digest(files: Mapping[str, FileEntry]) -> str:
    """The digest of the codec among the files of a model directory."""
    return fingerprint({name: item for name, item in files.items() if is_codec_file(name)})


def transfer(start: LoadedModel, model: Transformer) -> Transfer:
    """Give a model that was drawn the weights of its start, but for those of another kind.

    Gains, gates, alphas and thresholds of an attention whose kind differs stay as drawn.
    """
    given = start.model.state_dict()
    redrawn = changed_cores(start.config.model.attention, model)
    taken, new_rows = [], {}
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name in given and not name.startswith(redrawn):
                copy_rows(tensor, given[name], name)
                taken.append(name)
                if len(tensor) > len(given[name]):
                    new_rows[name] = len(tensor) - len(given[name])
    drawn = [name for name in model.state_dict() if name not in taken]
    left_out = [name for name in given if name not in taken]
    return Transfer(taken, drawn, left_out, new_rows)


def copy_rows(tensor: Tensor, given: Tensor, name: str) -> None:
    """Copy a weight to a tensor of the same shape, or to the first rows of a longer table."""
    is_longer = "." not in name and len(tensor) > len(given)  # of an extended vocabulary
    if given.shape[1:] != tensor.shape[1:] or not (is_longer or len(tensor) == len(given)):
        raise ConfigError(
            f"{START_KEY}: {name} is {list(given.shape)} in the start, "
            f"but {list(tensor.shape)} here"
        )
    tensor[: len(given)].copy_(given)


def changed_cores(before: AttentionTypesConfig, model: Transformer) -> tuple[str, ...]:
    """The prefixes of the weights of attention kinds that differ from those before."""
    after = model.config.attention
    return tuple(
        SUBLAYERS[site.type].format(site.layer) + "core."
        for site in model.attentions()
        if kind_at(before, site) != kind_at(after, site)
    )


def kind_at(attention: AttentionTypesConfig, site: Site) -> str:
    """The attention kind of a sublayer."""
    return str(getattr(attention, site.type).at(site.layer).kind)
