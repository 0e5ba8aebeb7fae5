"""Runs the service: the socket, the workers, the signals."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn

from nmt.errors import UserError
from nmt.serving.app import build_app
from nmt.serving.messages import WorkerPlan
from nmt.serving.pool import Pool, WorkerEndedError
from nmt.serving.service import Service
from nmt.serving.waiting import WaitingLines

logger = logging.getLogger(__name__)

BATCH_WAIT = 0.004  # seconds that a line waits for others


@dataclass(frozen=True)
class ServerSettings:
    """The options of the command."""

    plan: WorkerPlan
    workers: int
    host: str
    port: int
    root_path: str = ""


class UvicornServer(uvicorn.Server):
    """A server whose signals are handled here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def open_socket(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 is any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, port))
    except OSError as error:
        opened.close()
        raise UserError(f"{host} port {port}: {error.strerror or error}") from error
    return opened


def serve(settings: ServerSettings) -> int:
    """Serve until a signal comes; the exit code."""
    return asyncio.run(run(settings))


async def run(settings: ServerSettings) -> int:
    """Load the models, then answer requests until a signal comes."""
    opened = open_socket(settings.host, settings.port)
    pool = Pool(settings.plan, settings.workers, WaitingLines(wait=BATCH_WAIT))
    try:
        await pool.start()
    except WorkerEndedError as error:
        raise UserError(
            f"a worker process ended before it had loaded the models ({error})"
        ) from error
    for model in pool.models.values():
        logger.info("model %s: %s to %s, %s", model.name, model.source, model.target, model.path)
    config = uvicorn.Config(
        build_app(Service(pool)),
        lifespan="off",
        log_config=None,
        access_log=False,
        http="h11",
        ws="none",
        server_header=False,
        root_path=settings.root_path,
    )
    server = UvicornServer(config)
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    host, port = opened.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    logger.info("serving at http://%s:%d%s/", shown, port, settings.root_path)
    await server.serve(sockets=[opened])
    await pool.stop()
    return 128 + received[0] if received else 0
