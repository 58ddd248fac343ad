"""The remote sandbox: the same contract as the local one, over a server's HTTP.

Every run carries a key of its own, so that it is sent again after a lost connection or a restarted
server and still counts once. A server that stays away is an `unavailable` execution, a request that
it refuses for good a VeriwardError.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import os
import random
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
from pydantic import BaseModel, ValidationError

from sandbox.backend import TOKEN, Session, SessionKind
from sandbox.errors import ConfigError, VeriwardError
from sandbox.guarantees import Guarantees
from sandbox.models import Execution, Limits, Program

if TYPE_CHECKING:
    from sandbox.remote_session import RemoteSession

_CONNECT_S = 10.0
_CANCEL_S = 5.0  # to tell the server that a job isn't wanted any more
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_AGAIN = {408, 429, 500, 502, 503, 504}
_LOST = (aiohttp.ClientError, TimeoutError, ConnectionError)

Work = Callable[[aiohttp.ClientSession], Coroutine[Any, Any, Any]]
_live: weakref.WeakSet[RemoteSandbox] = weakref.WeakSet()


class RemoteSandbox:
    """Runs programs on a `veriward sandbox serve`. Safe from any thread and any event loop."""

    def __init__(self, url: str, *, token: str | None = None, patience_s: float = 60.0) -> None:
        """`patience_s`: how long a run may take beyond the program's own wall limits, queue and retries included.

        Connects with its first use. Raises ConfigError for a URL that is none.
        """
        if not _is_server_url(url):
            raise ConfigError("RemoteSandbox: the URL must look like http://host:port; a token goes into token=")
        if token is not None and not TOKEN.fullmatch(token):
            raise ConfigError("RemoteSandbox: a token is printable ASCII without spaces")
        if patience_s <= 0:
            raise ConfigError(f"RemoteSandbox(patience_s={patience_s}): must be positive")
        self.url = url.rstrip("/")
        self.patience_s = patience_s
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._wire: _Wire | None = None
        self._sessions: weakref.WeakSet[RemoteSession] = weakref.WeakSet()
        _live.add(self)

    def __repr__(self) -> str:
        return f"RemoteSandbox({self.url!r})"

    def run_sync(self, program: Program) -> Execution:
        """Run to the end. What the program does is in the Execution, never an exception.

        Raises VeriwardError when the server refuses the request as such (its token, its size).
        """
        future = self._start(lambda http: self._run(http, program))
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def run(self, program: Program) -> Execution:
        """`run_sync` without blocking the loop. Cancelling it ends the job."""
        return await asyncio.wrap_future(self._start(lambda http: self._run(http, program)))

    def session(self, kind: SessionKind = "python", *, limits: Limits | None = None) -> Session:
        """State kept between cells on the server, over one connection; see `sandbox.backend.Session`.

        A connection that is lost loses the state: the cell is `unavailable`, the next one starts anew.
        """
        from sandbox.remote_session import RemoteSession

        session = RemoteSession(self._start, self.url, kind, limits or Limits())
        self._sessions.add(session)
        return session

    def guarantees(self) -> Guarantees:
        """What the server's own backend enforces. Raises VeriwardError where nothing can run or nobody answers."""
        status, body = self._start(
            lambda http: self._patiently(http, "GET", "/v1/guarantees", self.patience_s)
        ).result()
        if status != 200:
            raise VeriwardError(f"{self.url}: {_reason(body) or f'HTTP {status}'}")
        return self._parsed(Guarantees, body)

    def close(self) -> None:
        """Cancel what runs and disconnect. Later use raises RuntimeError."""
        with self._lock:
            self._is_closed = True
            wire, self._wire = self._wire, None
        if wire is not None:
            wire.close([session.end() for session in list(self._sessions)])

    def _start(self, work: Work) -> Future[Any]:
        """On a private loop, since a connection belongs to one loop and a caller may bring many."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError("this RemoteSandbox is closed")
            if self._wire is None:
                self._wire = _Wire(self._headers)
            return self._wire.start(work)

    async def _run(self, http: aiohttp.ClientSession, program: Program) -> Execution:
        body = program.model_dump_json().encode()
        walls_s = program.limits.wall_s + (program.compile_limits.wall_s if program.spec.compile else 0.0)
        key = uuid.uuid4().hex
        try:
            status, answer = await self._patiently(http, "POST", "/v1/run", self.patience_s + walls_s, body, key)
        except asyncio.CancelledError:
            await self._give_up(http, key)
            raise
        except _Impatient as error:
            await self._give_up(http, key)
            return Execution(status="unavailable", error=str(error))
        if status != 200:
            raise VeriwardError(f"{self.url}: {_reason(answer) or f'HTTP {status}'}")
        return self._parsed(Execution, answer)

    async def _patiently(
        self,
        http: aiohttp.ClientSession,
        method: str,
        path: str,
        time_s: float,
        body: bytes | None = None,
        key: str | None = None,
    ) -> tuple[int, bytes]:
        """The first answer that is for good. Raises _Impatient when there is none in time."""
        deadline = time.monotonic() + time_s
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
        pause_s, cause = _FIRST_PAUSE_S, "no answer"
        while (left_s := deadline - time.monotonic()) > 0:
            timeout = aiohttp.ClientTimeout(total=left_s, sock_connect=_CONNECT_S)
            asked_s = 0.0
            try:
                async with http.request(
                    method, self.url + path, data=body, headers=headers, timeout=timeout, allow_redirects=False
                ) as response:
                    answer = await response.read()
                    if response.status not in _AGAIN:
                        return response.status, answer
                    cause = f"HTTP {response.status}: {_reason(answer)}"
                    asked_s = _seconds(response.headers.get("Retry-After"))
            except _LOST as error:
                cause = f"{type(error).__name__}: {error}"[:200]
            jittered_s = max(asked_s, pause_s) * random.uniform(0.8, 1.2)
            await asyncio.sleep(max(0.0, min(jittered_s, deadline - time.monotonic())))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise _Impatient(f"{self.url}: no result within {time_s:.0f} s; at last {cause}")

    async def _give_up(self, http: aiohttp.ClientSession, key: str) -> None:
        """Best effort: a server that can't be told forgets the key by itself."""
        timeout = aiohttp.ClientTimeout(total=_CANCEL_S)
        with contextlib.suppress(*_LOST):
            async with http.delete(f"{self.url}/v1/run/{key}", timeout=timeout):
                pass

    def _parsed(self, model: type[Any], body: bytes) -> Any:
        try:
            return model.model_validate_json(body)
        except ValidationError:
            raise VeriwardError(
                f"{self.url}: the answer is no {model.__name__}; is this the address of a Veriward sandbox server?"
            ) from None

    def __enter__(self) -> RemoteSandbox:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Impatient(VeriwardError):
    """No final answer in time."""


