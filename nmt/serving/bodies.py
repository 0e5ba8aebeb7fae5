"""The bodies of requests: JSON or a form, with the field names of LibreTranslate, checked."""

import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from python_multipart.multipart import parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from nmt.serving.waiting import RefusedError

MAX_FIELDS = 1000
Fields = dict[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


@dataclass(frozen=True)
class ModelChoice:
    """The languages or the name of the model that a request asks for."""

    model: str | None
    source: str | None
    target: str | None


@dataclass(frozen=True)
class TranslationRequest:
    """Texts to translate; `single` if the answer is to be one text, and not a list."""

    texts: Sequence[str]
    single: bool
    alternatives: int
    choice: ModelChoice


@dataclass(frozen=True)
class AttentionRequest:
    """A sentence whose attention is wanted, and its target if it is not to be translated."""

    text: str
    target_text: str | None
    choice: ModelChoice


async def read_body(receive: Receive, limit: int) -> bytes:
    """The body of a request, of at most `limit` bytes."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if len(body) > limit:
            raise RefusedError(413, f"the body is larger than {limit:,} bytes")
        more = message.get("more_body", False)
    return bytes(body)


async def read_fields(request: Request, limit: int) -> Fields:
    """The fields of a body of at most `limit` bytes."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await read_body(request.receive, limit)
    try:
        text = body.decode()
        if kind == "application/json":
            fields = json.loads(text)
        elif kind == "application/x-www-form-urlencoded":
            fields = dict(parse_qsl(text, True, max_num_fields=MAX_FIELDS, errors="strict"))
        elif kind == "multipart/form-data":
            check_charset(request.headers["content-type"])
            fields = await read_form(request, body)
        else:
            raise RefusedError(415, f"expected a JSON or form body, got {kind or 'no type'!r}")
    except UnicodeDecodeError:
        raise RefusedError(400, "the body is not UTF-8") from None
    except HTTPException as error:  # of the parser of multipart bodies
        raise RefusedError(400, error.detail) from None
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, f"the body cannot be read: {error}") from None
    if not isinstance(fields, dict):
        raise RefusedError(400, "expected an object with q, source and target")
    return fields


async def read_form(request: Request, body: bytes) -> Fields:
    """The fields of a multipart body."""

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body}

    form = Request(request.scope, receive).form(
        max_files=0, max_fields=MAX_FIELDS, max_part_size=len(body)
    )
    return dict(await form)


def check_charset(content_type: str) -> None:
    """Raise for a charset other than UTF-8: some that Python has take minutes for a body."""
    charset = parse_options_header(content_type)[1].get(b"charset", b"utf-8").decode("latin-1")
    if charset.lower() not in ("utf-8", "utf8"):
        raise RefusedError(415, f"expected a body in UTF-8, got the charset {charset!a:.40}")


def read_translation(fields: Fields) -> TranslationRequest:
    """The request for translations in the fields of a body."""
    texts = fields.get("q")
    single = isinstance(texts, str)
    if single:
        texts = [texts]
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise RefusedError(400, "q: expected a text or a list of texts")
    for text in texts:
        check_text(text, "q")
    if fields.get("format") not in (None, "text"):
        raise RefusedError(400, "format: expected text; markup such as html is not carried over")
    return TranslationRequest(texts, single, read_alternatives(fields), read_choice(fields))


def read_attention(fields: Fields) -> AttentionRequest:
    """The request for attention in the fields of a body."""
    text = fields.get("q")
    if not isinstance(text, str) or not text.strip():
        raise RefusedError(400, "q: expected a sentence")
    target = read_word(fields, "target_text")
    for name, given in (("q", text), ("target_text", target or "")):
        check_text(given, name)
        if "\n" in given.rstrip("\r\n"):
            raise RefusedError(400, f"{name}: expected one line")
    text = text.rstrip("\r\n")
    target = None if target is None else target.rstrip("\r\n")
    return AttentionRequest(text, target, read_choice(fields))


def check_text(text: str, name: str) -> None:
    """Raise for text that is not Unicode: JSON can hold halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RefusedError(400, f"{name}: contains half a surrogate pair") from None


def read_alternatives(fields: Fields) -> int:
    """The number of other translations that are wanted."""
    given = fields.get("alternatives")
    if given is None:
        return 0
    if isinstance(given, float) and given.is_integer():
        given = int(given)
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) < 10:
        given = int(given)
    if type(given) is not int or given < 0:
        raise RefusedError(400, "alternatives: expected a whole number, at least 0")
    return given


def read_choice(fields: Fields) -> ModelChoice:
    """The model or languages that are wanted."""
    model, source, target = (read_word(fields, name) for name in ("model", "source", "target"))
    return ModelChoice(model or None, source or None, target or None)


def read_word(fields: Fields, name: str) -> str | None:
    """The text of a field that can be left out."""
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise RefusedError(400, f"{name}: expected text")
    return value
