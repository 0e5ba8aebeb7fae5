"""Work on large files on a Ray cluster: blocks of lines, and a process per GPU or core.

Ray Data hands out the blocks and returns the results in the order of the input. It starts a process
that has ended again, and repeats its blocks. The files must be at the same path on all nodes.
"""

import contextlib
import logging
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

from nmt.data.text import regular_file_status
from nmt.decoding.text_blocks import TextBlock, cut_blocks, matching_blocks
from nmt.decoding.workers import WorkerFailure
from nmt.errors import UserError, require_package

logger = logging.getLogger(__name__)

SMALLEST_BLOCK = 1 << 14  # bytes
LARGEST_BLOCK = 1 << 20  # bytes; a process sorts the lines of a block by length
BLOCKS_PER_WORKER = 16  # if the input is large enough: they should finish at about the same time
RETRIES = 5  # of a block whose process has ended; other blocks may have been the reason
CONNECT_SECONDS = 10.0

Item_co = TypeVar("Item_co", covariant=True)
Item = TypeVar("Item")
RayDevice = Literal["auto", "cpu", "cuda"]
Blocks = Sequence[TextBlock]  # one for each file, of the same lines


class BlockJob(Protocol[Item_co]):
    """Work on files whose lines belong together: line n of one and line n of the others."""

    @property
    def paths(self) -> Sequence[Path]:
        """The files."""

    def load(self, device: str) -> Callable[[Blocks], Iterable[Item_co]]:
        """The function that a process applies to blocks; it gives a result for each line."""


@dataclass(frozen=True)
class RayWorkers:
    """The number of processes, their device and their CPU cores."""

    count: int
    device: Literal["cpu", "cuda"]
    cores: int


@dataclass(frozen=True)
class BlockResult(Generic[Item]):
    """The results for a block or the error that ended it, and what the process has warned of."""

    items: tuple[Item, ...]
    failure: WorkerFailure | None
    warnings: tuple[str, ...]


class WarningList(logging.Handler):
    """Collects the warnings of a process."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class BlockWorker(Generic[Item]):
    """Does a job for block after block in a process of the cluster."""

    def __init__(self, job: BlockJob[Item], device: str) -> None:
        self.warnings = WarningList()
        self.failure: WorkerFailure | None = None
        logging.getLogger("nmt").addHandler(self.warnings)
        try:
            self.compute = job.load(device)
        except UserError as error:
            self.failure = WorkerFailure.of(error)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """The result for a row that describes a block."""
        items: tuple[Item, ...] = ()
        failure = self.failure
        if failure is None:
            blocks = [TextBlock(int(each), row["first"], row["count"]) for each in row["offsets"]]
            try:
                items = tuple(self.compute(blocks))
            except UserError as error:
                failure = WorkerFailure.of(error)
        result = BlockResult(items, failure, tuple(self.warnings.messages))
        self.warnings.messages.clear()
        return {"result": result}


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """A connection to the cluster at an address, or (`local`) a cluster on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    require_package("ray.data", extra="ray", purpose="--ray")
    import ray

    check_reachable(address)
    logging.getLogger("ray").setLevel(logging.ERROR)
    handler = signal.getsignal(signal.SIGTERM)
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints, but standard output is for results
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


def find_workers(device: RayDevice, threads: int = 1, most: int | None = None) -> RayWorkers:
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


def map_lines(
    job: BlockJob[Item], address: str, find: Callable[[], RayWorkers]
) -> Generator[Item, None, None]:
    """The results of a job for all lines, in order."""
    for path in job.paths:
        regular_file_status(path)  # before a cluster is started
    with connected(address):
        workers = find()
        rows = cut_rows(job.paths, workers.count)
        logger.info("%d blocks for %d Ray workers (%s)", len(rows), workers.count, workers.device)
        with contextlib.closing(map_rows(rows, job, workers)) as results:
            shown: set[str] = set()
            for result in results:
                for message in set(result.warnings) - shown:
                    shown.add(message)
                    logger.warning("%s", message)
                if result.failure is not None:
                    raise result.failure.error()
                yield from result.items


def cut_rows(paths: Sequence[Path], num_workers: int) -> list[dict[str, Any]]:
    """A row for each block: the first line, the number of lines, and where each file has them."""
    size = paths[0].stat().st_size // (BLOCKS_PER_WORKER * num_workers)
    blocks = cut_blocks(paths[0], min(max(size, SMALLEST_BLOCK), LARGEST_BLOCK))
    files = [blocks, *(matching_blocks(path, blocks, paths[0]) for path in paths[1:])]
    return [
        {"first": one[0].first, "count": one[0].count, "offsets": [each.offset for each in one]}
        for one in zip(*files, strict=True)
    ]


def map_rows(
    rows: Sequence[dict[str, Any]], job: BlockJob[Item], workers: RayWorkers
) -> Generator[BlockResult[Item], None, None]:
    """The results for blocks, in order."""
    import ray.data

    if not rows:
        return
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    # Ray 2.64 will have another way to limit the retries; pyproject.toml excludes it.
    warnings.simplefilter("ignore", ray.util.annotations.RayDeprecationWarning)
    results = ray.data.from_items(list(rows), override_num_blocks=len(rows)).map(
        BlockWorker,
        fn_constructor_args=(job, workers.device),
        compute=ray.data.ActorPoolStrategy(size=min(workers.count, len(rows))),
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
