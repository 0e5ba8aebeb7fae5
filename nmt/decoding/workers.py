"""Several processes that translate at once: one thread each on a CPU, or one process per GPU.

A process that is killed is replaced, and the lines it was working on are translated again.
"""

import contextlib
import logging
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

from nmt import errors
from nmt.config.search_options import SearchOptions
from nmt.decoding.translation import NO_DETAILS, Details, Line, Precision, Translation
from nmt.decoding.translator import Translator
from nmt.errors import UserError

logger = logging.getLogger(__name__)

PROCESS_ATTEMPTS = 3  # processes that may end unexpectedly while they work on the same lines


@dataclass(frozen=True)
class ChunkSize:
    """The most that a process is given to translate at a time."""

    lines: int
    characters: int


CHUNKS = {"cpu": ChunkSize(128, 16_000), "cuda": ChunkSize(1024, 512_000)}


@dataclass(frozen=True)
class WorkerSettings:
    """How each process loads its models."""

    models: tuple[Path, ...]
    precision: Precision
    int8: bool
    threads: int

    def load(self, device: str) -> Translator:
        """The translator of a process."""
        return Translator.load(
            self.models,
            device=device,
            precision=self.precision,
            int8=self.int8,
            threads=self.threads,
        )


@dataclass(frozen=True)
class WorkerFailure:
    """A mistake of the user's that a worker met: the class of the error and its message."""

    kind: str
    message: str

    @classmethod
    def of(cls, error: UserError) -> Self:
        """The failure that an error is."""
        return cls(type(error).__name__, str(error))

    def error(self) -> UserError:
        """The error that the worker met."""
        found: UserError = getattr(errors, self.kind, UserError)(self.message)
        return found


@dataclass(frozen=True)
class Worker:
    """A process and the device that it computes on."""

    process: BaseProcess
    device: str


@dataclass(frozen=True)
class WorkerChunk:
    """The positions of some lines, and how often a process that had them ended unexpectedly."""

    positions: list[int]
    endings: int = 0


def work(connection: Connection, settings: WorkerSettings, device: str) -> None:
    """Translate what comes through the connection until it is closed; runs in a process."""
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s")
    try:
        translator = settings.load(device)
        while True:
            lines, options, details = connection.recv()
            connection.send(list(translator.translate_lines(lines, options, details)))
    except EOFError:
        pass
    except UserError as error:
        connection.send(WorkerFailure.of(error))


class WorkerPool:
    """Translates like a `Translator`, in one process per device named; use as a context."""

    def __init__(self, settings: WorkerSettings, devices: Sequence[str]) -> None:
        self.settings = settings
        self.devices = devices
        self.workers: dict[Connection, Worker] = {}

    def __enter__(self) -> Self:
        for device in self.devices:
            self._start(device)
        return self

    def _start(self, device: str) -> Connection:
        """Start a process; the connection to it."""
        context = multiprocessing.get_context("spawn")
        # Ctrl-C goes to all processes of a terminal; the children inherit that they ignore it.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            ours, theirs = context.Pipe()
            arguments = (theirs, self.settings, device)
            process = context.Process(target=work, args=arguments, daemon=True)
            process.start()
            theirs.close()
        finally:
            signal.signal(signal.SIGINT, handler)
        self.workers[ours] = Worker(process, device)
        return ours

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for connection, worker in self.workers.items():
            connection.close()
            if kind is not None:
                worker.process.terminate()
            worker.process.join()

    def translate_lines(
        self, lines: Sequence[Line], options: SearchOptions, details: Details = NO_DETAILS
    ) -> Iterator[tuple[int, Translation]]:
        """The position of each line and its translation, in any order."""
        size = CHUNKS[self.devices[0].partition(":")[0]]
        chunks = [WorkerChunk(one) for one in cut_chunks(lines, len(self.devices), size)]
        idle = list(self.workers)
        busy: dict[Connection, WorkerChunk] = {}
        while chunks or busy:
            while chunks and idle:
                connection = idle.pop()
                busy[connection] = chunk = chunks.pop()
                with contextlib.suppress(OSError):  # of one that has ended, which is seen below
                    chosen = [lines[position] for position in chunk.positions]
                    connection.send((chosen, options, details))
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                chunk = busy.pop(ready)
                try:
                    found = receive(ready)
                except (EOFError, OSError):
                    idle.append(self._replace(ready, chunk))
                    chunks.append(replace(chunk, endings=chunk.endings + 1))
                    continue
                idle.append(ready)
                for index, translation in found:
                    yield chunk.positions[index], translation

    def _replace(self, connection: Connection, chunk: WorkerChunk) -> Connection:
        """Start a process in place of one that has ended, unless that happens again and again."""
        worker = self.workers.pop(connection)
        connection.close()
        worker.process.join(timeout=5)
        what = (
            f"a worker process on {worker.device} ended unexpectedly (exit code "
            f"{worker.process.exitcode})"
        )
        if chunk.endings + 1 >= PROCESS_ATTEMPTS:
            raise UserError(
                f"{what}, as did {chunk.endings} before it with the same lines; if memory ran out, "
                "use fewer --workers or smaller --batch-tokens"
            )
        logger.warning("%s; another one takes its place and its lines", what)
        return self._start(worker.device)


def receive(connection: Connection) -> list[tuple[int, Translation]]:
    """The translations of a worker; raises what it has failed with."""
    answer: Any = connection.recv()
    if isinstance(answer, WorkerFailure):
        raise answer.error()
    found: list[tuple[int, Translation]] = answer
    return found


def cut_chunks(lines: Sequence[Line], count: int, size: ChunkSize) -> list[list[int]]:
    """Positions of lines of similar length together; the longest come last, to be taken first."""
    order = sorted(range(len(lines)), key=lambda position: len(lines[position].text))
    most = max(1, min(size.lines, -(-len(lines) // count)))
    chunks: list[list[int]] = []
    characters = 0
    for position in order:
        length = len(lines[position].text)
        if not chunks or len(chunks[-1]) >= most or characters + length > size.characters:
            chunks.append([])
            characters = 0
        chunks[-1].append(position)
        characters += length
    return chunks
