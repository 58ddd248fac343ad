"""The server's OpenAPI 3.1 document, made of the very models that check requests, and its page."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from sandbox.guarantees import Guarantees
from sandbox.models import Execution, Program

_REF = "#/components/schemas/{model}"
_RETRY = {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds after which to try again"}}


def document(*, needs_token: bool, extras: Sequence[tuple[str, str, str]] = ()) -> dict[str, Any]:
    """`extras`: method, path and description of routes whose bodies are described elsewhere."""
    models = [(Program, "validation"), (Execution, "serialization"), (Guarantees, "serialization")]
    _, schemas = models_json_schema(models, ref_template=_REF)  # type: ignore[arg-type]
    error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Veriward sandbox",
            "version": "1",
            "description": "Runs untrusted programs. Bytes are base64; answers use its URL-safe alphabet, "
            "requests may use either. A token also opens as first segment of a path.",
        },
        "paths": {**_paths(), **{path: {method.lower(): _extra(path, text)} for method, path, text in extras}},
        "components": {
            "schemas": {**schemas["$defs"], "Error": error},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}] if needs_token else [],
    }


def _paths() -> dict[str, Any]:
    key = {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "runs once, however often it is sent; the answer is kept for ten minutes",
        "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[ -~]+$"},
    }
    of_path = {**key, "name": "key", "in": "path", "required": True}
    kind = {"name": "kind", "in": "query", "schema": {"enum": ["python", "shell"], "default": "python"}}
    run = {
        "operationId": "run",
        "summary": "Run one program",
        "parameters": [key],
        "requestBody": {"required": True, "content": _json("Program")},
        "responses": {
            "200": {**_answer("what happened to the program", "Execution"), "headers": _seconds()},
            **_errors(400, 401, 408, 409, 413, 415, 422),
            "429": {**_answer("the queue is full", "Error"), "headers": _RETRY},
            "503": {**_answer("the sandbox failed, not the program, or is about to stop", None), "headers": _RETRY},
        },
    }
    return {
        "/v1/run": {"post": run},
        "/v1/run/{key}": {
            "delete": {
                "operationId": "cancel",
                "summary": "End the job of a key; the key never runs again",
                "parameters": [of_path],
                "responses": {"200": _answer("whether it was under way", None), **_errors(400, 401)},
            }
        },
        "/v1/session": {
            "get": {
                "operationId": "session",
                "summary": "A WebSocket that is a session: limits first, then questions with one answer each",
                "parameters": [kind],
                "responses": {"101": {"description": "a WebSocket"}, **_errors(400, 401, 403, 426, 429, 503)},
            }
        },
        "/v1/guarantees": _get("guarantees", "What is enforced, what is weaker and why", "Guarantees"),
        "/health": _get("health", "Whether it takes jobs; needs no token", None, security=[]),
        "/metrics": _get("metrics", "Counters for Prometheus", None, media="text/plain"),
    }


def _extra(path: str, text: str) -> dict[str, Any]:
    answers = {
        code: {**answer, "content": _json(None)} for code, answer in _errors(400, 401, 413, 415, 429, 503).items()
    }
    return {
        "operationId": path.strip("/").replace("/", "_"),
        "summary": text.strip().splitlines()[0],
        "responses": {"200": _answer("as its own documentation says", None), **answers},
    }


def _json(model: str | None) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(model=model)} if model else {"type": "object"}}}


def _answer(description: str, model: str | None) -> dict[str, Any]:
    return {"description": description, "content": _json(model)}


def _errors(*codes: int) -> dict[str, Any]:
    return {str(code): _answer("refused: nothing was run", "Error") for code in codes}


def _seconds() -> dict[str, Any]:
    return {"X-Queue-Seconds": {"schema": {"type": "number"}, "description": "the wait for a slot, no part of wall_s"}}


def _get(name: str, summary: str, model: str | None, *, media: str = "", **more: Any) -> dict[str, Any]:
    content = {media: {"schema": {"type": "string"}}} if media else _json(model)
    responses = {"200": {"description": summary, "content": content}, **({} if more else _errors(401, 503))}
    return {"get": {"operationId": name, "summary": summary, "responses": responses, **more}}


def page(document: dict[str, Any]) -> str:
    """A page that needs nothing from elsewhere."""
    parts = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            answers = "".join(
                f"<tr><td>{code}<td>{html.escape(answer['description'])}"
                for code, answer in operation["responses"].items()
            )
            parts.append(
                f"<h2><code>{method.upper()} {html.escape(path)}</code></h2><p>{html.escape(operation['summary'])}"
                f"<table>{answers}</table>"
            )
    schemas = "".join(
        f"<h3>{html.escape(name)}</h3><pre>{html.escape(json.dumps(schema, indent=1))}</pre>"
        for name, schema in document["components"]["schemas"].items()
    )
    return (
        "<!doctype html><meta charset=utf-8><title>Veriward sandbox</title>"
        "<style>body{font:16px sans-serif;max-width:50em;margin:2em auto}pre{background:#f4f4f4;padding:1em;"
        "overflow:auto}td{padding:0 1em 0 0}</style><h1>Veriward sandbox</h1>"
        f"<p>{html.escape(document['info']['description'])} <a href=openapi.json>openapi.json</a>"
        f"{''.join(parts)}<h2>Models</h2>{schemas}"
    )