class _Reason(BaseModel):
    error: str = ""


def _is_server_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port  # which is read, and checked, only now
    except ValueError:
        return False
    is_plain = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.username or parts.query)
    return is_plain and port != 0


def _reason(body: bytes) -> str:
    try:
        return " ".join(_Reason.model_validate_json(body).error.split())[:300]
    except ValidationError:
        return ""


def _seconds(retry_after: str | None) -> float:
    return min(float(retry_after), 60.0) if retry_after and retry_after.isdigit() else 0.0


class _Wire:
    """A thread with an event loop and the connections that live on it."""

    http: aiohttp.ClientSession

    def __init__(self, headers: dict[str, str]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox-remote", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(headers), self._loop).result()

    async def _open(self, headers: dict[str, str]) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        self.http = aiohttp.ClientSession(headers=headers, connector=connector, trust_env=False)

    def start(self, work: Work) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work(self.http), self._loop)

    def close(self, farewells: list[Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(self._end(farewells), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self, farewells: list[Coroutine[Any, Any, None]]) -> None:
        if farewells:
            await asyncio.wait([asyncio.ensure_future(farewell) for farewell in farewells], timeout=_CANCEL_S)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_CANCEL_S)
        await self.http.close()


def _after_fork_in_child() -> None:
    """The parent's threads aren't here, and one of them may have held the lock.

    Its connections must never be finalised here, not even at exit: that would take them out of the
    epoll set that both processes share. Hence a reference that nobody gives back.
    """
    for sandbox in list(_live):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(sandbox._wire))
        sandbox._lock, sandbox._wire = threading.Lock(), None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@atexit.register
def _close_all() -> None:
    for sandbox in list(_live):
        sandbox.close()
