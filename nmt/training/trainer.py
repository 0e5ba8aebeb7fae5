"""The training loop: one plain loop that reads from top to bottom."""

import logging
import math
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from nmt.checkpoint.cadence import Cause
from nmt.checkpoint.selection import HIGHER_IS_BETTER, is_better
from nmt.checkpoint.store import CheckpointStore
from nmt.config.config import Config
from nmt.data.batching import StreamState
from nmt.data.mixture import Mixture
from nmt.data.prepare import Prepared
from nmt.errors import DivergedError, IntegrityError, StorageError
from nmt.progress import progress_bar
from nmt.training.averaging import average_at_end
from nmt.training.distributed import Processes
from nmt.training.divergence import LOSS_WINDOW, Watch, loss_bounds
from nmt.training.failures import WriteFailures
from nmt.training.metrics import RunLog
from nmt.training.pace import Pace
from nmt.training.saving import Saver
from nmt.training.schedule import learning_rate
from nmt.training.signals import TRAINING_EXIT_CODES, StopRequest
from nmt.training.state import SUM_NAMES, TrainingState
from nmt.training.stopping import StopAgreement
from nmt.training.stream import training_stream
from nmt.training.update import Updater
from nmt.training.validation import Inspection, Validator

logger = logging.getLogger(__name__)

