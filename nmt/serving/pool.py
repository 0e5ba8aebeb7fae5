"""Worker processes of one set of models; those that end unexpectedly are replaced."""

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import signal
import sys
import time
from collections.abc import Callable

from nmt import errors
from nmt.errors import UserError
from nmt.serving.messages import (
    Message,
    ServedModel,
    WorkerPlan,
    encode_message,
    receive_message,
)
from nmt.serving.metrics import ServerMetrics
from nmt.serving.waiting import LineBatch, RefusedError, WaitingLines

logger = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "nmt.serving.worker")
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # on Windows every signal kills
STARTS = 3  # tries to load the same models in all workers
PAUSES = (0.0, 1.0, 5.0, 30.0)  # seconds before a worker that cannot start is started again


class WorkerEndedError(Exception):
    """A worker process ended, or took too long to answer."""


class ServingWorker:
    """A process that has loaded the models."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.models: dict[str, ServedModel] = {}
        self.advised = 1  # number of workers
        self.ending = asyncio.create_task(process.wait())

    @classmethod
    async def start(cls, plan: WorkerPlan, on_end: Callable[[object], None]) -> "ServingWorker":
        """Start a process and wait until it has loaded the models; `on_end` is called once."""
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(*COMMAND, stdin=pipe, stdout=pipe)
        except OSError as error:  # too many open files or processes, or no memory
            raise WorkerEndedError(f"no process can be started ({error.strerror})") from error
        worker = cls(process)
        worker.ending.add_done_callback(on_end)
        try:
            answer = await worker.ask(dataclasses.asdict(plan))
            if "error" in answer:
                raise getattr(errors, answer["kind"], UserError)(answer["error"])
        except BaseException:
            worker.kill()
            await worker.end()
            raise
        worker.models = {each["name"]: ServedModel(**each) for each in answer["models"]}
        worker.advised = answer["advised"]
        return worker

    async def ask(self, message: Message, *, seconds: float | None = None) -> Message:
        """The answer to a message, which may take so long."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(seconds):
                self.process.stdin.write(encode_message(message))
                await self.process.stdin.drain()
                return await receive_message(self.process.stdout)
        except TimeoutError as error:
            raise WorkerEndedError(f"no answer for {seconds} seconds") from error
        except (OSError, EOFError) as error:
            raise WorkerEndedError("it is gone") from error

    def kill(self) -> None:
        """End the process at once."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, KILL)  # process.kill() may reap it unseen

    async def end(self) -> int:
        """Let the process end when it has finished its work; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return await asyncio.shield(self.ending)


