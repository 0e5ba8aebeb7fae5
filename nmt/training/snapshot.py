"""The content of a run's checkpoint, and how a run resumes from it."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nmt.checkpoint.cadence import CAUSE, Cause
from nmt.checkpoint.model_directory import STATE, WEIGHTS_FILE, model_files
from nmt.checkpoint.optimizer import flatten_optimizer, restore_optimizer
from nmt.config.config import Config
from nmt.config.loading import parse_config
from nmt.data.prepare import Prepared
from nmt.errors import IntegrityError
from nmt.storage.directories import Writer, json_writer
from nmt.storage.manifest import SealedDirectory
from nmt.storage.tensors import read_into, tensors_writer
from nmt.training.precision import with_stored_precision
from nmt.training.state import TrainingState
from nmt.training.update import Updater

logger = logging.getLogger(__name__)

OPTIMIZER = "optimizer.safetensors"
# With an average of the weights (train.ema), WEIGHTS_FILE holds that average, which is what one
# wants to translate with, and this file the weights that training goes on from.
UNAVERAGED = "unaveraged.safetensors"


@dataclass(frozen=True)
class SavedRun:
    """A verified checkpoint to resume from."""

    directory: SealedDirectory
    config: Config
    state: TrainingState
    data_fingerprint: str
    threads: int


def whole_checkpoint(
    updater: Updater, state: TrainingState, prepared: Prepared, *, cause: Cause
) -> Mapping[str, Writer]:
    """All files of a checkpoint, by name."""
    loss = updater.loss
    files = dict(model_checkpoint(updater, state, prepared))
    files[STATE] = json_writer({**facts(state, prepared), CAUSE: cause})
    files[OPTIMIZER] = tensors_writer(
        flatten_optimizer(updater.optimizer, loss.model.named_parameters())
    )
    if updater.average is not None:
        files[UNAVERAGED] = tensors_writer(loss.model.state_dict())
    return files


def model_checkpoint(
    updater: Updater, state: TrainingState, prepared: Prepared, *, copied: bool = False
) -> Mapping[str, Writer]:
    """The files of a model to translate with: no optimizer.

    The weights are read when they are written, unless they are `copied`.
    """
    with updater.averaged():
        weights = updater.loss.model.state_dict()
        if copied or updater.average is not None:
            weights = {name: value.clone() for name, value in weights.items()}
    files = model_files(updater.config, prepared.codec, weights)
    return {**files, STATE: json_writer(facts(state, prepared))}


def facts(state: TrainingState, prepared: Prepared) -> dict[str, Any]:
    """The content of state.json."""
    return {
        "step": state.update,
        "training": state.to_dict(),
        "alignment_head": state.alignment_head,
        "data_fingerprint": prepared.fingerprint,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def read_saved_run(path: Path) -> SavedRun:
    """Open a checkpoint that the store has verified."""
    directory = SealedDirectory(path)
    facts = directory.read_json(STATE)
    text = directory.read_bytes("config.yaml").decode()
    try:
        return SavedRun(
            directory=directory,
            config=with_stored_precision(
                parse_config(text, name=str(path / "config.yaml"), directory=path)
            ),
            state=TrainingState.from_dict(facts["training"]),
            data_fingerprint=facts["data_fingerprint"],
            threads=facts["threads"],
        )
    except (KeyError, TypeError) as error:
        raise IntegrityError(f"{path / STATE}: not the state of a run ({error})") from None


def restore(updater: Updater, saved: SavedRun) -> None:
    """Bring weights, optimizer and average to where they were, bit for bit."""
    model = updater.loss.model
    threads = torch.get_num_threads()
    if threads != saved.threads and updater.device.type == "cpu":
        logger.warning(
            "going on with %d threads after %d: results stay good, but not the same to the last "
            "bit (set train.threads)",
            threads,
            saved.threads,
        )
    weights = WEIGHTS_FILE if updater.average is None else UNAVERAGED
    with saved.directory.open(weights) as path:
        read_into(path, model.state_dict())
    if updater.average is not None:
        averaged = dict(zip(updater.average.names, updater.average.values, strict=True))
        with saved.directory.open(WEIGHTS_FILE) as path:
            read_into(path, {**model.state_dict(), **averaged})  # frozen weights are in both files
    with saved.directory.open(OPTIMIZER) as path:
        restore_optimizer(path, updater.optimizer, model.named_parameters())
