"""A run from its config to its end: data, model, the checkpoint to go on from, the loop."""

import logging
import os
from contextlib import nullcontext, suppress
from functools import partial
from operator import itemgetter
from pathlib import Path

import torch

from nmt.checkpoint.model_directory import codec_files, model_for
from nmt.checkpoint.start import Start, begun_codec, describe_names, read_start, transfer
from nmt.checkpoint.store import CheckpointStore
from nmt.config.config import Config
from nmt.config.loading import dump_config
from nmt.data.batching import make_batch
from nmt.data.prepare import Prepared, StartCodec, prepare, with_prepared_choices
from nmt.errors import ConfigError, DivergedError, IntegrityError, StorageError
from nmt.model.parts import check_parts, freeze
from nmt.model.summary import summarize
from nmt.storage.files import replace_file
from nmt.training.distributed import Processes, lost_processes, processes
from nmt.training.loss import TranslationLoss
from nmt.training.precision import describe_precision, with_precision
from nmt.training.probe import probe
from nmt.training.result import (
    RESULT,
    failures_recorded,
    read_result,
    write_end,
    write_failure,
    write_result,
)
from nmt.training.resume import check_resumable, with_saved_choices
from nmt.training.saving import forget_other_scores, reconcile_best
from nmt.training.schedule import low_peak
from nmt.training.signals import StopRequest
from nmt.training.snapshot import SavedRun, read_saved_run, restore
from nmt.training.state import TrainingState
from nmt.training.stream import training_stream
from nmt.training.trainer import Trainer
from nmt.training.update import Updater
from nmt.training.validation import Inspection

logger = logging.getLogger(__name__)


def train(config: Config, stop: StopRequest, *, inspect: Inspection) -> int:
    """Train, or go on training; the exit code. `inspect` looks at the model at each validation."""
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    with processes(config.train) as team:
        if not team.is_main:
            logging.getLogger("nmt").setLevel(logging.WARNING)
        store = CheckpointStore(config.run_dir)
        with store.lock() if team.is_main else nullcontext():
            saved = find_saved_run(store, team)
            begun = None if saved is None else saved.config
            config = with_precision(config, team.device, begun=begun)
            check_parts(config.model, config.train.freeze)
            if saved is not None:
                config = with_saved_choices(config, saved.config)
                check_resumable(saved.config, config, directory=str(config.run_dir))
            if team.is_main:
                stop.before_leaving = partial(record_stop, config.run_dir, saved)
            start = read_start(config) if saved is None else None
            prepared = prepared_data(config, saved, team, start=codec_to_start_with(saved, start))
            config = with_prepared_choices(config, prepared)
            trainer = build_trainer(
                config, team, prepared, store=store, saved=saved, start=start, inspect=inspect
            )
            stop.defer()
            return run(trainer, team, stop)


def record_stop(run_dir: Path, saved: SavedRun | None) -> None:
    """Record that a run which was killed before has been stopped while it was loaded again."""
    if read_result(run_dir).get("status") == "running":
        state = TrainingState() if saved is None else saved.state
        write_end(run_dir, state, status="stopped")


def find_saved_run(store: CheckpointStore, team: Processes) -> SavedRun | None:
    """The newest good checkpoint, the same one in all processes."""
    newest = store.newest() if team.is_main else None
    path = team.gather(None if newest is None else str(newest))[0]
    return None if path is None else read_saved_run(Path(path))


def codec_to_start_with(saved: SavedRun | None, start: Start | None) -> StartCodec | None:
    """The codec that a run does not learn; one that has begun has it in its checkpoint."""
    if start is not None:
        return start.codec
    if saved is None or saved.state.started_from is None:
        return None
    return begun_codec(saved.directory.path, saved.state.started_from)


def prepared_data(
    config: Config, saved: SavedRun | None, team: Processes, *, start: StartCodec | None
) -> Prepared:
    """The prepared data, verified, which is that of the run if it has begun."""
    # One process per machine reads everything. Alone, it may also make damaged data again.
    verify = int(os.environ.get("LOCAL_RANK", "0")) == 0
    repair = saved is None and team.size == 1
    prepared = prepare(config, start=start, verify=verify, repair=repair)
    if saved is not None and saved.data_fingerprint != prepared.fingerprint:
        raise ConfigError(
            f"{config.run_dir} was trained on other data than {prepared.directory} holds now "
            "(data.train, data.validation or the vocabulary differ); choose another run_dir"
        )
    team.maximum(0)  # those that only open the data wait for those that read all of it
    return prepared


