"""Requests and connections that the edge of the server refuses."""

import asyncio
import contextlib
import socket
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs starlette: pip install 'nmt[serve]'")
pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'nmt[serve]'")

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from nmt.serving.app import refuse
from nmt.serving.bodies import read_body
from nmt.serving.edge import Edge, patient_protocol
from nmt.serving.metrics import ServerMetrics
from nmt.serving.server import UvicornServer
from nmt.serving.waiting import RefusedError


def test_the_bodies_of_all_requests_together_are_bounded() -> None:
    """They count until their answers are there."""

    async def work() -> None:
        done = asyncio.Event()

        async def answer(request: Request) -> Response:
            size = len(await read_body(request.receive, 100))
            await done.wait()
            return PlainTextResponse(str(size))

        app = Starlette(
            routes=[Route("/", answer, methods=["POST"])],
            exception_handlers={RefusedError: refuse},
        )
        edge = Edge(app, ServerMetrics(), {"/"}, any_host=True, most_bytes=100)
        waiting = [asyncio.create_task(status(edge, size)) for size in (60, 30)]
        await asyncio.sleep(0)
        assert await status(edge, 11) == 503
        waiting.append(asyncio.create_task(status(edge, 10)))
        await asyncio.sleep(0)
        done.set()
        assert await asyncio.gather(*waiting) == [200, 200, 200]
        assert await status(edge, 100) == 200
        assert edge.num_bytes == 0

    asyncio.run(asyncio.wait_for(work(), 20))


def test_connections_past_the_limit_are_refused_and_then_closed() -> None:
    async def work() -> None:
        edge = Edge(PlainTextResponse("x"), ServerMetrics(), {"/"}, any_host=True, most_bytes=1)
        config = uvicorn.Config(
            edge, lifespan="off", log_config=None, limit_concurrency=3, http=patient_protocol(60.0)
        )
        with socket.create_server(("127.0.0.1", 0)) as opened:
            server = UvicornServer(config)
            serving = asyncio.create_task(server.serve(sockets=[opened]))
            found = [await asyncio.open_connection(*opened.getsockname()) for _ in range(7)]
            reader, _ = found[6]
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            for number, expected in ((5, b"503"), (0, b"200")):
                reader, writer = found[number]
                writer.write(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
                assert (await reader.read()).startswith(b"HTTP/1.1 " + expected)
                for _, other in found[2:]:
                    other.close()
                await asyncio.sleep(0.1)
            server.should_exit = True
            await serving

    asyncio.run(asyncio.wait_for(work(), 20))


async def status(edge: Edge, size: int) -> int:
    """The status of the answer to a request with a body of this size."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": bytes(size)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "client": None}
    await edge(scope, receive, send)
    return int(sent[0]["status"])
