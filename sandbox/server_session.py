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
from typing import TYPE_CHECKING, Any

from aiohttp import WSMsgType, web
from pydantic import ValidationError

from sandbox.backend import Session
from sandbox.errors import VeriwardError
from sandbox.models import Limits

if TYPE_CHECKING:
    from sandbox.server import Service

_PER_SLOT = 4
_PENDING = 8  # questions of a client that does not wait for answers


class Sessions:
    """At most so many at a time; the sockets of all, so that a drain can end them."""

    def __init__(self, most: int, heartbeat_s: float, message_bytes: int) -> None:
        self.most, self.heartbeat_s, self.message_bytes = most, heartbeat_s, message_bytes
        self.open: set[web.WebSocketResponse] = set()

    async def close(self) -> None:
        for socket in list(self.open):
            await socket.close(code=1001, message=b"the server is about to stop")


def most_sessions(slots: int) -> int:
    return _PER_SLOT * slots


async def hold_session(request: web.Request, service: Service) -> web.StreamResponse:
    """A session for as long as the WebSocket is open."""
    kind = request.query.get("kind", "python")
    if kind not in ("python", "shell"):
        raise web.HTTPBadRequest(text="kind: a session is of kind python or shell")
    if service.queue.is_draining:
        raise web.HTTPServiceUnavailable(text="the server is about to stop", headers={"Retry-After": "5"})
    if len(service.sessions.open) >= service.sessions.most:
        raise web.HTTPTooManyRequests(text=f"{service.sessions.most} sessions are open", headers={"Retry-After": "5"})
    sessions = service.sessions
    socket = web.WebSocketResponse(heartbeat=sessions.heartbeat_s, max_msg_size=sessions.message_bytes)
    if not socket.can_prepare(request).ok:
        raise web.HTTPUpgradeRequired(text="a session is a WebSocket: connect with one")
    await socket.prepare(request)
    service.sessions.open.add(socket)
    service.metrics.sessions.set(len(service.sessions.open))
    try:
        await _converse(socket, service, kind)
    finally:
        service.sessions.open.discard(socket)
        service.metrics.sessions.set(len(service.sessions.open))
    return socket


async def _converse(socket: web.WebSocketResponse, service: Service, kind: Any) -> None:
    first = await socket.receive()
    if first.type is not WSMsgType.TEXT:
        return
    try:
        limits = Limits.model_validate_json(first.data)
    except ValidationError as error:
        await socket.send_json(_failure(ValueError(f"limits: {error.errors()[0]['msg']}")))
        await socket.close(code=1008)
        return
    session = service.backend.session(kind, limits=limits)
    questions: asyncio.Queue[str] = asyncio.Queue(_PENDING)
    answering = asyncio.create_task(_answer_all(socket, session, questions))
    try:
        async for message in socket:  # also during a cell: heartbeats are only seen by who reads
            if message.type is not WSMsgType.TEXT:
                break
            await questions.put(message.data)
    finally:
        answering.cancel()
        await asyncio.wait([answering])
        await session.close()


async def _answer_all(socket: web.WebSocketResponse, session: Session, questions: asyncio.Queue[str]) -> None:
    while True:
        await socket.send_json(await _answer(session, await questions.get()))


async def _answer(session: Session, text: str) -> dict[str, Any]:
    try:
        question = json.loads(text)
        if isinstance(question, dict) and isinstance(question.get("run"), str):
            execution = await session.run(question["run"])
            return {"execution": execution.model_dump(mode="json")}
        if isinstance(question, dict) and isinstance(question.get("write"), str):
            content = base64.b64decode(str(question.get("content", "")), validate=True)
            await session.write_file(question["write"], content)
            return {"ok": True}
        if isinstance(question, dict) and isinstance(question.get("read"), str):
            return {"content": base64.b64encode(await session.read_file(question["read"])).decode()}
    except (ValueError, OSError, VeriwardError, binascii.Error, RecursionError) as error:
        return _failure(error)
    return _failure(
        ValueError('ask with one of {"run": "..."}, {"write": "path", "content": "base64"}, {"read": "path"}')
    )


def _failure(error: Exception) -> dict[str, Any]:
    kinds = (FileNotFoundError, OSError, ValueError)
    kind = next((kind.__name__ for kind in kinds if isinstance(error, kind)), "VeriwardError")
    return {"error": " ".join(str(error).split())[:500], "type": kind}
