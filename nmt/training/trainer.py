"""The training loop: one plain loop that reads from top to bottom."""

import json
import logging
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nmt.checkpoint.store import CheckpointStore
from nmt.config.config import Config
from nmt.data.batching import BatchStream, StreamState
from nmt.data.prepare import Prepared
from nmt.errors import DivergedError, StorageError
from nmt.progress import progress_bar
from nmt.training.distributed import Processes
from nmt.training.divergence import WINDOW, Watch, loss_bounds
from nmt.training.metrics import RunLog
from nmt.training.schedule import learning_rate
from nmt.training.signals import EXIT_CODES, StopRequest
from nmt.training.snapshot import model_checkpoint, whole_checkpoint
from nmt.training.state import SUMS, TrainingState
from nmt.training.update import Updater
from nmt.training.validation import HIGHER_IS_BETTER, Validator

logger = logging.getLogger(__name__)

FAILED_SAVES_ALLOWED = 2  # the third in a row ends the run
LOSSES = slice(SUMS.index("loss"), SUMS.index("likelihood") + 1)


class Trainer:
    """One run, from where `state` stands to its end."""

    def __init__(
        self,
        config: Config,
        processes: Processes,
        prepared: Prepared,
        *,
        store: CheckpointStore,
        updater: Updater,
        state: TrainingState,
    ) -> None:
        self.config = config
        self.processes = processes
        self.prepared = prepared
        self.store = store
        self.updater = updater
        self.state = state
        self.validator = Validator(config, prepared, processes)
        self.watch = Watch(
            updater.loss,
            state,
            precision=config.train.precision,
            warmup=config.train.schedule.warmup,
            loss_bounds=partial(
                loss_bounds,
                prepared.train,
                vocabulary_size=len(prepared.codec.target.vocabulary),
                smoothing=config.train.label_smoothing,
            ),
        )
        self.log: RunLog | None = None
        self.failed_saves = 0
        self.started = time.monotonic()

    def run(self, stop: StopRequest) -> int:
        """Train until the end, a signal or a divergence; the exit code."""
        config, state = self.config, self.state
        self.log_sums = self.own_share(state.log_sums)
        self.watch_sums = self.own_share(state.watch_sums)
        self.updater.loss.train()
        with ExitStack() as stack:
            if self.processes.is_main:
                self.log = stack.enter_context(RunLog(config.run_dir, update=state.update))
            bar = stack.enter_context(self.bar())
            updates = stack.enter_context(closing(self.updates()))
            while not self.finished():
                update = next(updates)
                result = self.updater.run(update, state)
                state.update += 1
                state.epoch, state.position = update.following
                self.log_sums += result.sums
                self.watch_sums += result.sums
                self.watch.take(result)
                bar.update()
                if state.update % WINDOW == 0:
                    self.watch.judge(self.total(self.watch_sums))
                    self.watch_sums.zero_()
                if state.update % config.train.log_every == 0:
                    bar.set_postfix_str(self.log_progress())
                last = state.update >= config.train.max_updates
                if last or state.update % config.validate.every == 0:
                    self.validate()
                number = self.processes.maximum(stop.signal)
                if number or self.finished() or state.update % config.train.save_every == 0:
                    self.save()
                if number:
                    logger.info(
                        "stopped by a signal at update %d; run again to go on", state.update
                    )
                    self.processes.maximum(0)  # nobody leaves while another still writes
                    return EXIT_CODES[signal.Signals(number)]
        self.watch.conclude()
        self.processes.maximum(0)  # nobody leaves while another still writes
        logger.info("finished at update %d; best %s", state.update, self.describe_best())
        return 0

    def finished(self) -> bool:
        """Whether all updates are done, or patience is at its end."""
        patience = self.config.validate.patience
        exhausted = 0 < patience <= self.state.validations_since_best
        return self.state.update >= self.config.train.max_updates or exhausted

    def updates(self) -> Iterator[Any]:
        """The updates still to do, from the middle of an epoch if need be."""
        train = self.config.train
        stream = BatchStream(
            self.prepared.train,
            batch_tokens=train.batch_tokens,
            seed=self.config.seed,
            accumulate=train.accumulate,
            rank=self.processes.rank,
            world_size=self.processes.size,
            prefetch=train.prefetch,
        )
        return stream.updates(StreamState(self.state.epoch, self.state.position))

    def bar(self) -> Any:
        """The progress bar over updates."""
        return progress_bar(
            total=self.config.train.max_updates,
            initial=self.state.update,
            unit="update",
            description="training",
        )

    def total(self, sums: torch.Tensor) -> list[float]:
        """The sums over all processes; all but losses are the same in each already."""
        own = sums.cpu()
        everyone = own.clone()
        everyone[LOSSES] = self.processes.sum(own[LOSSES].clone())
        values: list[float] = everyone.tolist()
        return values

    def own_share(self, sums: list[float]) -> torch.Tensor:
        """The inverse of `total`: losses so far are the main process's."""
        own = torch.tensor(sums, dtype=torch.float64, device=self.processes.device)
        if not self.processes.is_main:
            own[LOSSES] = 0.0
        return own

    def log_progress(self) -> str:
        """Write the record of the updates since the last one; the short form for the bar."""
        state = self.state
        values = dict(zip(SUMS, self.total(self.log_sums), strict=True))
        self.log_sums.zero_()
        now = time.monotonic()
        seconds, self.started = now - self.started, now
        updates, tokens = max(values["updates"], 1.0), max(values["tokens"], 1.0)
        record = {
            "epoch": state.epoch,
            "loss": values["loss"] / tokens,
            "nll": values["likelihood"] / tokens,
            "gradient_norm": values["gradient_norm"] / updates,
            "learning_rate": learning_rate(
                self.config.train, dim=self.config.model.dim, update=state.update
            ),
            "tokens": int(values["tokens"]),
            "skipped_updates": state.skipped_updates,
            "tokens_per_second": round(values["tokens"] / max(seconds, 1e-9), 1),
            "seconds": round(seconds, 3),
        }
        short = f"loss {record['loss']:.3f}, {record['tokens_per_second']:,.0f} tokens/s"
        if self.log is not None:
            self.log.write("train", state.update, record)
            logger.info("update %d: %s, epoch %d", state.update, short, state.epoch + 1)
        return short

    def validate(self) -> None:
        """Measure, and keep the model as `best` if it is."""
        state = self.state
        before = time.monotonic()
        with self.updater.averaged():
            record = self.validator.run(self.updater)
        score = float(record["score"])
        state.alignment_head = record["alignment_head"]
        sign = 1.0 if HIGHER_IS_BETTER[self.config.validate.metric] else -1.0
        better = state.best_score is None or sign * score > sign * state.best_score
        if better:
            state.best_score, state.best_update, state.validations_since_best = (
                score,
                state.update,
                0,
            )
        else:
            state.validations_since_best += 1
        seconds = time.monotonic() - before
        self.started += seconds  # the speed of training is that of training
        if self.log is None:
            return
        self.log.write("validation", state.update, {**record, "seconds": round(seconds, 3)})
        shown = ", ".join(
            f"{name} {record[name]:.2f}" for name in HIGHER_IS_BETTER if name in record
        )
        logger.info("update %d: validation %s%s", state.update, shown, " (best)" if better else "")
        if better:
            self.store.put("best", model_checkpoint(self.updater, state, self.prepared))

    def save(self) -> None:
        """Write a checkpoint; a disk that refuses three times in a row ends the run."""
        self.watch.flush()
        self.state.log_sums = self.total(self.log_sums)
        self.state.watch_sums = self.total(self.watch_sums)
        # In every process, since all of them must end in the same way.
        if not all(torch.isfinite(p).all() for p in self.updater.loss.parameters()):
            raise DivergedError(f"diverged at update {self.state.update}: a weight is not finite")
        if self.log is None:
            return
        self.log.sync()
        try:
            files = whole_checkpoint(self.updater, self.state, self.prepared)
            self.store.save(self.state.update, files)
            self.prune()
        except StorageError as error:
            self.failed_saves += 1
            if self.failed_saves > FAILED_SAVES_ALLOWED:
                raise
            logger.warning("update %d: not saved: %s; training goes on", self.state.update, error)
        else:
            self.failed_saves = 0

    def prune(self) -> None:
        """Keep the last few; what a signal saved between two of them has served its turn.

        So the checkpoints that are averaged in the end do not depend on interruptions.
        """
        every = self.config.train.save_every
        if self.state.update % every == 0:
            for step in self.store.steps():
                if step % every and step < self.state.update:
                    self.store.remove(step)
        self.store.prune(keep_last=self.config.train.keep_last)

    def describe_best(self) -> str:
        """For the last line."""
        if self.state.best_score is None:
            return "none: no validation was due"
        return (
            f"{self.config.validate.metric} {self.state.best_score:.2f} at {self.state.best_update}"
        )


@contextmanager
def closing(iterator: Iterator[Any]) -> Iterator[Iterator[Any]]:
    """Close a generator, and with it the thread that feeds it."""
    try:
        yield iterator
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()


def write_result(run_dir: Path, values: dict[str, Any]) -> None:
    """How the run stands or ended, for programs that read many runs: result.json.

    The launcher of several processes has an exit code of its own, and this is where to look.
    """
    temporary = run_dir / ".result.json.tmp"
    temporary.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    temporary.replace(run_dir / "result.json")


def read_result(run_dir: Path) -> dict[str, Any]:
    """What `write_result` wrote last; nothing if that cannot be read."""
    try:
        values: dict[str, Any] = json.loads((run_dir / "result.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return values
