"""What the edge of the server refuses before a route is asked."""

import asyncio
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs starlette: pip install 'nmt[serve]'")
pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'nmt[serve]'")

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from nmt.serving.app import refuse
from nmt.serving.bodies import read_body
from nmt.serving.edge import Edge
from nmt.serving.metrics import ServerMetrics
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


async def status(edge: Edge, size: int) -> int:
    """The status of the answer to a request with a body of so many bytes."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": bytes(size)}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "client": None}
    await edge(scope, receive, send)
    return int(sent[0]["status"])
