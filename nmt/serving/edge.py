"""The edge of the server: a log line and counters per request, headers, and clients that stall."""

import asyncio
import functools
import ipaddress
import json
import logging
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from nmt.serving.metrics import ServerMetrics
from nmt.serving.waiting import busy

access = logging.getLogger("nmt.serving.access")

# The page loads only its own files, and no other page can show it.
RESPONSE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
CLIENT_GONE = 499  # the status that logs show when there was nobody to answer
SHOWN_PATH = 200  # characters
MAX_HEAD = 65_536  # bytes of a request that are not of its body
MAX_FRAMING = 8  # bytes more for each byte of a body, which may come in chunks
MAX_PIPELINED = 16  # requests of a connection that are not answered yet


@functools.lru_cache(maxsize=64)
def names_machine(host: bytes) -> bool:
    """Whether a Host header has an address or localhost.

    Any other name may be that of a page elsewhere, whose name now leads to this machine.
    """
    name = re.sub(r":\d*$", "", host.decode("latin-1"))
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name.lower() == "localhost"
    return True


def refusal(scope: Scope, *, any_host: bool) -> str | None:
    """Why a request is not answered at all, or None."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    method = scope["method"]
    if method == "POST" and b"upgrade" in headers.get(b"connection", b"").lower():
        # The parser would lose the body.
        return "this server knows HTTP/1.1 only: send requests without the header Upgrade"
    if any_host:
        return None
    if not all(names_machine(value) for name, value in scope["headers"] if name == b"host"):
        return "the Host header must be an address or localhost, since the server has no keys"
    if method == "POST" and is_cross_site(headers):
        return "pages of other sites cannot use this server, since it has no keys"
    return None


def is_cross_site(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser sent this for a page of another site.

    Without the header that says so, the origin of the page is compared with the host, unless a
    proxy may have changed the host.
    """
    if site := headers.get(b"sec-fetch-site"):
        return site == b"cross-site"
    origin = headers.get(b"origin")
    if origin is None or b"x-forwarded-for" in headers:  # which no page can set
        return False
    return origin.partition(b"://")[2].lower() != headers.get(b"host", b"").lower()


class Edge:
    """Calls the application; logs and counts its answers.

    Handlers put what is to be logged about a request into `scope["facts"]`.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: ServerMetrics,
        paths: set[str],
        *,
        any_host: bool,
        most_bytes: int,
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.paths = paths  # those that are counted by themselves
        self.any_host = any_host  # whether the Host header may have any name
        self.most_bytes = most_bytes  # of the bodies of all requests that are being answered
        self.num_bytes = 0  # that they have now
        self.headers = [(name.encode(), value.encode()) for name, value in RESPONSE_HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, status, size = time.monotonic(), CLIENT_GONE, 0
        facts: dict[str, Any] = {}
        scope["facts"] = facts
        scope["task"] = asyncio.current_task()  # cancelled by the connection when it is lost

        async def send_more(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *self.headers]
            await send(message)

        async def receive_more() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            self.num_bytes += len(message.get("body", b""))
            if self.num_bytes > self.most_bytes:
                raise busy("the bodies of requests take too much memory")
            return message

        app = self.app
        if reason := refusal(scope, any_host=self.any_host):
            app = JSONResponse({"error": reason}, 403)
        try:
            await app(scope, receive_more, send_more)
        except asyncio.CancelledError:
            if "lost" not in scope:
                raise
            facts["problem"] = "the client has gone"
        finally:
            self.num_bytes -= size
            seconds = time.monotonic() - start
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            self.metrics.count_request(path if path in self.paths else "other", status, seconds)
            record = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "client": (scope["client"] or ("",))[0],
                "method": scope["method"],
                "path": path[:SHOWN_PATH],
                "status": status,
                "seconds": round(seconds, 4),
                **facts,
            }
            access.info("%s", json.dumps(record))


def patient_protocol(patience: float) -> type[HttpToolsProtocol]:
    """Connections that end the work for clients that have gone, and leave those that stall.

    A connection is closed after `patience` to twice as many seconds without a request, or in which
    the client has read nothing of its answer.
    """

    class PatientProtocol(HttpToolsProtocol):
        num_head = 0  # bytes of the present request that are not of its body
        num_body = 0  # those that are
        cycles: tuple[RequestResponseCycle, ...] = ()  # requests that are not answered yet

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.next_check = self.loop.call_later(patience, self.check, None, 0)
            if self.limit_concurrency and len(self.connections) > 2 * self.limit_concurrency:
                transport.abort()  # requests of others past the limit are answered with a 503

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self.next_check.cancel()  # the timer would keep all of this in memory
            for cycle in self.cycles:
                if not cycle.response_complete:
                    cycle.disconnected = True
                    scope: dict[str, Any] = cycle.scope  # type: ignore[assignment]
                    scope["lost"] = True
                    if "task" in scope:
                        scope["task"].cancel()

        def data_received(self, data: bytes) -> None:
            self.num_head += len(data)
            super().data_received(data)
            most = MAX_HEAD + MAX_FRAMING * self.num_body
            if self.num_head > most and not self.transport.is_closing():
                self.send_400_response("The head of the request is too large.")

        def on_headers_complete(self) -> None:
            waiting = [cycle for cycle in self.cycles if not cycle.response_complete]
            if len(waiting) >= MAX_PIPELINED:
                raise ValueError("too many requests wait")  # the connection is closed with a 400
            super().on_headers_complete()
            self.cycles = (*waiting, self.cycle)

        def on_body(self, body: bytes) -> None:
            self.num_head -= len(body)
            self.num_body += len(body)
            super().on_body(body)

        def on_message_complete(self) -> None:
            self.num_head = self.num_body = 0
            super().on_message_complete()
            if not self.pipeline:  # after a large body: else nobody sees that the client goes
                self.flow.resume_reading()

        def check(self, before: object, unsent: int) -> None:
            """Look at the connection again and again.

            `before` is what its last request was, and `unsent` are the bytes that were to be read.
            """
            left = self.transport.get_write_buffer_size()
            if self.transport.is_closing() or (left and left == unsent):
                self.transport.abort()  # nobody reads what is left to send
                return
            waits = self.cycle is None or self.cycle.response_complete
            if waits and self.cycle is before:
                self.transport.close()
            last = self.cycle if waits else self
            self.next_check = self.loop.call_later(patience, self.check, last, left)

    return PatientProtocol
