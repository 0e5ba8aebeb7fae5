"""Translates large files on a Ray cluster: blocks of lines, and a process per GPU or core.

Ray Data hands out the blocks, returns the results in the order of the input, and starts a process
that ended anew, with its blocks. The files and the models must be at the same path on all nodes.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import warnings
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from nmt.config.search_options import SearchOptions
from nmt.decoding.lines import Answer, OnBadLine, bad_line, number_lines
from nmt.decoding.streaming import LineSource
from nmt.decoding.text_blocks import TextBlock, cut_blocks, matching_blocks, read_block
from nmt.decoding.translation import Details
from nmt.decoding.translator import Translator
from nmt.decoding.workers import WorkerFailure, WorkerSettings
from nmt.errors import UserError

logger = logging.getLogger(__name__)

SMALLEST_BLOCK = 1 << 14  # bytes
LARGEST_BLOCK = 1 << 20  # bytes; a process sorts the lines of a block by length
BLOCKS_PER_WORKER = 16  # if the input is large enough: they should finish at about the same time
RETRIES = 5  # of a block whose process has ended; other blocks may have been the reason

CONNECT_SECONDS = 10.0

RayDevice = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class RayJob:
    """The text to translate, with the directory that its paths are relative to, and how."""

    directory: Path
    source: Path
    prefixes: Path | None
    settings: WorkerSettings
    options: SearchOptions
    details: Details
    on_bad_line: OnBadLine


@dataclass(frozen=True)
class RayWorkers:
    """The number of processes, their device and their CPU cores."""

    count: int
    device: Literal["cpu", "cuda"]
    cores: int


@dataclass(frozen=True)
class BlockResult:
    """The answers for a block or the error that ended it, and what the process has warned of."""

    answers: tuple[Answer, ...]
    failure: WorkerFailure | None
    warnings: tuple[str, ...]


class WarningList(logging.Handler):
    """Collects the warnings of a process."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class BlockTranslator:
    """Translates block after block in a process of the cluster."""

    def __init__(self, job: RayJob, device: str) -> None:
        self.job = job
        self.warnings = WarningList()
        self.failure: WorkerFailure | None = None
        logging.getLogger("nmt").addHandler(self.warnings)
        settings = job.settings
        try:
            self.translator = Translator.load(
                settings.models,
                device=device,
                precision=settings.precision,
                int8=settings.int8,
                threads=settings.threads,
            )
        except UserError as error:
            self.failure = WorkerFailure.of(error)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """The result for a row that describes a block."""
        answers: tuple[Answer, ...] = ()
        failure = self.failure
        if failure is None:
            try:
                answers = tuple(self._translate(row["first"], row["count"], row["offsets"]))
            except UserError as error:
                failure = WorkerFailure.of(error)
        result = BlockResult(answers, failure, tuple(self.warnings.messages))
        self.warnings.messages.clear()
        return {"result": result}

    def _translate(self, first: int, count: int, offsets: Sequence[int]) -> Iterator[Answer]:
        paths = [self.job.source, *([] if self.job.prefixes is None else [self.job.prefixes])]
        blocks = [TextBlock(int(offset), first, count) for offset in offsets]
        sources = [
            LineSource(read_block(self.job.directory / path, block), str(path))
            for path, block in zip(paths, blocks, strict=True)
        ]
        numbered = number_lines(sources[0], sources[1] if sources[1:] else None, "skip")
        lines = [replace(line, number=first + line.number) for line in numbered]
        found = dict(self.translator.translate_lines(lines, self.job.options, self.job.details))
        for position, line in enumerate(lines):
            yield Answer(line, found[position])


