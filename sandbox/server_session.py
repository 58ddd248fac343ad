"""Sessions of the server: one WebSocket each, and the session ends with it.

The first message is the session's limits; then each question, `{"run": ...}`, `{"write": ..., "content": ...}`
or `{"read": ...}`, has one answer. A client that dies, or goes silent for two heartbeats, takes its
session with it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
from typing import TYPE_CHECKING, Any

from aiohttp import WSCloseCode, WSMsgType, web
from pydantic import ValidationError

from sandbox.backend import Session
from sandbox.errors import VeriwardError
from sandbox.models import Limits

if TYPE_CHECKING:
    from sandbox.server_gate import Service

_log = logging.getLogger("sandbox.server")
_PER_SLOT = 4
_PENDING = 8  # questions of a client that does not wait for answers


class Sessions:
    """At most four a slot; the sockets of all, so that a drain can end them."""

    def __init__(self, slots: int, heartbeat_s: float) -> None:
        self.most, self.heartbeat_s = _PER_SLOT * slots, heartbeat_s
        self.open: set[web.WebSocketResponse] = set()
        self.busy: set[web.WebSocketResponse] = set()
        self.ending: set[asyncio.Task[None]] = set()
        self.is_draining = False
        self.none_open = asyncio.Event()
        self.none_open.set()

    async def drain(self) -> None:
        """End those between two cells now, the others with their cell; return when none is left."""
        self.is_draining = True
        await asyncio.gather(*(end(socket) for socket in self.open - self.busy))
        await self.none_open.wait()
        await asyncio.gather(*self.ending, return_exceptions=True)


async def end(socket: web.WebSocketResponse) -> None:
    await socket.close(code=WSCloseCode.GOING_AWAY, message=b"the server is about to stop")


async def hold_session(request: web.Request, service: Service) -> web.StreamResponse:
    """A session for as long as the WebSocket is open."""
    sessions = service.sessions
    kind = request.query.get("kind", "python")
    if kind not in ("python", "shell"):
        raise web.HTTPBadRequest(text="kind: a session is of kind python or shell")
    if "Origin" in request.headers:  # any page that a browser shows may open a WebSocket to loopback
        raise web.HTTPForbidden(text="a session is not for web pages")
    if sessions.is_draining:
        raise web.HTTPServiceUnavailable(text="the server is about to stop", headers={"Retry-After": "5"})
    if len(sessions.open) >= sessions.most:
        raise web.HTTPTooManyRequests(text=f"{sessions.most} sessions are open", headers={"Retry-After": "5"})
    # Closed by us, so that a client whose close has come back knows that nothing of its session lives.
    socket = web.WebSocketResponse(
        heartbeat=sessions.heartbeat_s, max_msg_size=request.client_max_size, autoclose=False
    )
    if not socket.can_prepare(request).ok:
        raise web.HTTPUpgradeRequired(text="a session is a WebSocket: connect with one")
    sessions.open.add(socket)
    sessions.none_open.clear()
    service.metrics.sessions.set(len(sessions.open))
    try:
        await socket.prepare(request)
        await _converse(socket, service, kind)
    finally:
        sessions.open.discard(socket)
        if not sessions.open:
            sessions.none_open.set()
        service.metrics.sessions.set(len(sessions.open))
    return socket


async def _converse(socket: web.WebSocketResponse, service: Service, kind: Any) -> None:
    first = await socket.receive()
    if first.type is not WSMsgType.TEXT:
        return
    try:
        limits = Limits.model_validate_json(first.data)
    except ValidationError as error:
        await socket.send_json(_failure(ValueError(f"limits: {error.errors()[0]['msg']}")))
        await socket.close(code=WSCloseCode.POLICY_VIOLATION)
        return
    session = service.backend.session(kind, limits=limits)
    questions: asyncio.Queue[str] = asyncio.Queue(_PENDING)
    answering = asyncio.create_task(_answer_all(socket, session, questions, service.sessions))
    try:
        async for message in socket:  # also during a cell: heartbeats are only seen by who reads
            if message.type is not WSMsgType.TEXT:
                break
            await questions.put(message.data)
    finally:
        # Of its own, since a lost connection cancels the handler, also in the middle of this.
        ending = asyncio.create_task(_end_session(answering, session))
        service.sessions.ending.add(ending)
        ending.add_done_callback(service.sessions.ending.discard)
        await asyncio.shield(ending)
    await socket.close()


async def _end_session(answering: asyncio.Task[None], session: Session) -> None:
    answering.cancel()
    await asyncio.wait([answering])
    await session.close()


async def _answer_all(
    socket: web.WebSocketResponse, session: Session, questions: asyncio.Queue[str], sessions: Sessions
) -> None:
    try:
        while not sessions.is_draining:
            text = await questions.get()
            sessions.busy.add(socket)
            await socket.send_json(await _answer(session, text))
            sessions.busy.discard(socket)
        await end(socket)
    except ConnectionError:
        pass  # the reading side sees it too
    except Exception:
        _log.exception("a bug of the server's")
        await socket.close(code=WSCloseCode.INTERNAL_ERROR)
    finally:
        sessions.busy.discard(socket)


async def _answer(session: Session, text: str) -> dict[str, Any]:
    try:
        question = json.loads(text)
        if isinstance(question, dict) and isinstance(question.get("run"), str):
            execution = await session.run(question["run"])
            return {"execution": execution.model_dump(mode="json")}
        if isinstance(question, dict) and isinstance(question.get("write"), str):
            await session.write_file(question["write"], _bytes(question.get("content")))
            return {"ok": True}
        if isinstance(question, dict) and isinstance(question.get("read"), str):
            return {"content": base64.urlsafe_b64encode(await session.read_file(question["read"])).decode()}
    except (ValueError, OSError, VeriwardError, RecursionError) as error:
        return _failure(error)
    return _failure(
        ValueError('ask with one of {"run": "..."}, {"write": "path", "content": "base64"}, {"read": "path"}')
    )


def _bytes(text: object) -> bytes:
    """From either alphabet, as the models take them."""
    if not isinstance(text, str):
        raise ValueError("content: must be base64 text")
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except binascii.Error as error:
        raise ValueError(f"content: no base64: {error}") from None


def _failure(error: Exception) -> dict[str, Any]:
    kinds = (FileNotFoundError, OSError, ValueError)
    kind = next((kind.__name__ for kind in kinds if isinstance(error, kind)), "VeriwardError")
    return {"error": " ".join(str(error).split())[:500], "type": kind}
