"""The description of the routes: as an OpenAPI document, and as a page that needs no network."""

import json
from html import escape
from typing import Any

import nmt
from nmt.serving.limits import ServerLimits

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}


def optional(meaning: str) -> Schema:
    """A text that can be left out."""
    return {"type": ["string", "null"], "description": meaning}


def array(items: Schema) -> Schema:
    """A list of equal things."""
    return {"type": "array", "items": items}


def fields(required: list[str], **properties: Schema) -> Schema:
    """An object with these properties."""
    return {"type": "object", "required": required, "properties": properties}


CHOICE = {
    "source": optional("language of the text, or auto: the only one that fits"),
    "target": optional("language to translate into"),
    "model": optional("name of a model, instead of languages"),
    "api_key": optional("key, if the server needs one; or as Authorization: Bearer KEY"),
}
TRANSLATION_REQUEST = fields(
    ["q"],
    q={
        "anyOf": [TEXT, array(TEXT)],
        "description": "a text or a list of texts; each line is translated by itself",
    },
    **CHOICE,
    format={"enum": ["text", None], "description": "only text is offered"},
    alternatives={
        "anyOf": [COUNT, {"type": "string", "pattern": "^[0-9]{1,9}$"}, {"type": "null"}],
        "description": "number of other translations, less than the beam",
    },
)
ATTENTION_REQUEST = fields(
    ["q"],
    q={"type": "string", "description": "a sentence of at most 128 subwords"},
    target_text=optional("text to read in place of the translation"),
    **CHOICE,
)
SCHEMAS = {
    "Error": fields(["error"], error=TEXT),
    "Translation": fields(
        ["translatedText"],
        translatedText={"anyOf": [TEXT, array(TEXT)]},
        alternatives=array({"anyOf": [TEXT, array(TEXT)]}),
        detectedLanguage=fields(["language", "confidence"], language=TEXT, confidence=NUMBER),
        warnings=array(TEXT),
    ),
    "Attention": fields(
        ["model", "translation", "nbest", "source_words", "target_words", "links", "models"],
        model=TEXT,
        translation=TEXT,
        nbest=array(
            fields(["text", "score"], text=TEXT, score=NUMBER, log_probability=NUMBER)
        ),
        source_words=array(TEXT),
        target_words=array(fields(["text", "probability"], text=TEXT, probability=NUMBER)),
        end_probability=NUMBER,
        log_probability=NUMBER,
        links=array({**array(COUNT), "minItems": 2, "maxItems": 2}),
        alignment_head={"type": "object"},
        null_rates={"type": "object", "description": "by type, layer and head"},
        models={**array({"type": "object"}), "description": "as in the page of nmt-analyze"},
        sentences=array(TEXT),
        types={"type": "object"},
        learned=array(TEXT),
    ),
    "Languages": array(
        fields(["code", "name", "targets"], code=TEXT, name=TEXT, targets=array(TEXT))
    ),
    "Models": array(
        fields(
            ["name", "source", "target", "version", "beam"],
            name=TEXT, source=TEXT, target=TEXT, version=TEXT, beam=COUNT, heads=COUNT,
            attention={"type": "object"}, layers={"type": "object"},
        )
    ),
    "Settings": fields(["charLimit", "keyRequired"], charLimit=COUNT, keyRequired={
        "type": "boolean"}),
    "Health": fields(["status"], status=TEXT),
    "Document": {"type": "object"},
}  # fmt: skip
REFUSALS = {
    400: "a field is wrong, or the body cannot be read",
    403: "the key is missing or not valid",
    408: "the body did not arrive in time",
    413: "the request is too large",
    415: "the body is neither JSON nor a form",
    429: "too many requests with this key",
    500: "the model has no translation for this text",
    503: "too many lines wait; see Retry-After",
    504: "not finished in time",
}


def answer(meaning: str, kind: str, schema: Schema) -> Schema:
    """A response with a body."""
    return {"description": meaning, "content": {kind: {"schema": schema}}}


def reference(name: str) -> Schema:
    """A schema by its name."""
    return {"$ref": f"#/components/schemas/{name}"}


def posted(summary: str, body: Schema, meaning: str, kind: str, schema: Schema) -> Schema:
    """A route that takes a body."""
    kinds = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    error = reference("Error")
    refusals = {
        str(status): answer(why, "application/json", error) for status, why in REFUSALS.items()
    }
    return {
        "post": {
            "summary": summary,
            "requestBody": {
                "required": True,
                "content": {each: {"schema": body} for each in kinds},
            },
            "responses": {"200": answer(meaning, kind, schema), **refusals},
        }
    }


def read(summary: str, kind: str, schema: Schema) -> Schema:
    """A route that takes nothing."""
    return {"get": {"summary": summary, "responses": {"200": answer(summary, kind, schema)}}}


def describe_api(limits: ServerLimits, root_path: str) -> Schema:
    """The OpenAPI document."""
    plain = "application/json"
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "nmt-serve",
            "version": nmt.__version__,
            "description": f"Translation in the way of LibreTranslate. A request has at most "
            f"{limits.max_characters:,} characters in {limits.max_lines:,} lines.",
        },
        "servers": [{"url": root_path or "/"}],
        "paths": {
            "/translate": posted("Translate texts", TRANSLATION_REQUEST, "the translations", plain,
                                 reference("Translation")),
            "/translate/stream": posted(
                "Translate a long text, as server-sent events", TRANSLATION_REQUEST,
                "one event per line: line, translatedText; then the event end, or error",
                "text/event-stream", fields(["data"], event=TEXT, data=TEXT),
            ),
            "/attention": posted("Attention, links and probabilities of a sentence",
                                 ATTENTION_REQUEST, "all heads", plain, reference("Attention")),
            "/languages": read("Languages that are served", plain, reference("Languages")),
            "/models": read("Models that are served", plain, reference("Models")),
            "/frontend/settings": read("Settings for clients of LibreTranslate", plain,
                                       reference("Settings")),
            "/health": read("Whether the server translates", plain, reference("Health")),
            "/metrics": read("Counters in the format of Prometheus", "text/plain", TEXT),
            "/openapi.json": read("This description", plain, reference("Document")),
        },
        "components": {"schemas": SCHEMAS},
    }  # fmt: skip


def reference_page(document: Schema) -> str:
    """The document as a page of tables."""
    parts = []
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            parts.append(f"<h2>{method.upper()} {escape(path)}</h2>")
            parts.append(f"<p>{escape(route['summary'])}</p>")
            content = route.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                parts.append(field_table(content["application/json"]["schema"]))
            rows = [
                (status, f"{found['description']} ({', '.join(found['content'])})")
                for status, found in route["responses"].items()
            ]
            parts.append(table(("status", "answer"), rows))
    info = document["info"]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<title>{escape(info["title"])}</title><link rel="stylesheet" href="reference.css">'
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f'<p>{escape(info["description"])} <a href="openapi.json">OpenAPI document</a></p>'
        f"{''.join(parts)}</html>"
    )


def field_table(schema: Schema) -> str:
    """The fields of a body."""
    rows = [
        (
            name + (" (required)" if name in schema["required"] else ""),
            one.get("description", json.dumps(one)),
        )
        for name, one in schema["properties"].items()
    ]
    return table(("field", "meaning"), rows)


def table(names: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    """A table of two columns."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr><td>{escape(a)}</td><td>{escape(b)}</td></tr>" for a, b in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