class Pool:
    """Processes with the same models, which take batches from a queue."""

    def __init__(
        self,
        plan: WorkerPlan,
        waiting: WaitingLines,
        metrics: ServerMetrics,
        *,
        seconds: float,
        on_change: Callable[[], None],
    ) -> None:
        self.plan = plan
        self.waiting = waiting
        self.metrics = metrics
        self.seconds = seconds  # after which a worker without an answer is killed
        self.on_change = on_change  # called when the files of a model are not those that it has
        self.models: dict[str, ServedModel] = {}
        self.workers: set[ServingWorker] = set()
        self.tasks: list[asyncio.Task[None]] = []
        self.replacing: set[asyncio.Task[None] | None] = set()  # tasks without a worker
        self.retired = False

    async def start(self, count: int | None) -> None:
        """Start `count` processes (None: one per core, or one on a GPU), then take batches.

        Raises if one of them cannot load the models, or if they load other ones again and again.
        """
        for _ in range(STARTS):
            await self._start_workers(count)
            models = [worker.models for worker in self.workers]
            if all(others == models[0] for others in models):
                self.models = models[0]
                self.tasks = [asyncio.create_task(self._work(worker)) for worker in self.workers]
                return
            logger.warning("the models changed while they were loaded; they are loaded again")
            await self._end_workers()
        raise UserError("the models change all the time: copy them to a place where they do not")

    async def _start_workers(self, count: int | None) -> None:
        """Start the processes; if one cannot start, none stays."""
        first = (
            [] if count is not None else [await ServingWorker.start(self.plan, self.waiting.wake)]
        )
        if count is None:
            count = first[0].advised
        starts = [
            ServingWorker.start(self.plan, self.waiting.wake) for _ in range(count - len(first))
        ]
        found = [*first, *await asyncio.gather(*starts, return_exceptions=True)]
        self.workers = {one for one in found if isinstance(one, ServingWorker)}
        for failure in found:
            if not isinstance(failure, ServingWorker):
                await self._end_workers()
                raise failure

    async def _work(self, worker: ServingWorker) -> None:
        """Give batches to a worker, and to those that take its place, until all have to end."""
        while not self.retired:
            wanted = functools.partial(self._can_work, worker)
            batch = await self.waiting.next_batch(wanted)
            if batch is not None:
                start = time.monotonic()
                try:
                    answer = await worker.ask(batch_message(batch), seconds=self.seconds)
                except WorkerEndedError:
                    self.waiting.put_back(batch)
                    worker.kill()
                    await worker.end()
                except asyncio.CancelledError:
                    refuse(batch, RefusedError(503, "the server is shutting down"))
                    raise
                else:
                    deliver(batch, answer)
                    self.waiting.note_speed(batch, time.monotonic() - start)
                    self.metrics.count_batch(batch.kind.model, batch.items)
            elif not self.retired:
                worker = await self._replace(worker)

    def _can_work(self, worker: ServingWorker) -> bool:
        """Whether a worker is there to take a batch."""
        return not self.retired and not worker.ending.done()

    async def _replace(self, worker: ServingWorker) -> ServingWorker:
        """Another worker for one that ended, as soon as one can be started."""
        self.workers.remove(worker)
        logger.warning("a worker process ended unexpectedly (exit code %d)", await worker.end())
        self.metrics.worker_endings += 1
        task = asyncio.current_task()
        self.replacing.add(task)
        try:
            return await self._start_again()
        finally:
            self.replacing.remove(task)

    async def _start_again(self) -> ServingWorker:
        """A worker with the models of the others."""
        for pause in itertools.chain(PAUSES, itertools.repeat(PAUSES[-1])):
            await asyncio.sleep(pause)
            try:
                worker = await ServingWorker.start(self.plan, self.waiting.wake)
            except (UserError, WorkerEndedError) as error:
                logger.error("a worker process cannot start: %s", error)
                continue
            if worker.models == self.models:
                self.workers.add(worker)
                return worker
            await worker.end()
            logger.warning("the models have changed on the disk; all workers load them again")
            self.on_change()
        raise AssertionError("the last pause is repeated")

    async def retire(self) -> None:
        """End the workers, those that are busy when they have answered."""
        self.retired = True
        self.waiting.wake()
        for task in self.tasks:
            if task in self.replacing:
                task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self.workers))

    async def stop(self) -> None:
        """End the workers at once."""
        self.retired = True
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self._end_workers()

    async def _end_workers(self) -> None:
        for worker in self.workers:
            worker.kill()
        await asyncio.gather(*(worker.end() for worker in self.workers))


def batch_message(batch: LineBatch) -> Message:
    """The message that asks a worker for the answers to a batch."""
    return {**dataclasses.asdict(batch.kind), "items": [item.content for item in batch.items]}


def deliver(batch: LineBatch, answer: Message) -> None:
    """Give the answers of a worker to those who wait for them."""
    for item, found in zip(batch.items, answer["answers"], strict=True):
        if "failure" in found:
            item.refuse(RefusedError(found.get("status", 500), found["failure"]))
        elif not item.answer.done():
            item.answer.set_result(found)


def refuse(batch: LineBatch, error: RefusedError) -> None:
    """Answer all lines of a batch with an error."""
    for item in batch.items:
        item.refuse(error)