def require_ray() -> None:
    """Reject a missing ray package, which only --ray needs."""
    try:
        import ray.data  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"--ray: the package ray is needed and could not be imported ({error}); install it "
            "with: pip install 'nmt[ray]'"
        ) from error


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """A connection to the cluster at an address, or (`local`) a cluster on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    require_ray()
    import ray

    check_reachable(address)
    logging.getLogger("ray").setLevel(logging.ERROR)
    handler = signal.getsignal(signal.SIGTERM)
    with contextlib.redirect_stdout(sys.stderr):  # standard output is for translations
        try:
            ray.init(
                address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({"include_dashboard": False} if address == "local" else {}),
            )
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            raise UserError(f"--ray {address}: {first_line(error)}") from error
        try:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
            yield
        finally:
            ray.shutdown()
            signal.signal(signal.SIGTERM, handler)


def check_reachable(address: str) -> None:
    """Reject an address at which nothing answers; Ray would try for minutes."""
    if ":" not in address:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--ray {address}: no Ray cluster answers there ({error}); `ray start --head` prints "
            "the address of one that it starts"
        ) from error


def first_line(error: BaseException) -> str:
    """The beginning of an error message."""
    return (str(error).strip() or type(error).__name__).partition("\n")[0]


def find_workers(device: RayDevice, threads: int, most: int | None) -> RayWorkers:
    """A process for each GPU of the cluster, if it has any, or for each `threads` of its cores."""
    import ray

    resources = ray.cluster_resources()
    gpus, cores = int(resources.get("GPU", 0)), int(resources.get("CPU", 0))
    if device == "cuda" and gpus == 0:
        raise UserError("--device cuda: the Ray cluster has no GPU; give cpu or auto")
    if device == "cpu" or gpus == 0:
        if cores < threads:
            raise UserError(f"--threads: expected at most the {cores} cores of the Ray cluster")
        return RayWorkers(min(most or cores, cores // threads), "cpu", threads)
    return RayWorkers(min(most or gpus, gpus), "cuda", 1)


def translate_file(job: RayJob, workers: RayWorkers) -> Iterator[Answer]:
    """All lines of the source with their translations, in order; needs a connection."""
    size = job.source.stat().st_size // (BLOCKS_PER_WORKER * workers.count)
    blocks = cut_blocks(job.source, min(max(size, SMALLEST_BLOCK), LARGEST_BLOCK))
    files = [blocks]
    if job.prefixes is not None:
        files.append(matching_blocks(job.prefixes, blocks, job.source))
    rows = [
        {"first": one[0].first, "count": one[0].count, "offsets": [each.offset for each in one]}
        for one in zip(*files, strict=True)
    ]
    with contextlib.closing(map_blocks(rows, job, workers)) as results:
        shown: set[str] = set()
        for result in results:
            for message in set(result.warnings) - shown:
                shown.add(message)
                logger.warning("%s", message)
            if result.failure is not None:
                raise result.failure.error()
            for answer in result.answers:
                if answer.line.problem and job.on_bad_line == "error":
                    raise bad_line(answer.line.problem)
                yield answer


def map_blocks(
    rows: Sequence[dict[str, Any]], job: RayJob, workers: RayWorkers
) -> Generator[BlockResult, None, None]:
    """The results for blocks, in order."""
    import ray.data

    if not rows:
        return
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logger.info("translating %d blocks in %d Ray workers on %s", len(rows), workers.count,
                workers.device)  # fmt: skip
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    # Ray 2.64 will have another way to limit the retries; pyproject.toml excludes it.
    warnings.simplefilter("ignore", ray.util.annotations.RayDeprecationWarning)
    results = ray.data.from_items(list(rows), override_num_blocks=len(rows)).map(
        BlockTranslator,
        fn_constructor_args=(job, workers.device),
        compute=ray.data.ActorPoolStrategy(size=workers.count),
        num_cpus=workers.cores,
        num_gpus=1 if workers.device == "cuda" else None,
        max_restarts=-1,
        max_task_retries=RETRIES,
    )
    try:
        for row in results.iter_rows():
            yield row["result"]
    except (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError) as error:
        raise UserError(
            f"a Ray worker ended unexpectedly, as did {RETRIES} before it with the same lines "
            f"({first_line(error)}); if memory ran out, use fewer --workers or smaller "
            "--batch-tokens"
        ) from error
