"""Several processes that translate at once, one thread each: the fastest way through a file."""

import logging
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nmt import errors
from nmt.config.search_options import SearchOptions
from nmt.decoding.translation import NO_DETAILS, Details, Line, Translation
from nmt.decoding.translator import Translator
from nmt.errors import UserError

CHUNK_LINES = 128
CHUNK_CHARACTERS = 16_000


@dataclass(frozen=True)
class WorkerSettings:
    """How each process loads its models."""

    models: tuple[Path, ...]
    device: str
    int8: bool
    threads: int


@dataclass(frozen=True)
class WorkerFailure:
    """A mistake of the user's that a worker met: the class of the error and its message."""

    kind: str
    message: str


def work(connection: Connection, settings: WorkerSettings) -> None:
    """Translate what comes through the connection until it is closed; runs in a process."""
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s")
    try:
        translator = Translator.load(
            settings.models, device=settings.device, int8=settings.int8, threads=settings.threads
        )
        while True:
            lines, options, details = connection.recv()
            connection.send(list(translator.translate_lines(lines, options, details)))
    except EOFError:
        pass
    except UserError as error:
        connection.send(WorkerFailure(type(error).__name__, str(error)))


class WorkerPool:
    """Translates like a `Translator`, in several processes; use as a context."""

    def __init__(self, settings: WorkerSettings, *, count: int) -> None:
        self.settings = settings
        self.count = count
        self.processes: dict[Connection, BaseProcess] = {}

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        # Ctrl-C goes to all processes of a terminal; the children inherit that they ignore it.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for _ in range(self.count):
                ours, theirs = context.Pipe()
                process = context.Process(target=work, args=(theirs, self.settings), daemon=True)
                process.start()
                theirs.close()
                self.processes[ours] = process
        finally:
            signal.signal(signal.SIGINT, handler)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for connection, process in self.processes.items():
            connection.close()
            if kind is not None:
                process.terminate()
            process.join()

    def translate_lines(
        self, lines: Sequence[Line], options: SearchOptions, details: Details = NO_DETAILS
    ) -> Iterator[tuple[int, Translation]]:
        """The position of each line and its translation, in any order."""
        chunks = cut_chunks(lines, self.count)
        idle = list(self.processes)
        busy: dict[Connection, list[int]] = {}
        while chunks or busy:
            while chunks and idle:
                connection = idle.pop()
                busy[connection] = chunks.pop()
                try:
                    chunk = [lines[position] for position in busy[connection]]
                    connection.send((chunk, options, details))
                except OSError:
                    self._receive(connection)
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                found = self._receive(ready)
                positions = busy.pop(ready)
                idle.append(ready)
                for index, translation in found:
                    yield positions[index], translation

    def _receive(self, connection: Connection) -> list[tuple[int, Translation]]:
        """The translations of a worker; raises if the worker has failed or ended."""
        try:
            answer: Any = connection.recv()
        except (EOFError, OSError):
            process = self.processes[connection]
            process.join(timeout=5)
            raise UserError(
                f"a worker process ended unexpectedly (exit code {process.exitcode}); if memory "
                "ran out, use fewer --workers or smaller --batch-tokens"
            ) from None
        if isinstance(answer, WorkerFailure):
            raise getattr(errors, answer.kind, UserError)(answer.message)
        found: list[tuple[int, Translation]] = answer
        return found


def cut_chunks(lines: Sequence[Line], count: int) -> list[list[int]]:
    """Positions of lines of similar length together; the longest come last, to be taken first."""
    order = sorted(range(len(lines)), key=lambda position: len(lines[position].text))
    most = max(1, min(CHUNK_LINES, -(-len(lines) // count)))
    chunks: list[list[int]] = []
    characters = 0
    for position in order:
        length = len(lines[position].text)
        if not chunks or len(chunks[-1]) >= most or characters + length > CHUNK_CHARACTERS:
            chunks.append([])
            characters = 0
        chunks[-1].append(position)
        characters += length
    return chunks
