"""A run from its config to its end: data, model, the checkpoint to go on from, the loop."""

import logging
import os
from contextlib import nullcontext
from pathlib import Path

import torch

from nmt.checkpoint.store import CheckpointStore
from nmt.config.config import Config
from nmt.config.loading import dump_config, resolved_prepared_dir
from nmt.data.prepare import (
    Prepared,
    input_roles,
    out_of_date,
    prepare,
    settings_that_matter,
)
from nmt.data.prepared_directory import describe_inputs
from nmt.errors import ConfigError, DivergedError
from nmt.model.summary import summarize
from nmt.model.transformer import Transformer
from nmt.training.distributed import Processes, processes
from nmt.training.loss import TranslationLoss
from nmt.training.probe import probe
from nmt.training.resume import check_resumable
from nmt.training.signals import StopRequest
from nmt.training.snapshot import SavedRun, read_saved_run, restore
from nmt.training.state import TrainingState
from nmt.training.trainer import Trainer, read_result, write_result
from nmt.training.update import Updater

logger = logging.getLogger(__name__)


def train(config: Config) -> int:
    """Train, or go on training; the exit code."""
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    with processes(config.train) as team:
        if not team.is_main:
            logging.getLogger("nmt").setLevel(logging.WARNING)
        if config.train.precision == "float16" and team.device.type == "cpu":
            raise ConfigError("train.precision float16 needs a GPU; use float32 or bfloat16")
        store = CheckpointStore(config.run_dir)
        with store.lock() if team.is_main else nullcontext():
            saved = find_saved_run(store, team)
            if saved is not None:
                check_resumable(saved.config, config, directory=str(config.run_dir))
            prepared = prepared_data(config, saved, team)
            return run(config, team, prepared, store=store, saved=saved)


def find_saved_run(store: CheckpointStore, team: Processes) -> SavedRun | None:
    """The newest good checkpoint, the same one in all processes."""
    newest = store.newest() if team.is_main else None
    path = team.gather(None if newest is None else str(newest))[0]
    return None if path is None else read_saved_run(Path(path))


def prepared_data(config: Config, saved: SavedRun | None, team: Processes) -> Prepared:
    """The prepared data, verified; a run that has begun never has its data exchanged under it."""
    directory = resolved_prepared_dir(config)
    if saved is not None and directory.exists():
        inputs = describe_inputs(input_roles(config.data))
        change = out_of_date(directory, settings_that_matter(config), inputs)
        if change is not None:
            raise ConfigError(
                f"{config.run_dir} was trained on other data: {change}; go on with the same data, "
                "or choose another run_dir"
            )
    # One process per machine reads everything. Alone, it may also make damaged data again.
    verify = int(os.environ.get("LOCAL_RANK", "0")) == 0
    prepared = prepare(config, verify=verify, repair=saved is None and team.size == 1)
    if saved is not None and saved.data_fingerprint != prepared.fingerprint:
        raise ConfigError(
            f"{config.run_dir} was trained on other data than {prepared.directory} holds now "
            "(data.train, data.validation or the vocabulary differ); choose another run_dir"
        )
    return prepared


def run(
    config: Config,
    team: Processes,
    prepared: Prepared,
    *,
    store: CheckpointStore,
    saved: SavedRun | None,
) -> int:
    """Build the model, restore it if the run has begun, and train."""
    state = TrainingState() if saved is None else saved.state
    torch.manual_seed(config.seed)
    model = Transformer(
        config.model,
        source_vocabulary_size=len(prepared.codec.source.vocabulary),
        target_vocabulary_size=len(prepared.codec.target.vocabulary),
    ).to(team.device)
    loss = TranslationLoss(model, smoothing=config.train.label_smoothing)
    first = prepared.train.gather(torch.zeros(1, dtype=torch.int64).numpy())
    updater = Updater(loss, config, team, idle_batch=first)
    if saved is not None:
        restore(updater, saved)
    trainer = Trainer(config, team, prepared, store=store, updater=updater, state=state)
    if trainer.finished():
        trainer.watch.conclude()
        logger.info("%s is finished (update %d); nothing to do", config.run_dir, state.update)
        return 0
    if saved is None:
        logger.info("%s", summarize(model))
        probe(updater, config, train=prepared.train, validation=trainer.validator.batches())
    else:
        logger.info("going on from update %d", state.update)
    if team.is_main:
        write_config(config)
        tell_former_end(config.run_dir)
        write_result(config.run_dir, {"status": "running"})
    try:
        with StopRequest() as stop:
            code = trainer.run(stop)
    except DivergedError as error:
        if team.is_main:
            write_result(
                config.run_dir,
                {"status": "diverged", "update": state.update, "reason": str(error)},
            )
        team.maximum(0)  # torchrun ends everybody with the first to go: wait until it is written
        if team.is_main:
            raise
        return error.exit_code  # one of us tells what all have seen
    if team.is_main:
        status = "finished" if trainer.finished() else "stopped"
        result = {"status": status, "update": state.update, "best_update": state.best_update}
        write_result(config.run_dir, {**result, "best_score": state.best_score})
    return code


def tell_former_end(run_dir: Path) -> None:
    """Say so when a run that diverged is begun again: it goes on from its last checkpoint."""
    result = read_result(run_dir)
    if result.get("status") == "diverged":
        logger.warning("this run ended before: %s", result.get("reason"))


def write_config(config: Config) -> None:
    """The effective config beside the run, replaced whole."""
    config.run_dir.mkdir(parents=True, exist_ok=True)
    temporary = config.run_dir / ".config.yaml.tmp"
    temporary.write_text(dump_config(config), encoding="utf-8")
    os.replace(temporary, config.run_dir / "config.yaml")
