"""Worker processes of one set of models; those that end unexpectedly are replaced."""

import asyncio
import contextlib
import dataclasses
import logging
import sys

from nmt import errors
from nmt.errors import UserError
from nmt.serving.messages import (
    Message,
    ServedModel,
    WorkerPlan,
    encode_message,
    receive_message,
)
from nmt.serving.waiting import Batch, RefusedError, WaitingLines

logger = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "nmt.serving.worker")
PAUSES = (0.0, 1.0, 5.0, 30.0)  # seconds before a worker is started again that fails to start


class WorkerEndedError(Exception):
    """A worker process ended, or its answer made no sense."""


class Worker:
    """A process that has loaded the models."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.models: dict[str, ServedModel] = {}

    @classmethod
    async def start(cls, plan: WorkerPlan) -> "Worker":
        """Start a process and wait until it has loaded the models."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*COMMAND, stdin=pipe, stdout=pipe)
        worker = cls(process)
        try:
            answer = await worker.ask(dataclasses.asdict(plan))
            if "error" in answer:
                kind = [each for each in vars(errors).values() if isinstance(each, type)]
                for each in kind:
                    if issubclass(each, UserError) and each.exit_code == answer["exit_code"]:
                        raise each(answer["error"])
            worker.models = {each["name"]: ServedModel(**each) for each in answer["models"]}
        except BaseException:
            await worker.end(kill=True)
            raise
        return worker

    async def ask(self, message: Message) -> Message:
        """The answer to a message."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(encode_message(message))
            await self.process.stdin.drain()
            return await receive_message(self.process.stdout)
        except (OSError, EOFError, ValueError) as error:
            raise WorkerEndedError(type(error).__name__) from error

    async def end(self, *, kill: bool = False) -> int:
        """End the process, which finishes what it has unless it is killed; its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        if kill:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        return await self.process.wait()


class Pool:
    """Processes with the same models, which take batches from one queue."""

    def __init__(self, plan: WorkerPlan, count: int, waiting: WaitingLines) -> None:
        self.plan = plan
        self.count = count
        self.waiting = waiting
        self.models: dict[str, ServedModel] = {}
        self.workers: list[Worker] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start all processes; raises if one of them cannot load the models."""
        starts = [asyncio.create_task(Worker.start(self.plan)) for _ in range(self.count)]
        try:
            self.workers = await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            for done in await asyncio.gather(*starts, return_exceptions=True):
                if isinstance(done, Worker):
                    await done.end(kill=True)
            raise
        self.models = self.workers[0].models
        self.tasks = [asyncio.create_task(self._work(worker)) for worker in self.workers]

    async def _work(self, worker: Worker) -> None:
        """Give batches to a worker; start another one when it ends."""
        while True:
            batch = await self.waiting.next_batch()
            try:
                answer = await worker.ask(batch_message(batch))
                deliver(batch, answer)
            except WorkerEndedError:
                self.waiting.put_back(batch)
                worker = await self._replace(worker)
            except asyncio.CancelledError:
                self.waiting.put_back(batch)
                raise

    async def _replace(self, worker: Worker) -> Worker:
        """Another worker in place of one that ended."""
        self.workers.remove(worker)
        code = await worker.end(kill=True)
        logger.warning("a worker process ended unexpectedly (exit code %d); starting another", code)
        for pause in (*PAUSES, *iter(lambda: PAUSES[-1], None)):
            await asyncio.sleep(pause)
            try:
                found = await Worker.start(self.plan)
            except (UserError, WorkerEndedError) as error:
                logger.error("a worker process cannot start: %s", error)
                continue
            self.workers.append(found)
            return found
        raise AssertionError("the last pause is repeated")

    async def stop(self) -> None:
        """End all processes."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await asyncio.gather(*(worker.end(kill=True) for worker in self.workers))


def batch_message(batch: Batch) -> Message:
    """The message that asks a worker for the answers to a batch."""
    return {
        "task": batch.kind.task,
        "model": batch.kind.model,
        "nbest": batch.kind.nbest,
        "items": [item.content for item in batch.items],
    }


def deliver(batch: Batch, answer: Message) -> None:
    """Give the answers of a worker to those who wait for them."""
    for item, found in zip(batch.items, answer["answers"], strict=True):
        if item.answer.done():  # cancelled meanwhile
            continue
        if "failure" in found:
            item.answer.set_exception(RefusedError(500, found["failure"]))
        else:
            item.answer.set_result(found)
