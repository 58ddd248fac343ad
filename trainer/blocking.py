"""Run a coroutine to its end from blocking code, also where an event loop already runs (a notebook)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result. A KeyboardInterrupt here cancels it and waits until it has cleaned up."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    ended = threading.Event()
    loop = asyncio.new_event_loop()
    task = loop.create_task(coroutine)

    def run() -> None:
        # What the task raised it keeps, to be raised where its result is asked for.
        with asyncio.Runner(loop_factory=lambda: loop) as runner, contextlib.suppress(BaseException):
            runner.get_loop().run_until_complete(task)
        ended.set()

    try:
        threading.Thread(target=run, name="veriward-run").start()
        ended.wait()
    except KeyboardInterrupt:
        with contextlib.suppress(RuntimeError):  # it ended just now, and its loop with it
            loop.call_soon_threadsafe(task.cancel)
        ended.wait()
        raise
    return task.result()
