"""Blocking calls work where a loop already runs, and Ctrl-C there ends the work too."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from trainer.blocking import run_blocking


async def answer():
    await asyncio.sleep(0)
    return 42


async def fail():
    raise ValueError("no")


async def from_a_loop(coroutine):
    return run_blocking(coroutine)


def test_a_result_or_an_error_comes_back_with_and_without_a_running_loop():
    assert run_blocking(answer()) == asyncio.run(from_a_loop(answer())) == 42
    with pytest.raises(ValueError, match="no"):
        asyncio.run(from_a_loop(fail()))


def test_ctrl_c_in_a_notebook_ends_the_work_before_it_returns():
    """It once returned to the prompt while the run went on in its thread."""
    ended = []

    async def work():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    loop = asyncio.new_event_loop()  # as a notebook's: it handles no SIGINT of its own
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(from_a_loop(work()))
    loop.close()
    assert ended == ["cleaned up"]
