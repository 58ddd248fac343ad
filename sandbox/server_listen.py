"""Listening: one process that takes connections until it is told to stop, and then finishes what runs."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import resource
import signal
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohttp import web

from sandbox.errors import ConfigError
from sandbox.server_gate import SERVICE

_HEAD_S = 60.0  # from connecting to the end of a first request's head
_log = logging.getLogger("sandbox.server")


def serve(app: web.Application, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT, then finish what runs and return; a second signal ends at once.

    Prints one line with the address once it listens; port 0 takes a free one. Raises ConfigError for
    an app without token on a host that others can reach.
    """
    if app[SERVICE].token is None and not _is_loopback(host):
        raise ConfigError(f"without a token the server listens on loopback only, not {host}; give it a token")
    asyncio.run(_serve(app, host, port))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _serve(app: web.Application, host: str, port: int) -> None:
    service = app[SERVICE]
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_Loudness())
    _take_all_descriptors()
    loop.set_default_executor(ThreadPoolExecutor(service.queue.slots * 4 + 8, thread_name_prefix="server"))
    quiet = logging.getLogger("sandbox.server.http")  # what it says of broken requests may hold their bytes
    quiet.setLevel(logging.CRITICAL + 1)
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        auto_decompress=False,
        access_log=None,
        logger=quiet,
        shutdown_timeout=5.0,
    )
    await runner.setup()
    try:
        listener = await _listen(runner, service.heard, host, port)
        told = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _told_to_stop, number, told)
        bound = listener.sockets[0].getsockname()[1]
        print(f"sandbox server on http://{f'[{host}]' if ':' in host else host}:{bound}", flush=True)
        await told.wait()
        await asyncio.gather(service.queue.drain(), service.sessions.drain())
        listener.close()
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, heard: weakref.WeakSet[Any], host: str, port: int) -> asyncio.Server:
    """Take connections, and drop those that have not sent one request's head in time."""
    loop = asyncio.get_running_loop()
    server = runner.server
    assert server is not None

    def connected() -> asyncio.Protocol:
        protocol = server()
        loop.call_later(_HEAD_S, _drop_if_silent, protocol, heard)
        return protocol

    try:
        return await loop.create_server(connected, host, port, backlog=1024, reuse_address=True)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"can't listen on {host[:80]}:{port}: {reason}; choose another address or port") from None


def _drop_if_silent(protocol: Any, heard: weakref.WeakSet[Any]) -> None:
    transport = protocol.transport
    if transport is not None and transport not in heard:
        transport.abort()


def _take_all_descriptors() -> None:
    """The soft limit is often 1,024 where the hard one is far above; a connection and a job need some each."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class _Loudness:
    """What the loop reports, such as too many open files, once a second and not a thousand times."""

    def __init__(self) -> None:
        self._said_at = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if loop.time() - self._said_at >= 1.0:
            self._said_at = loop.time()
            error = context.get("exception")
            _log.error("%s: %s", context.get("message", "the event loop reports"), error)


def _told_to_stop(number: int, told: asyncio.Event) -> None:
    if told.is_set():  # the second time: as if there were no handler
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    told.set()
