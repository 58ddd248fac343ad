"""A session on a server, over one WebSocket that is also its life: whoever goes first ends it.

One JSON question, one JSON answer. A connection that is lost loses the state; the next cell connects anew.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

import aiohttp
from pydantic import ValidationError

from sandbox.backend import SessionKind
from sandbox.errors import ConfigError, VeriwardError
from sandbox.models import Execution, Limits, check_path

_PAUSES_S = (0.1, 0.5, 2.0, 5.0)  # between attempts to connect
_LOST = "the connection to the server was lost, and the session's state with it; the next cell starts anew"
_RAISED = {"ValueError": ValueError, "FileNotFoundError": FileNotFoundError, "OSError": OSError}

Start = Callable[[Callable[[aiohttp.ClientSession], Coroutine[Any, Any, Any]]], Future[Any]]


class RemoteSession:
    """`sandbox.backend.Session` on a server. Its connection opens with the first use."""

    def __init__(self, start: Start, url: str, kind: SessionKind, limits: Limits) -> None:
        if kind not in ("python", "shell"):
            raise ConfigError(f"session({str(kind)[:40]!r}): a session is of kind 'python' or 'shell'")
        self.kind, self.limits = kind, limits
        self._start = start
        self._url = url
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._answers: asyncio.Queue[str | None] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[Any] | None = None
        self._is_closed = False
        self._turn = asyncio.Lock()

    async def run(self, cell: str) -> Execution:
        try:
            answer = await self._do({"run": cell})
        except OSError as error:
            return Execution(status="killed" if self._is_closed else "unavailable", error=str(error))
        try:
            return Execution.model_validate(answer["execution"])
        except (KeyError, ValidationError):
            raise VeriwardError(
                f"{self._url}: the answer to a cell is no Execution; is its server Veriward's?"
            ) from None

    async def write_file(self, path: str, content: bytes) -> None:
        check_path("path", path)
        await self._do({"write": path, "content": base64.urlsafe_b64encode(content).decode()})

    async def read_file(self, path: str) -> bytes:
        check_path("path", path)
        answer = await self._do({"read": path})
        return base64.urlsafe_b64decode(str(answer.get("content", "")))

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(RuntimeError):  # the sandbox was closed, and its sessions with it
            await asyncio.wrap_future(self._start(lambda http: self.end()))

    async def _do(self, question: dict[str, Any]) -> dict[str, Any]:
        """Raises what the server names, OSError when the connection is lost, RuntimeError after `close`."""
        async with self._turn:
            if self._is_closed:
                raise RuntimeError("this session is closed")
            answer = await asyncio.wrap_future(self._start(lambda http: self._ask(http, question)))
        if "error" in answer:
            raise _RAISED.get(str(answer.get("type")), VeriwardError)(str(answer["error"]))
        return answer

    async def end(self) -> None:
        """`close` for who is on the connection's own loop already."""
        self._is_closed = True
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        await self._drop()

    async def _ask(self, http: aiohttp.ClientSession, question: dict[str, Any]) -> dict[str, Any]:
        self._asking = asyncio.current_task()
        try:
            if self._is_closed:
                raise asyncio.CancelledError
            socket = self._socket = self._socket or await self._connected(http)
            await socket.send_json(question)
            answer = json.loads(await self._answers.get() or "")
        except asyncio.CancelledError:  # the cell, and the state with it
            await self._drop()
            if self._is_closed:
                raise OSError("the session was closed") from None
            raise
        except (aiohttp.ClientError, OSError, TypeError, ValueError, TimeoutError):
            await self._drop()
            raise OSError(f"{self._url}: {_LOST}") from None
        return answer if isinstance(answer, dict) else {}

    async def _connected(self, http: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        url = f"{self._url}/v1/session?kind={self.kind}"
        for pause_s in (*_PAUSES_S, None):
            try:
                socket = await http.ws_connect(url, heartbeat=20.0, max_msg_size=0)
            except aiohttp.WSServerHandshakeError as error:
                if error.status not in (429, 503) or pause_s is None:
                    raise VeriwardError(f"{self._url}: the session was refused with HTTP {error.status}") from None
            except (aiohttp.ClientConnectionError, OSError):
                if pause_s is None:
                    raise
            else:
                await socket.send_str(self.limits.model_dump_json())
                self._answers = asyncio.Queue()
                self._reading = asyncio.create_task(_read(socket, self._answers))
                return socket
            await asyncio.sleep(pause_s)
        raise AssertionError("the last attempt raises")

    async def _drop(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None and self._reading is not None:
            await socket.close()  # comes back once the server has ended the session
            await asyncio.wait([self._reading])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()


async def _read(socket: aiohttp.ClientWebSocketResponse, answers: asyncio.Queue[str | None]) -> None:
    """All the time, since heartbeats are only seen by who reads; None is the end."""
    try:
        async for message in socket:
            if message.type is aiohttp.WSMsgType.TEXT:
                answers.put_nowait(message.data)
    finally:
        answers.put_nowait(None)
