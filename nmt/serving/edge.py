"""The edge of the server: a log line and counters per request, headers, and clients that stall."""

import asyncio
import json
import logging
import time
from datetime import UTC, datetime
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from nmt.serving.metrics import ServerMetrics

access = logging.getLogger("nmt.serving.access")

# The page loads only its own files, and no other page can show it.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
CLIENT_GONE = 499  # the status that logs show when there was nobody to answer
SHOWN_PATH = 200  # characters


class Edge:
    """Calls the application; logs and counts its answers.

    Handlers put what is to be logged about a request into `scope["facts"]`.
    """

    def __init__(
        self, app: ASGIApp, metrics: ServerMetrics, paths: set[str], *, seconds: float
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.paths = paths  # those that are counted by themselves
        self.seconds = seconds  # that a client may take to read a part of an answer
        self.headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, status = time.monotonic(), CLIENT_GONE
        facts: dict[str, Any] = {}

        async def send_more(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *self.headers]}
            async with asyncio.timeout(self.seconds):
                await send(message)

        try:
            await self.app({**scope, "facts": facts}, receive, send_more)
        except TimeoutError:
            facts["problem"] = "the client does not read its answer"
        finally:
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


def patient_protocol(patience: float) -> type[H11Protocol]:
    """Connections that are closed after `patience` to twice as many seconds without a request."""

    class PatientProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.loop.call_later(patience, self.check, None)

        def check(self, before: object) -> None:
            """Look at the connection again and again; `before` is what its last request was."""
            if self not in self.connections:
                return
            if self.transport.is_closing():
                self.transport.abort()  # nobody reads what is left to send
                return
            waits = self.cycle is None or self.cycle.response_complete
            if waits and self.cycle is before:
                self.transport.close()
            last = self.cycle if waits else self
            self.loop.call_later(patience, self.check, last)

    return PatientProtocol