STORAGE_FAILED = 1000  # larger than any signal: it counts more when processes compare
LOSSES = slice(SUM_NAMES.index("loss"), SUM_NAMES.index("likelihood") + 1)


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
        inspect: Inspection,
    ) -> None:
        self.config = config
        self.processes = processes
        self.prepared = prepared
        self.updater = updater
        self.state = state
        self.validator = Validator(config, prepared, processes, inspect)
        self.watch = Watch(
            updater.loss,
            state,
            warmup=config.train.schedule.warmup,
            loss_bounds=partial(
                loss_bounds,
                prepared.train,
                vocabulary_size=len(prepared.codec.target.vocabulary),
                smoothing=config.train.label_smoothing,
            ),
            borders=Mixture.of(config.data.train, prepared.sizes).starts(),
        )
        self.failures = WriteFailures(state)
        self.saver = Saver(store, updater, prepared, state=state, failures=self.failures)
        self.log: RunLog | None = None  # of the main process

    def run(self, stop: StopRequest) -> int:
        """Train until the end, a signal or a divergence; the exit code."""
        config, state = self.config, self.state
        self.log_sums = self.own_share(state.log_sums)
        self.watch_sums = self.own_share(state.watch_sums)
        self.tokens_before = state.log_sums[SUM_NAMES.index("tokens")]
        self.updater.loss.train()
        with ExitStack() as stack:
            if self.processes.is_main:
                # A start is validated as update 0: of a run without a checkpoint no record stays.
                log = RunLog(config.run_dir, update=state.update or -1, failures=self.failures)
                self.log = stack.enter_context(log)
            bar = stack.enter_context(self.bar())
            updates = stack.enter_context(closing(self.updates()))
            self.started = time.monotonic()
            self.agreement = StopAgreement(self.processes)
            self.pace = Pace(config, update=state.update)
            if state.update == 0 and state.started_from is not None:
                self.validate()
                state.started_from["score"] = state.best_score
            while not self.finished():
                update = next(updates)
                result = self.updater.run(update, state)
                state.update += 1
                state.epoch, state.position = update.following
                self.log_sums += result.sums
                self.watch_sums += result.sums
                self.watch.take(result)
                bar.update()
                self.pace.advance(state.update)
                if state.update % LOSS_WINDOW == 0:
                    self.check_agreement()
                    self.watch.judge(self.total(self.watch_sums))
                    self.watch_sums.zero_()
                if state.update % config.train.log_every == 0:
                    bar.set_postfix_str(self.log_progress())
                elif bar.disable and self.pace.line_is_due():
                    logger.info("%s", self.pace.describe())
                last = state.update >= config.train.max_updates
                if last or state.update % config.validate.every == 0:
                    self.validate()
                    bar.unpause()
                failed = self.failures.fatal is not None
                own_number = STORAGE_FAILED if failed else stop.signal
                number = self.agreement.number(own_number, update=state.update)
                if number or self.finished() or state.update % config.train.save_interval == 0:
                    self.save(last=number > 0 or self.finished())
                if number and not self.finished():
                    logger.info(
                        "stopped by a signal at update %d; run again to go on", state.update
                    )
                    return TRAINING_EXIT_CODES[signal.Signals(number)]
            self.conclude()
        return 0

    def conclude(self) -> None:
        """Check the last update, and average the last checkpoints."""
        state = self.state
        self.watch.conclude()
        logger.info("finished at update %d; best %s", state.update, self.describe_best())
        average_at_end(self.saver.store, self.validator, self.updater, best_score=state.best_score)

    def finished(self) -> bool:
        """Whether all updates are done, or patience is at its end."""
        patience = self.config.validate.patience
        exhausted = 0 < patience <= self.state.validations_since_best
        return self.state.update >= self.config.train.max_updates or exhausted

    def updates(self) -> Iterator[Any]:
        """The updates still to do, from the middle of an epoch if need be."""
        stream = training_stream(
            self.config,
            self.prepared,
            rank=self.processes.rank,
            world_size=self.processes.size,
            prefetch=self.config.train.prefetch,
            pinned=self.processes.device.type == "cuda",
        )
        start = StreamState(self.state.epoch, self.state.position)
        return stream.updates(start, done=self.state.update)

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
        values = dict(zip(SUM_NAMES, self.total(self.log_sums), strict=True))
        self.log_sums.zero_()
        updates, tokens = max(values["updates"], 1.0), max(values["tokens"], 1.0)
        seconds, speed = self.measure_speed(values["tokens"])
        record = {
            "epoch": state.epoch + 1,
            "loss": values["loss"] / tokens,
            "nll": values["likelihood"] / tokens,
            "gradient_norm": values["gradient_norm"] / updates,
            "learning_rate": learning_rate(
                self.config.train, dim=self.config.model.dim, update=state.update
            ),
            "tokens": int(values["tokens"]),
            "skipped_updates": state.skipped_updates,
            "tokens_per_second": round(speed, 1),
            "seconds": round(seconds, 3),
        }
        short = f"loss {record['loss']:.3f}, {record['tokens_per_second']:,.0f} tokens/s"
        if self.log is not None:
            self.log.write("train", state.update, record)
            logger.info("%s: %s, epoch %d", self.pace.describe(), short, state.epoch + 1)
        return short

    def measure_speed(self, tokens: float) -> tuple[float, float]:
        """Seconds for the `tokens` since the last record, and tokens per second.

        In the first record after a resume some of the tokens are those of an earlier process. The
        speed is that of this process, and they are taken to have gone at the same.
        """
        now = time.monotonic()
        seconds, self.started = max(now - self.started, 1e-9), now
        own, self.tokens_before = tokens - self.tokens_before, 0.0
        if own <= 0.0:
            return seconds, 0.0
        return seconds * tokens / own, own / seconds

    def validate(self) -> None:
        """Validate the model, and keep it as `best` if its score is the best so far."""
        self.watch.flush()
        self.check_finite()
        state = self.state
        before = time.monotonic()
        with self.updater.averaged():
            record = self.validator.run(self.updater)
        score = float(record["score"])
        state.alignment_head = record.get("alignment_head")
        better = self.is_better(score)
        if better:
            state.best_score, state.best_update = score, state.update
            state.validations_since_best = 0
        else:
            state.validations_since_best += 1
        seconds = time.monotonic() - before
        if self.log is not None:
            self.log.write("validation", state.update, {**record, "seconds": round(seconds, 3)})
            end = " (best)" if better else ""
            logger.info("update %d: validation %s%s", state.update, shown_scores(record), end)
            for name, scores in record.get("corpora", {}).items():
                logger.info("  %s: %s", name, shown_scores(scores))
            if better:
                self.saver.put_best()
        seconds = time.monotonic() - before
        self.started += seconds  # the speed of training is that of training
        self.pace.validated(seconds)

    def is_better(self, score: float) -> bool:
        """Whether a score is finite and beats the best one so far."""
        best = self.state.best_score
        if not math.isfinite(score) or best is None:
            return math.isfinite(score)
        return is_better(score, best, metric=self.config.validate.metric)

    def save(self, *, last: bool) -> None:
        """Write a checkpoint; nothing follows the `last` one, so then it must succeed."""
        state = self.state
        self.watch.flush()
        state.log_sums = self.total(self.log_sums)
        state.watch_sums = self.total(self.watch_sums)
        self.check_finite()
        self.check_agreement()
        if self.log is not None:
            self.log.sync()
            on_schedule = state.update % self.config.train.save_interval == 0
            cause: Cause = "schedule" if on_schedule else "end" if self.finished() else "stop"
            self.saver.save(cause, last=last)
        # In every process, since all of them must end in the same way, and none before the others.
        if self.processes.maximum(int(self.failures.fatal is not None)):
            raise self.failures.fatal or StorageError("the main process cannot write its files")

    def check_finite(self) -> None:
        """Raise DivergedError, in every process, rather than store what is not finite."""
        bad = self.updater.first_bad_tensor()
        if bad is not None:
            raise DivergedError(
                f"diverged at update {self.state.update}: {bad} is not finite; the last checkpoint "
                "is good. Try a lower learning rate or a longer warm-up"
            )

    def check_agreement(self) -> None:
        """Raise IntegrityError, in every process, when their weights are not the same."""
        if self.processes.size == 1:
            return
        digests = self.processes.gather(self.updater.weights_digest())
        other = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if other:
            raise IntegrityError(
                f"update {self.state.update}: process {other[0]} has other weights than process 0 "
                "(faulty memory or device?); run again to go on from the last checkpoint"
            )

    def describe_best(self) -> str:
        """The best score and its update, for the last log line of the run."""
        if self.state.best_score is None:
            return "none: no validation was due"
        text = (
            f"{self.config.validate.metric} {self.state.best_score:.2f} at {self.state.best_update}"
        )
        score = (self.state.started_from or {}).get("score")
        return text if score is None else f"{text} ({score:.2f} at the start)"


def shown_scores(record: dict[str, Any]) -> str:
    """The scores of a validation for a log line."""
    return ", ".join(f"{name} {record[name]:.2f}" for name in HIGHER_IS_BETTER if name in record)


@contextmanager
def closing(iterator: Iterator[Any]) -> Iterator[Iterator[Any]]:
    """Close a generator, and with it the thread that feeds it."""
    try:
        yield iterator
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
