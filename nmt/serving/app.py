"""The routes of the service: LibreTranslate's, our own, and the files of the web page."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from nmt import analysis
from nmt.serving.bodies import Fields, read_attention, read_fields, read_translation, read_word
from nmt.serving.edge import CLIENT_GONE
from nmt.serving.keys import Keys
from nmt.serving.languages import language_name, list_languages
from nmt.serving.limits import ServerLimits
from nmt.serving.messages import ServedModel
from nmt.serving.metrics import TYPE, ServerMetrics
from nmt.serving.openapi import describe_api, reference_page
from nmt.serving.pool import Pool
from nmt.serving.service import (
    TranslatedText,
    check_alternatives,
    choose_model,
    cut_lines,
    find_attention,
    length_warning,
    translate_lines,
    translate_texts,
)
from nmt.serving.waiting import Answer, RefusedError, WaitingLines

PAGE = Path(__file__).parent / "page"
EXPLORER = Path(analysis.__file__).parent / "explorer"  # the report page inlines the same files

Result = TypeVar("Result")


class Api:
    """The handlers of the routes; the server replaces `pool` and `keys` when they are reloaded."""

    def __init__(
        self,
        pool: Pool,
        waiting: WaitingLines,
        limits: ServerLimits,
        keys: Keys | None,
        metrics: ServerMetrics,
        *,
        log_text: bool,
    ) -> None:
        self.pool = pool
        self.waiting = waiting
        self.limits = limits
        self.keys = keys
        self.metrics = metrics
        self.log_text = log_text

    async def translate(self, request: Request) -> Response:
        """Translations of a text or of a list of texts."""
        wanted = read_translation(await self.read(request))
        model = choose_model(self.pool.models, wanted.choice)
        self.note(request, model, wanted.texts)
        self.check_length(wanted.texts)
        work = translate_texts(self.waiting, model, wanted.texts, wanted.alternatives)
        found = await self.finish(work)
        answer = translation_answer(found, single=wanted.single, alternatives=wanted.alternatives)
        if (wanted.choice.source or "").lower() == "auto":
            answer["detectedLanguage"] = {"confidence": 0, "language": model.source}
        if self.log_text:
            request.scope["facts"]["translations"] = answer["translatedText"]
        return JSONResponse(answer)

    async def stream(self, request: Request) -> Response:
        """Translations of the lines of a text as server-sent events."""
        wanted = read_translation(await self.read(request))
        model = choose_model(self.pool.models, wanted.choice)
        check_alternatives(model, wanted.alternatives)
        self.note(request, model, wanted.texts)
        self.waiting.check_room()
        text, limit = "\n".join(wanted.texts), self.limits.max_characters
        if max(map(len, cut_lines(text))) > limit:
            raise RefusedError(413, f"q: expected lines of at most {limit:,} characters")
        lines = cut_lines(text) if wanted.texts else ()
        found = translate_lines(self.waiting, model, lines, seconds=self.limits.max_seconds)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(events(found), media_type="text/event-stream", headers=headers)

    async def attention(self, request: Request) -> Response:
        """All heads of a sentence pair, with links and probabilities."""
        wanted = read_attention(await self.read(request))
        model = choose_model(self.pool.models, wanted.choice)
        self.note(request, model, [wanted.text])
        self.check_length([wanted.text, wanted.target_text or ""])
        found = await self.finish(find_attention(self.waiting, model, wanted))
        return JSONResponse({"model": model.name, **found})

    async def languages(self, _request: Request) -> Response:
        """The languages of all models."""
        return JSONResponse(list_languages(self.pool.models.values()))

    async def models(self, _request: Request) -> Response:
        """The models, without their paths."""
        found = [dataclasses.asdict(model) for model in self.pool.models.values()]
        return JSONResponse([{k: v for k, v in each.items() if k != "path"} for each in found])

    async def settings(self, _request: Request) -> Response:
        """The settings that LibreTranslate gives to its own page and to its clients."""
        first = next(iter(self.pool.models.values()))
        codes = {"source": first.source, "target": first.target}
        return JSONResponse(
            {
                "apiKeys": self.keys is not None,
                "keyRequired": self.keys is not None,
                "charLimit": self.limits.max_characters,
                "suggestions": False,
                "filesTranslation": False,
                "supportedFilesFormat": [],
                "frontendTimeout": 500,
                "language": {
                    side: {"code": code, "name": language_name(code)}
                    for side, code in codes.items()
                },
            }
        )

    async def health(self, _request: Request) -> Response:
        """Whether texts can be translated."""
        if not self.pool.workers:
            raise RefusedError(503, "no worker process is running", retry_after="5")
        return JSONResponse({"status": "ok"})

    async def count(self, _request: Request) -> Response:
        """The counters of the server."""
        waiting, workers = len(self.waiting), len(self.pool.workers)
        return Response(self.metrics.text(waiting=waiting, workers=workers), media_type=TYPE)

    async def openapi(self, request: Request) -> Response:
        """The description of all routes."""
        return JSONResponse(describe_api(self.limits, request.scope.get("root_path", "")))

    async def reference(self, request: Request) -> Response:
        """The same description as a page."""
        root = request.scope.get("root_path", "")
        return HTMLResponse(reference_page(describe_api(self.limits, root)))

    async def not_offered(self, request: Request) -> Response:
        """The answer to routes of LibreTranslate that this server does not have."""
        raise RefusedError(501, f"{request.url.path} is not offered by this server")

    async def read(self, request: Request) -> Fields:
        """The fields of a request, whose key and size are checked.

        A key in the header is checked before the body takes memory.
        """
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        in_header = kind.lower() == "bearer"
        if in_header:
            self.check_key(request, key)
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.limits.max_body:
            raise RefusedError(413, f"the body is larger than {self.limits.max_body:,} bytes")
        try:
            async with asyncio.timeout(self.limits.max_seconds):
                fields = await read_fields(request, self.limits.max_body)
        except TimeoutError:
            raise RefusedError(408, "the body did not arrive in time", connection="close") from None
        if not in_header:
            self.check_key(request, read_word(fields, "api_key"))
        return fields

    def check_key(self, request: Request, key: str | None) -> None:
        """Note the client for the log, or refuse it, if the server has keys."""
        if self.keys is not None:
            request.scope["facts"]["key"] = self.keys.check(key)

    def note(self, request: Request, model: ServedModel, texts: Sequence[str]) -> None:
        """Note for the log what is asked for."""
        facts = request.scope["facts"]
        characters = sum(map(len, texts))
        facts |= {"model": model.name, "texts": len(texts), "characters": characters}
        if self.log_text:
            facts["q"] = list(texts)

    def check_length(self, texts: Sequence[str]) -> None:
        """Raise for texts that are too long or have too many lines."""
        for what, limit, found in (
            ("characters", self.limits.max_characters, sum(map(len, texts))),
            ("lines", self.limits.max_lines, sum(text.count("\n") + 1 for text in texts)),
        ):
            if found > limit:
                raise RefusedError(
                    413,
                    f"q: expected at most {limit:,} {what}, got {found:,}; /translate/stream takes "
                    "more",
                )

    async def finish(self, work: Awaitable[Result]) -> Result:
        """The result of some work, which ends when time is over."""
        seconds = self.limits.max_seconds
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            raise RefusedError(504, f"not finished within {seconds:g} seconds") from None


def translation_answer(
    found: list[TranslatedText], *, single: bool, alternatives: int
) -> dict[str, Any]:
    """The answer of LibreTranslate, with warnings where there are any."""
    best = [text.translations[0] for text in found]
    others = [list(text.translations[1:]) for text in found]
    answer: dict[str, Any] = {"translatedText": best[0] if single else best}
    if alternatives:
        answer["alternatives"] = others[0] if single else others
    warnings = [
        f"text {number}: {warning}"
        for number, text in enumerate(found, 1)
        for warning in text.warnings
    ]
    if warnings:
        answer["warnings"] = warnings
    return answer


async def events(answers: AsyncIterator[Answer]) -> AsyncIterator[str]:
    """Server-sent events: one per line, then `end`, or `error` in its place."""
    count = 0
    try:
        async for answer in answers:
            data = {"line": count, "translatedText": answer["nbest"][0]["text"]}
            count += 1
            if warning := length_warning(count, answer):
                data["warning"] = warning
            yield event(data)
        yield event({"lines": count}, "end")
    except RefusedError as error:
        yield event({"error": error.reason}, "error")
    except TimeoutError:
        yield event({"error": f"line {count} was not finished in time"}, "error")


def event(data: Mapping[str, Any], name: str = "") -> str:
    """One server-sent event; JSON has no line breaks outside of escapes."""
    return (f"event: {name}\n" if name else "") + f"data: {json.dumps(data)}\n\n"


async def refuse(_request: Request, error: Exception) -> Response:
    """The answer to a request that is refused."""
    assert isinstance(error, RefusedError)
    return JSONResponse({"error": error.reason}, error.status, error.headers)


async def refuse_path(request: Request, error: Exception) -> Response:
    """The answer to paths and methods that do not exist."""
    assert isinstance(error, HTTPException)
    reason = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse({"error": reason}, error.status_code, error.headers)


async def gone(_request: Request, _error: Exception) -> Response:
    """The answer to a client that went away, which nobody reads."""
    return Response(status_code=CLIENT_GONE)


async def fail(_request: Request, _error: Exception) -> Response:
    """The answer after a mistake of ours, which is logged."""
    return JSONResponse({"error": "internal error"}, 500)


def build_app(api: Api) -> Starlette:
    """The application."""
    posts = {
        "/translate": api.translate,
        "/translate/stream": api.stream,
        "/attention": api.attention,
        "/detect": api.not_offered,
        "/translate_file": api.not_offered,
        "/suggest": api.not_offered,
    }
    gets = {
        "/languages": api.languages,
        "/models": api.models,
        "/frontend/settings": api.settings,
        "/health": api.health,
        "/metrics": api.count,
        "/openapi.json": api.openapi,
        "/docs": api.reference,
    }
    app = Starlette(
        routes=[
            *(Route(path, handler, methods=["POST"]) for path, handler in posts.items()),
            *(Route(path, handler) for path, handler in gets.items()),
            Mount("/explorer", StaticFiles(directory=EXPLORER)),
        ],
        exception_handlers={
            RefusedError: refuse,
            HTTPException: refuse_path,
            ClientDisconnect: gone,
            Exception: fail,
        },
    )
    app.router.redirect_slashes = False  # a proxy would change the address again
    app.router.default = StaticFiles(directory=PAGE, html=True)
    return app
