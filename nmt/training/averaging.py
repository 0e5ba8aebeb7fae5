"""Averages of the checkpoints of a run, measured on its validation set."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from nmt.checkpoint.average import Measure, average_checkpoints, mean_weights, open_inputs
from nmt.checkpoint.cadence import close_steps
from nmt.checkpoint.model_directory import STATE, model_for, read_config
from nmt.checkpoint.selection import is_better
from nmt.checkpoint.store import CheckpointStore
from nmt.config.config import resolved_prepared_dir
from nmt.data.batching import make_batch
from nmt.data.prepare import Prepared, open_prepared
from nmt.errors import NoCheckpointError, UserError
from nmt.storage.manifest import SealedDirectory
from nmt.training.distributed import Processes, processes
from nmt.training.loss import TranslationLoss
from nmt.training.update import Updater
from nmt.training.validation import Validator

logger = logging.getLogger(__name__)


def average_at_end(
    store: CheckpointStore,
    validator: Validator,
    updater: Updater,
    *,
    best_score: float | None,
) -> None:
    """Write `average` and say whether it is better than `best`; the model's weights are lost.

    All processes take part in the measurement. Without two checkpoints that lie close together
    there is nothing to average.
    """
    team, config = validator.processes, validator.config
    steps = close_steps(store, config.train.average_last) if team.is_main else []
    steps = team.gather(steps)[0]
    if len(steps) < 2:
        return
    paths = [store.path(step) for step in steps]
    measure = partial(validation_score_of, validator=validator, updater=updater)
    if not team.is_main:
        measure(mean_weights(open_inputs(paths)))
        return
    scores = []

    def measured(weights: Mapping[str, Tensor]) -> float:
        scores.append(measure(weights))
        return scores[0]

    path = store.put("average", average_checkpoints(paths, measure=measured))
    logger.info(
        "%s: average of the checkpoints %s: %s",
        path,
        ", ".join(f"{step:,}" for step in sorted(steps)),
        compare(scores[0], best_score, metric=config.validate.metric),
    )


def compare(score: float, best: float | None, *, metric: str) -> str:
    """The score of an average beside that of `best`, in words."""
    text = f"validation {metric} {score:.2f}"
    if best is None:
        return text
    verdict = "better than" if is_better(score, best, metric=metric) else "not better than"
    return f"{text}, {verdict} the {best:.2f} of best"


def validation_score_of(
    weights: Mapping[str, Tensor], *, validator: Validator, updater: Updater
) -> float:
    """The score on the validation set with these weights, which the model keeps."""
    updater.loss.model.load_state_dict(weights)
    plain = replace(validator, inspect=lambda *_: {})
    return float(plain.run(updater)["score"])


def measure_of_run(run: Path, paths: Sequence[Path]) -> Measure | None:
    """The validator for an average of these checkpoints, or None with the reason logged.

    The prepared data must be the one that the run was trained on.
    """
    newest = SealedDirectory(max(paths))
    try:
        config = read_config(newest)
        fingerprint = newest.read_json(STATE)["data_fingerprint"]
        prepared = find_prepared([resolved_prepared_dir(config), run / "prepared"], fingerprint)
    except NoCheckpointError:
        raise
    except (UserError, KeyError) as error:
        reason = error if isinstance(error, UserError) else "no run has saved these checkpoints"
        logger.info("the average is not measured on the validation set: %s", reason)
        return None

    def measure(weights: Mapping[str, Tensor]) -> float:
        if config.train.threads:
            torch.set_num_threads(config.train.threads)
        device = "auto" if config.train.device == "cuda" else config.train.device
        with processes(replace(config.train, device=device)) as team:
            validator = Validator(config, prepared, team, inspect=lambda *_: {})
            updater = empty_updater(validator, team)
            return validation_score_of(weights, validator=validator, updater=updater)

    return measure


def find_prepared(directories: Sequence[Path], fingerprint: str) -> Prepared:
    """The prepared data with this fingerprint; the run may have been moved since."""
    for directory in directories:
        if directory.is_dir():
            prepared = open_prepared(directory)
            if prepared.fingerprint == fingerprint:
                return prepared
    raise UserError(f"the data it was trained on is not in {directories[0]}")


def empty_updater(validator: Validator, team: Processes) -> Updater:
    """A model of the config, whose weights are to be loaded."""
    config, prepared = validator.config, validator.prepared
    model = model_for(config.model, prepared.codec).to(team.device)
    loss = TranslationLoss(model, smoothing=config.train.label_smoothing)
    first = make_batch(prepared.train, torch.zeros(1, dtype=torch.int64).numpy())
    plain = replace(config, train=replace(config.train, compile=False, ema=0.0))
    return Updater(loss, plain, team, idle_batch=first)
