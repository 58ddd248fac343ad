"""What every request to the server passes through: its log line, the one shape of its errors, its token.

And `Service`, what the handlers of one app share. The token stays out of the log, also as part of a path.
"""

from __future__ import annotations

import hmac
import logging
import time
import weakref
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

from aiohttp import web
from pydantic import ValidationError

from sandbox.backend import Backend
from sandbox.errors import ConfigError, VeriwardError
from sandbox.models import Execution, Program
from sandbox.server_metrics import Metrics
from sandbox.server_queue import Answers, JobQueue, Refused
from sandbox.server_session import Sessions

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = logging.getLogger("sandbox.server")


class Service:
    """What the handlers of one app share."""

    def __init__(self, backend: Backend, slots: int, token: str | None, queue_size: int, heartbeat_s: float) -> None:
        self.backend = backend
        self.token = token
        self.queue = JobQueue(backend, slots, queue_size)
        self.answers = Answers()
        self.metrics = Metrics(self.queue)
        self.sessions = Sessions(slots, heartbeat_s)
        self.guarantees: bytes | None = None
        self.heard: weakref.WeakSet[object] = weakref.WeakSet()  # connections that have sent a request

    async def run(self, program: Program) -> tuple[Execution, float]:
        execution, queue_s = await self.queue.run(program)
        self.metrics.ran(execution, queue_s)
        return execution, queue_s


SERVICE = web.AppKey("service", Service)


@web.middleware
async def logged(request: web.Request, handler: Handler) -> web.StreamResponse:
    """One line a request, without bodies, query or token."""
    service = request.app[SERVICE]
    if request.transport is not None:
        service.heard.add(request.transport)
    began = time.monotonic()
    status = 499  # the client went away
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        service.metrics.responded(status)
        path = unquote(request.rel_url.raw_path)
        if service.token:
            path = path.replace(service.token, "***")
        shown = path.encode("unicode_escape").decode()[:200]
        _log.info("%s %s %d %.3fs", request.method[:10], shown, status, time.monotonic() - began)


@web.middleware
async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every failure is JSON with one line of reason."""
    try:
        return await handler(request)
    except Refused as refused:
        request.app[SERVICE].metrics.refused(refused.reason)
        status = 429 if refused.reason == "full" else 503
        return _error(status, str(refused), {"Retry-After": str(refused.retry_after_s)})
    except ValidationError as error:
        return _error(400, _first_of(error))
    except web.HTTPException as error:
        kept = {
            name: error.headers[name] for name in ("Allow", "WWW-Authenticate", "Retry-After") if name in error.headers
        }
        return _error(error.status, error.text or error.reason, kept)
    except ConfigError as error:  # this backend can't run what was asked for
        return _error(400, str(error))
    except VeriwardError as error:  # of the machine
        return _error(503, str(error), {"Retry-After": "5"})
    except ConnectionError:
        raise
    except Exception:
        _log.exception("a bug of the server's")
        return _error(500, "a bug of the server's; its log has the traceback")


@web.middleware
async def admitted(request: web.Request, handler: Handler) -> web.StreamResponse:
    """By token, except to /health. A POST must be JSON, which no web page can send elsewhere unasked."""
    token = request.app[SERVICE].token
    if token is not None and request.path != "/health":
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        by_header = scheme.lower() == "bearer" and _is_same(given.strip(), token)
        _, _, rest = request.path.partition("/")  # a path may be "*", or nothing
        by_path = _is_same(rest.partition("/")[0], token)
        if not (by_path or (by_header and "access" not in request.match_info)):
            raise web.HTTPUnauthorized(
                text="a bad token or none: send `Authorization: Bearer TOKEN`", headers={"WWW-Authenticate": "Bearer"}
            )
    is_post = request.method == "POST" and request.match_info.http_exception is None
    if is_post and request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="send JSON, with Content-Type: application/json")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise web.HTTPUnsupportedMediaType(text="send the body as it is, without Content-Encoding")
    return await handler(request)


def _is_same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": " ".join(message.split())[:500]}, status=status, headers=headers)


def _first_of(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part)[:60] for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"].removeprefix("Value error, ")
