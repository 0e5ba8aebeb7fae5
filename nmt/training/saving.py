"""Which models of a run are on disk: the last checkpoints and `best`."""

import logging
from collections.abc import Mapping
from functools import partial

from nmt.checkpoint.cadence import Cause, prune
from nmt.checkpoint.model_directory import STATE
from nmt.checkpoint.selection import score_meaning
from nmt.checkpoint.store import CheckpointStore
from nmt.config.config import Config
from nmt.config.differences import differences
from nmt.data.prepare import Prepared
from nmt.errors import IntegrityError, NoCheckpointError, StorageError
from nmt.storage.directories import Writer
from nmt.storage.manifest import SealedDirectory
from nmt.training.failures import WriteFailures
from nmt.training.snapshot import model_checkpoint, whole_checkpoint
from nmt.training.state import TrainingState
from nmt.training.update import Updater

logger = logging.getLogger(__name__)

BEST = "best"


class Saver:
    """Writes the checkpoints and `best` of a run, and keeps as many as are asked for.

    Only the main process has one.
    """

    def __init__(
        self,
        store: CheckpointStore,
        updater: Updater,
        prepared: Prepared,
        *,
        state: TrainingState,
        failures: WriteFailures,
    ) -> None:
        self.store = store
        self.updater = updater
        self.prepared = prepared
        self.state = state
        self.failures = failures
        self.waiting_best: Mapping[str, Writer] | None = None  # that the disk refused so far

    def save(self, cause: Cause, *, last: bool) -> None:
        """Write a checkpoint. After the `last` one a failure ends the run, also of `best`."""
        path = self.store.path(self.state.update)
        files = whole_checkpoint(self.updater, self.state, self.prepared, cause=cause)
        if self.failures.attempt(path.parent, partial(self.store.save, self.state.update, files)):
            self.prune()
        elif last:
            self.failures.end()
        self.write_waiting_best(last=last)

    def prune(self) -> None:
        """Keep the last few; what a kill left undone is done with it."""
        try:
            prune(self.store, keep_last=self.updater.config.train.keep_last)
        except StorageError as error:
            logger.warning("update %d: %s", self.state.update, error)

    def put_best(self) -> None:
        """Keep the model as `best`; if the disk refuses, it is written with the next checkpoint."""
        self.waiting_best = model_checkpoint(self.updater, self.state, self.prepared)
        self.write_waiting_best(last=False)
        if self.waiting_best is not None:  # the weights will change until then
            self.waiting_best = model_checkpoint(
                self.updater, self.state, self.prepared, copied=True
            )

    def write_waiting_best(self, *, last: bool) -> None:
        """Write the `best` that is not on disk yet, if there is one."""
        if self.waiting_best is None:
            return
        write = partial(self.store.put, BEST, self.waiting_best)
        if self.failures.attempt(self.store.run_dir / BEST, write):
            self.waiting_best = None
        elif last:
            self.failures.end()


def forget_other_scores(state: TrainingState, before: Config, after: Config) -> None:
    """Let the next validation write `best` if scores mean something else than they did so far."""
    if state.best_score is None or score_meaning(before) == score_meaning(after):
        return
    changes = differences(before.validate, after.validate, "validate")
    changes += differences(before.decode, after.decode, "decode")
    logger.warning(
        "best: the score %.2f of update %d does not count any more, because scores differ by %s",
        state.best_score,
        state.best_update,
        "; ".join(changes),
    )
    state.best_score, state.best_update, state.validations_since_best = None, 0, 0
    if state.started_from is not None:
        state.started_from["score"] = None


def reconcile_best(state: TrainingState, store: CheckpointStore) -> None:
    """Let the state speak of the `best` that is on disk, should the one it knows be missing.

    That happens when the disk refused `best` and the run was killed before it could be written
    after all, or when somebody has removed it.
    """
    if state.best_score is None:
        return
    try:
        found = SealedDirectory(store.run_dir / BEST).read_json(STATE)["training"]
        score, update = found["best_score"], found["best_update"]
    except (IntegrityError, NoCheckpointError, KeyError, TypeError):
        score, update = None, 0
    if score is None or update < state.best_update:
        logger.warning(
            "best: the model of update %d is missing in %s; %s",
            state.best_update,
            store.run_dir,
            "the next validation writes one" if score is None else f"that of {update} counts",
        )
        state.best_score, state.best_update = score, update
