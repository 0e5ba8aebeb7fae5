"""The routes of the service: LibreTranslate's, our own, and the files of the web page."""

import asyncio
import dataclasses
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nmt.serving.bodies import read_attention, read_fields, read_translation
from nmt.serving.languages import list_languages
from nmt.serving.service import Service, TranslatedText
from nmt.serving.waiting import RefusedError

PAGE = Path(__file__).parent / "page"
MAX_BODY = 2_000_000

# The page loads only its own files, and no other page can show it.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}

Result = TypeVar("Result")


class SecurityHeaders:
    """Adds the headers that tell browsers what a page may do to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *self.headers]}
            await send(message)

        await self.app(scope, receive, send_more)


class Api:
    """The handlers of the routes."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def translate(self, request: Request) -> Response:
        """Translations of a text or of a list of texts."""
        wanted = read_translation(await read_fields(request, MAX_BODY))
        model = self.service.choose(wanted.choice)
        found = await while_connected(request, self.service.translate(model, wanted))
        answer = describe(found, single=wanted.single, alternatives=wanted.alternatives)
        if (wanted.choice.source or "").lower() == "auto":
            answer["detectedLanguage"] = {"confidence": 0, "language": model.source}
        return JSONResponse(answer)

    async def attention(self, request: Request) -> Response:
        """All heads of a sentence pair, with links and probabilities."""
        wanted = read_attention(await read_fields(request, MAX_BODY))
        model = self.service.choose(wanted.choice)
        found = await while_connected(request, self.service.attention(model, wanted))
        return JSONResponse({"model": model.name, **found})

    async def languages(self, _request: Request) -> Response:
        """The languages of all models."""
        return JSONResponse(list_languages(self.service.models.values()))

    async def models(self, _request: Request) -> Response:
        """The models, without their paths."""
        found = [dataclasses.asdict(model) for model in self.service.models.values()]
        return JSONResponse([{k: v for k, v in each.items() if k != "path"} for each in found])

    async def health(self, _request: Request) -> Response:
        """Whether texts can be translated."""
        return JSONResponse({"status": "ok"})

    async def not_offered(self, request: Request) -> Response:
        """The answer to routes of LibreTranslate that this server does not have."""
        raise RefusedError(501, f"{request.url.path}: not offered by this server")


def describe(found: list[TranslatedText], *, single: bool, alternatives: int) -> dict[str, Any]:
    """The answer of LibreTranslate, with warnings where there are any."""
    best = [text.translations[0] for text in found]
    others = [list(text.translations[1:]) for text in found]
    answer: dict[str, Any] = {"translatedText": best[0] if single else best}
    if alternatives:
        answer["alternatives"] = others[0] if single else others
    warnings = [each for text in found for each in text.warnings]
    if warnings:
        answer["warnings"] = warnings
    return answer


async def while_connected(request: Request, work: Awaitable[Result]) -> Result:
    """The result of some work, which is cancelled when the client goes away."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return await task
    finally:
        task.cancel()
        watch.cancel()


async def refuse(_request: Request, error: Exception) -> Response:
    """The answer to a request that is refused."""
    assert isinstance(error, RefusedError)
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    return JSONResponse({"error": error.reason}, error.status, headers)


async def refuse_path(request: Request, error: Exception) -> Response:
    """The answer to paths and methods that do not exist."""
    assert isinstance(error, HTTPException)
    reason = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse({"error": reason}, error.status_code, error.headers)


async def gone(_request: Request, _error: Exception) -> Response:
    """The answer to a client that went away, which nobody reads."""
    return Response(status_code=499)


async def fail(_request: Request, _error: Exception) -> Response:
    """The answer after a mistake of ours, which is logged."""
    return JSONResponse({"error": "internal error"}, 500)


def build_app(service: Service) -> Starlette:
    """The application."""
    api = Api(service)
    post = ["POST"]
    return Starlette(
        routes=[
            Route("/translate", api.translate, methods=post),
            Route("/attention", api.attention, methods=post),
            Route("/languages", api.languages),
            Route("/models", api.models),
            Route("/health", api.health),
            *(
                Route(path, api.not_offered, methods=post)
                for path in ("/detect", "/translate_file", "/suggest")
            ),
            Mount("/", StaticFiles(directory=PAGE, html=True)),
        ],
        middleware=[Middleware(SecurityHeaders)],
        exception_handlers={
            RefusedError: refuse,
            HTTPException: refuse_path,
            ClientDisconnect: gone,
            Exception: fail,
        },
    )
