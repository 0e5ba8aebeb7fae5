"""Runs of a grid side by side: one process per slot, where a slot is a GPU of this node."""

import logging
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.errors import ConfigError, StorageError
from nmt.progress import progress_bar
from nmt.recipes.stages import exit_code

if TYPE_CHECKING:
    from tqdm import tqdm

from nmt.storage.records import parse_record

logger = logging.getLogger(__name__)

DEVICES = "CUDA_VISIBLE_DEVICES"
POLL_SECONDS = 0.2
REPORT_SECONDS = 60.0  # between two lines about the same run where there is no terminal
TAIL_BYTES = 64 << 10  # of a file, to find its last lines
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
if hasattr(signal, "SIGHUP"):  # not on Windows
    EXIT_CODES |= {signal.SIGHUP: 129, signal.SIGUSR1: 0}


@dataclass(frozen=True)
class Job:
    """A run to be made by a command of its own."""

    name: str
    line: tuple[str, ...]
    log: Path  # where the output of the command goes
    metrics: Path  # metrics.jsonl of the run, for its progress
    updates: int  # at the end of training


@dataclass(frozen=True)
class JobsEnding:
    """How all jobs ended: the exit code of each that failed, and that of a signal (None: none)."""

    failed: dict[str, int]
    stopped: int | None


@dataclass
class Child:
    """A job whose process runs in a slot."""

    job: Job
    process: "subprocess.Popen[bytes]"
    bar: "tqdm[Any]"
    said: tuple[float, int]  # when its progress was last logged, and the update
    signalled: set[int] = field(default_factory=set)

    def send(self, number: int) -> None:
        """Send a signal to the processes of the job, once."""
        if number not in self.signalled:
            self.signalled.add(number)
            os.killpg(self.process.pid, number)  # the child leads its group until it is waited for


@dataclass
class Stop:
    """The signals that have arrived."""

    received: list[int] = field(default_factory=list)

    @property
    def number(self) -> int | None:
        """The signal for the children: SIGTERM saves and stops, after two Ctrl-C it is SIGKILL."""
        if self.received.count(signal.SIGINT) > 1:
            return signal.SIGKILL
        return signal.SIGTERM if self.received else None

    @property
    def exit_code(self) -> int | None:
        """The exit code that the first signal asks for."""
        return EXIT_CODES[signal.Signals(self.received[0])] if self.received else None


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Within the context the signals that end a process are only remembered."""
    stop = Stop()
    previous = {
        number: signal.signal(number, lambda got, _: stop.received.append(got))
        for number in EXIT_CODES
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def visible_devices(asked: str, available: int | None) -> list[str]:
    """The values of CUDA_VISIBLE_DEVICES, one per slot, for `--gpus 4` or `--gpus 0,1,3`.

    The numbers are those that torch counts: what CUDA_VISIBLE_DEVICES of this process hides does
    not count. `available` is how many GPUs there are; None means that runs use the CPU.
    """
    words = asked.split(",")
    numbers: list[int] = []
    if all(word.isdecimal() for word in words):
        numbers = [int(word) for word in words] if len(words) > 1 else list(range(int(asked)))
    if not numbers:
        raise ConfigError(f"--gpus {asked}: expected a number of GPUs, or a list such as 0,1,3")
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"--gpus {asked}: a GPU is named more than once")
    if available is None:
        return [str(number) for number in numbers]
    if max(numbers) >= available:
        raise ConfigError(
            f"--gpus {asked}: torch sees {available} GPU(s) here, counted from 0 (nmt-doctor says "
            "more); to try it without GPUs add train.device=cpu"
        )
    known = os.environ.get(DEVICES)
    names = known.split(",") if known else [str(number) for number in range(available)]
    return [names[number] for number in numbers]


def run_jobs(jobs: Sequence[Job], devices: Sequence[str]) -> JobsEnding:
    """Run all jobs, at most one per device; a job that fails does not end the others.

    A signal stops all of them: they save their work, and the same command resumes them.
    """
    waiting, failed = deque(jobs), dict[str, int]()
    running: dict[str, Child] = {}
    with stop_signals() as stop, stopped_on_error(running):
        while running or (waiting and not stop.received):
            for slot, device in enumerate(devices):
                if device not in running and waiting and not stop.received:
                    job = waiting.popleft()
                    try:
                        running[device] = start(job, device, slot)
                    except OSError as error:
                        logger.warning("%s: cannot be started: %s", job.name, error)
                        failed[job.name] = StorageError.exit_code
            for device, child in list(running.items()):
                if stop.number is not None and child.process.poll() is None:
                    child.send(stop.number)
                show_progress(child)
                if child.process.poll() is not None:
                    del running[device]
                    code = finish(child, stopped=bool(stop.received))
                    if code and not stop.received:
                        failed[child.job.name] = code
            time.sleep(POLL_SECONDS)
    return JobsEnding(failed, stop.exit_code)


@contextmanager
def stopped_on_error(running: Mapping[str, Child]) -> Iterator[None]:
    """Leave no process behind that nobody watches when an exception ends the context."""
    try:
        yield
    except BaseException:
        for child in running.values():
            if child.process.poll() is None:
                child.send(signal.SIGTERM)
        raise


def start(job: Job, device: str, slot: int) -> Child:
    """Start the command of a job, which sees one device."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    done = last_training_record(job.metrics).get("update", 0)
    logger.info("%s: started on device %s (log: %s)", job.name, device, job.log)
    with job.log.open("ab") as log:
        process = subprocess.Popen(
            job.line,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, DEVICES: device},
            start_new_session=True,  # Ctrl-C reaches it through us only
        )
    bar = progress_bar(
        total=job.updates, unit=" updates", description=job.name, initial=done, position=slot
    )
    return Child(job, process, bar, said=(time.monotonic(), done))


def finish(child: Child, *, stopped: bool) -> int:
    """Log how a job ended; its exit code."""
    child.bar.close()
    code = exit_code(child.process.returncode)
    if stopped:
        logger.info("%s: stopped", child.job.name)
    elif code:
        last = last_lines(child.job.log)[-1:] or ["no output"]
        logger.warning("%s: failed with exit code %d: %s", child.job.name, code, last[0])
    else:
        logger.info("%s: done", child.job.name)
    return code


def show_progress(child: Child) -> None:
    """Bring the bar of a job up to date; without a terminal log a line now and then."""
    record = last_training_record(child.job.metrics)
    update = record.get("update", 0)
    when, said = child.said
    if not child.bar.disable:
        child.bar.update(update - child.bar.n)
    elif update != said and time.monotonic() - when >= REPORT_SECONDS:
        child.said = (time.monotonic(), update)
        logger.info(
            "%s: update %d of %d, loss %.3f, %.0f tokens/s",
            child.job.name,
            update,
            child.job.updates,
            record.get("loss", float("nan")),
            record.get("tokens_per_second", float("nan")),
        )


def last_training_record(path: Path) -> dict[str, Any]:
    """The newest record of a training update in metrics.jsonl; empty without one."""
    for line in reversed(last_lines(path)):
        record = parse_record(line)
        if record is not None and record.get("event") == "train":
            return record
    return {}


def last_lines(path: Path) -> list[str]:
    """The lines at the end of a file that may not be there."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace").split("\n")[:-1]
    except OSError:
        return []
