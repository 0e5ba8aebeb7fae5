"""Runs the service: the socket, the workers, and the signals that stop or reload them."""

import asyncio
import contextlib
import gc
import ipaddress
import logging
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from nmt.errors import UserError
from nmt.serving.app import Api, build_app
from nmt.serving.edge import Edge, patient_protocol
from nmt.serving.keys import Keys
from nmt.serving.limits import BODIES, ServerLimits
from nmt.serving.messages import WorkerPlan
from nmt.serving.metrics import ServerMetrics
from nmt.serving.pool import Pool, WorkerEndedError
from nmt.serving.waiting import WaitingLines

logger = logging.getLogger(__name__)

GARBAGE = 20_000  # objects until those in cycles are looked for
BATCH_WAIT = 0.004  # seconds in which a worker expects further lines


@dataclass(frozen=True)
class ServerSettings:
    """The options of the command."""

    plan: WorkerPlan
    workers: int | None
    host: str
    port: int
    root_path: str
    keys: Path | None
    limits: ServerLimits
    log_text: bool


class UvicornServer(uvicorn.Server):
    """A server that leaves signals to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class TranslationServer:
    """The models, the workers and the application, while the server runs."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.metrics = ServerMetrics()
        limits = settings.limits
        self.waiting = WaitingLines(wait=BATCH_WAIT, limit=limits.max_queue)
        self.api = Api(
            self.new_pool(),
            self.waiting,
            limits,
            self.read_keys(),
            self.metrics,
            log_text=settings.log_text,
        )
        app = build_app(self.api)
        paths = {route.path for route in app.routes if hasattr(route, "path")} | {"/"}
        config = uvicorn.Config(
            Edge(
                app,
                self.metrics,
                paths,
                any_host=settings.keys is not None,
                most_bytes=BODIES * limits.max_body,
            ),
            lifespan="off",
            log_config=None,
            access_log=False,
            http=patient_protocol(limits.max_seconds),
            ws="none",
            server_header=False,
            root_path=settings.root_path,
            limit_concurrency=limits.max_connections + 1,  # the one that is refused counts, too
            timeout_graceful_shutdown=int(2 * limits.max_seconds) + 1,
        )
        self.server = UvicornServer(config)
        self.received: list[int] = []
        self.reloading: asyncio.Task[None] | None = None
        self.reload_again = False

    def new_pool(self) -> Pool:
        """Workers that have not been started."""
        return Pool(
            self.settings.plan,
            self.waiting,
            self.metrics,
            seconds=2 * self.settings.limits.max_seconds,
            on_change=self.reload,
        )

    def read_keys(self) -> Keys | None:
        """The keys of the file that was named."""
        return None if self.settings.keys is None else Keys.read(self.settings.keys)

    async def run(self, opened: socket.socket) -> int:
        """Load the models, then answer requests until a signal comes; the exit code."""
        loop = asyncio.get_running_loop()
        starting = asyncio.create_task(self.api.pool.start(self.settings.workers))
        self.reloading = starting  # a reload comes after it
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop, number, starting)
        loop.add_signal_handler(signal.SIGHUP, self.reload)
        try:
            await starting
        except WorkerEndedError as error:
            raise UserError(
                f"a worker process ended while it loaded the models: {error}"
            ) from error
        except asyncio.CancelledError:
            return 128 + self.received[0]
        self.tell(opened)
        gc.freeze()  # what is loaded by now stays, and requests leave few cycles behind
        gc.set_threshold(GARBAGE)
        if self.reload_again:
            self.reload()
        try:
            await self.server.serve(sockets=[opened])
        finally:
            if self.reloading is not None:
                self.reloading.cancel()
                await asyncio.wait([self.reloading])
            await self.api.pool.stop()
        return 128 + self.received[0]

    def tell(self, opened: socket.socket) -> None:
        """Say what is served, and where."""
        for model in self.api.pool.models.values():
            logger.info(
                "model %s: %s to %s, %s", model.name, model.source, model.target, model.path
            )
        host, port = opened.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        logger.info("serving at http://%s:%d%s/", shown, port, self.settings.root_path)

    def stop(self, number: int, starting: "asyncio.Task[None]") -> None:
        """Answer what has come and end; the second time, end at once."""
        self.received.append(number)
        starting.cancel()
        self.server.force_exit = self.server.should_exit
        self.server.should_exit = True

    def reload(self) -> None:
        """Load the models and the keys again, in the background."""
        if self.reloading is not None and not self.reloading.done():
            self.reload_again = True
            return
        self.reloading = asyncio.create_task(self._reload())

    async def _reload(self) -> None:
        """Replace the workers by others with new models, or keep them if these cannot be loaded."""
        self.reload_again = False
        old, new = self.api.pool, self.new_pool()
        try:
            keys = self.read_keys()
            await new.start(self.settings.workers)
        except (UserError, WorkerEndedError, OSError) as error:
            self.metrics.reloads["failed"] += 1
            logger.error("not reloaded, the models and keys of before stay: %s", error)
        else:
            self.api.pool, self.api.keys = new, keys
            self.metrics.reloads["done"] += 1
            await old.retire()
            versions = ", ".join(f"{one.name} {one.version}" for one in new.models.values())
            logger.info("reloaded: %s", versions)
        if self.reload_again:
            await self._reload()


def open_socket(host: str, port: int, *, has_keys: bool) -> socket.socket:
    """A bound socket; port 0 is any free one. Without keys, only this machine may reach it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        if not has_keys and not ipaddress.ip_address(address[0]).is_loopback:
            raise UserError(f"--host {host}: others can reach this address, so give --keys FILE")
        opened = socket.socket(family, kind, protocol)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host, such as `a..b`
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--host {host} --port {port}: {reason}; give another one") from error
    return opened


async def run(settings: ServerSettings) -> int:
    """Serve until a signal comes."""
    with contextlib.closing(
        open_socket(settings.host, settings.port, has_keys=settings.keys is not None)
    ) as opened:
        return await TranslationServer(settings).run(opened)


def serve(settings: ServerSettings) -> int:
    """Serve until a signal comes; the exit code."""
    return asyncio.run(run(settings))
