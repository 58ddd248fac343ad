"""A sandbox over HTTP: `make_app` builds it around any backend; `sandbox.server_listen.serve` runs it.

Whatever a client sends, it gets one JSON answer and the service stays up. Time in the queue is
never a job's time. A request with an Idempotency-Key runs once, however often it is sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from aiohttp import web

from sandbox import openapi
from sandbox.backend import TOKEN, Backend
from sandbox.errors import ConfigError
from sandbox.models import Execution, Program
from sandbox.server_gate import SERVICE, Handler, Service, admitted, answered, logged
from sandbox.server_metrics import CONTENT_TYPE
from sandbox.server_queue import Answer, Cancelled, OtherBody
from sandbox.server_session import hold_session

T = TypeVar("T")


class Turns:
    """How an extra route uses the backend: programs, or work of its own, each in a turn of the server's queue."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.waited_s = 0.0

    async def __call__(self, program: Program) -> Execution:
        """Run a program. Raises Refused."""
        execution, queue_s = await self._service.run(program)
        self.waited_s += queue_s
        return execution

    async def hold(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do what is no single program, such as a dialogue, while holding a slot. Raises Refused."""
        async with self._service.queue.turn() as queue_s:
            self.waited_s += queue_s
            return await work()


ExtraRoute = tuple[str, str, Callable[[bytes, Turns], Awaitable[tuple[int, Any]]]]

_DOCUMENT = web.AppKey("document", dict)
_BODY_S = 60.0  # to send a whole body in
_IN_THREAD_BYTES = 1 << 18  # bodies from here on are parsed off the loop
_KEY = re.compile(r"[\x20-\x7e]{1,200}")


def make_app(
    backend: Backend,
    *,
    slots: int,
    token: str | None,
    queue_size: int = 256,
    max_body_bytes: int = 64 << 20,
    heartbeat_s: float = 20.0,
    extra_routes: Sequence[ExtraRoute] = (),
) -> web.Application:
    """The app. `token` None admits everybody, so `serve` then takes a loopback host only.

    An extra route's handler gets the body and `Turns`, its way to run programs in the same queue;
    it returns a status and what to send as JSON. A session whose client says nothing to a heartbeat
    ends. Raises ConfigError for an impossible setting.
    """
    if token is not None and not TOKEN.fullmatch(token):
        raise ConfigError(
            "the server's token must be printable ASCII without spaces; make one with `openssl rand -hex 32`"
        )
    if slots < 1 or queue_size < 0:
        raise ConfigError(f"make_app(slots={slots}, queue_size={queue_size}): at least 1 slot, and no negative queue")
    app = web.Application(client_max_size=max_body_bytes, middlewares=[logged, answered, admitted])
    app[SERVICE] = Service(backend, slots, token, queue_size, heartbeat_s)
    extras = [(method, path, handler.__doc__ or path) for method, path, handler in extra_routes]
    app[_DOCUMENT] = openapi.document(needs_token=token is not None, extras=extras)
    routes: list[tuple[str, str, Handler]] = [
        ("POST", "/v1/run", _run),
        ("DELETE", "/v1/run/{key}", _cancel),
        ("GET", "/v1/guarantees", _guarantees),
        ("GET", "/v1/session", _session),
        ("GET", "/openapi.json", _openapi),
        ("GET", "/docs", _docs),
        ("GET", "/health", _health),
        ("GET", "/metrics", _metrics),
        *((method, path, _extra(handler)) for method, path, handler in extra_routes),
    ]
    for method, path, handler in routes:
        app.router.add_route(method, path, handler)
        if token is not None:
            app.router.add_route(method, "/{access}" + path, handler)
    return app


# The routes


async def _run(request: web.Request) -> web.StreamResponse:
    """Run one program."""
    service = request.app[SERVICE]
    key = request.headers.get("Idempotency-Key")
    if key is not None and not _KEY.fullmatch(key):
        raise web.HTTPBadRequest(text="Idempotency-Key: 1 to 200 printable ASCII characters")
    if key is None or key not in service.answers:
        service.queue.refuse_if_full()  # before the body costs anything
    body = await _body(request)
    program = await _parsed(body)

    async def make() -> Answer:
        execution, queue_s = await service.run(program)
        headers = {"X-Queue-Seconds": f"{queue_s:.3f}"}
        if execution.status == "unavailable":
            return Answer(503, _as_json(execution), {**headers, "Retry-After": "1"})
        return Answer(200, _as_json(execution), headers)

    try:
        if key is None:
            answer = await make()
        else:
            answer = await service.answers.get(key, hashlib.sha256(body).digest(), make)
    except OtherBody:
        raise web.HTTPUnprocessableEntity(text="this Idempotency-Key came with another body before") from None
    except Cancelled:
        raise web.HTTPConflict(text="the job of this Idempotency-Key was cancelled") from None
    return web.Response(status=answer.status, body=answer.body, headers=answer.headers, content_type="application/json")


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(_BODY_S):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body was not sent within {_BODY_S:.0f} s") from None


async def _parsed(body: bytes) -> Program:
    if len(body) < _IN_THREAD_BYTES:
        return Program.model_validate_json(body)
    return await asyncio.to_thread(Program.model_validate_json, body)


def _as_json(execution: Execution) -> bytes:
    return execution.model_dump_json().encode()


async def _cancel(request: web.Request) -> web.StreamResponse:
    """End a key's job; the key never runs again."""
    key = request.match_info["key"]
    if not _KEY.fullmatch(key):
        raise web.HTTPBadRequest(text="Idempotency-Key: 1 to 200 printable ASCII characters")
    return web.json_response({"was_under_way": await request.app[SERVICE].answers.cancel(key)})


async def _session(request: web.Request) -> web.StreamResponse:
    """A WebSocket that is a session."""
    return await hold_session(request, request.app[SERVICE])


async def _openapi(request: web.Request) -> web.StreamResponse:
    return web.json_response(request.app[_DOCUMENT])


async def _docs(request: web.Request) -> web.StreamResponse:
    policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return web.Response(text=openapi.page(request.app[_DOCUMENT]), content_type="text/html", headers=policy)


async def _guarantees(request: web.Request) -> web.StreamResponse:
    service = request.app[SERVICE]
    if service.guarantees is None:
        found = await asyncio.to_thread(service.backend.guarantees)
        service.guarantees = found.model_dump_json().encode()
    return web.Response(body=service.guarantees, content_type="application/json")


async def _health(request: web.Request) -> web.StreamResponse:
    queue = request.app[SERVICE].queue
    status = "draining" if queue.is_draining else "ok"
    return web.json_response(
        {"status": status, "slots": queue.slots, "running": queue.running, "waiting": queue.waiting}
    )


async def _metrics(request: web.Request) -> web.StreamResponse:
    return web.Response(body=request.app[SERVICE].metrics.text(), headers={"Content-Type": CONTENT_TYPE})


def _extra(handle: Callable[[bytes, Turns], Awaitable[tuple[int, Any]]]) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        service = request.app[SERVICE]
        service.queue.refuse_if_full()
        turns = Turns(service)
        status, answer = await handle(await _body(request), turns)
        return web.json_response(answer, status=status, headers={"X-Queue-Seconds": f"{turns.waited_s:.3f}"})

    handler.__doc__ = handle.__doc__
    return handler