def build_trainer(
    config: Config,
    team: Processes,
    prepared: Prepared,
    *,
    store: CheckpointStore,
    saved: SavedRun | None,
    start: Start | None,
    inspect: Inspection,
) -> Trainer:
    """Build the model, and restore it if the run has begun; else see whether it can."""
    state = TrainingState() if saved is None else saved.state
    torch.manual_seed(config.seed)
    model = model_for(config.model, prepared.codec).to(team.device)
    if start is not None:
        state.started_from = start.record()
        logger.info("start: %s (SHA-256 %.12s)", *itemgetter("path", "sha256")(start.record()))
        logger.info("%s", transfer(start.loaded, model))
    frozen = freeze(model, config.train.freeze)
    loss = TranslationLoss(model, smoothing=config.train.label_smoothing)
    first = make_batch(prepared.train, torch.zeros(1, dtype=torch.int64).numpy())
    updater = Updater(loss, config, team, idle_batch=first)
    if saved is not None:
        restore(updater, saved)
        if team.is_main:
            forget_other_scores(state, saved.config, config)
            reconcile_best(state, store)
        known = [state.best_score, state.best_update, state.validations_since_best]
        state.best_score, state.best_update, state.validations_since_best = team.gather(known)[0]
    trainer = Trainer(
        config, team, prepared, store=store, updater=updater, state=state, inspect=inspect
    )
    if team.is_main:
        codec_files(prepared.codec)  # needs a temporary directory: now, not at a checkpoint
    if saved is None:
        logger.info("%s", summarize(model))
        if frozen:
            logger.info("frozen: %s", describe_names(frozen))
        train = training_stream(config, prepared)
        probe(updater, config, train=train, validation=trainer.validator.batches())
    return trainer


def run(trainer: Trainer, team: Processes, stop: StopRequest) -> int:
    """Train to the end, which result.json tells; the exit code."""
    config, state = trainer.config, trainer.state
    if team.is_main and team.lifeline is not None:
        team.lifeline.before_leaving = partial(write_failure, config.run_dir, state)
    try:
        with failures_recorded(config.run_dir, state) if team.is_main else nullcontext():
            if team.is_main:
                trainer.saver.prune()  # what a kill between a save and its pruning left
            if trainer.finished():
                code = conclude_again(trainer, team)
            else:
                if team.is_main:
                    announce(trainer)
                with lost_processes():
                    code = trainer.run(stop)
            if team.is_main:
                status = "finished" if trainer.finished() else "stopped"
                write_end(config.run_dir, state, status=status)
    except (DivergedError, StorageError, IntegrityError) as error:
        with suppress(RuntimeError):  # the others may have left
            team.maximum(0)  # torchrun ends all with the first to go: wait until it is written
        if team.is_main:
            raise
        return error.exit_code  # one of us tells what all have seen
    return code


def conclude_again(trainer: Trainer, team: Processes) -> int:
    """The exit code of a run without updates to do; it may have been killed after the last one."""
    ended = read_result(trainer.config.run_dir).get("status") == "finished"
    if not team.gather(ended)[0]:
        trainer.conclude()
        return 0
    trainer.watch.conclude()
    logger.info(
        "%s is finished (update %d); nothing to do", trainer.config.run_dir, trainer.state.update
    )
    return 0


def announce(trainer: Trainer) -> None:
    """Say where the run begins, and write that it is running."""
    config, update = trainer.config, trainer.state.update
    if update:
        logger.info("going on from update %d", update)
    if trainer.processes.size > 1:
        logger.info("%d processes share each update", trainer.processes.size)
    device = trainer.processes.device
    logger.info("device: %s, precision: %s", device, describe_precision(config, device))
    if warning := low_peak(config.train, dim=config.model.dim):
        logger.warning("%s", warning)
    tell_former_end(config.run_dir)
    for name, write in (
        ("config.yaml", partial(write_config, config)),
        (RESULT, partial(write_result, config.run_dir, {"status": "running"})),
    ):
        trainer.failures.attempt(config.run_dir / name, write)


def tell_former_end(run_dir: Path) -> None:
    """Say so when a run that diverged is begun again: it goes on from its last checkpoint."""
    result = read_result(run_dir)
    if result.get("status") == "diverged":
        logger.warning("this run ended before: %s", result.get("reason"))


def write_config(config: Config) -> None:
    """The effective config beside the run, replaced whole."""
    replace_file(config.run_dir / "config.yaml", dump_config(config).encode())
