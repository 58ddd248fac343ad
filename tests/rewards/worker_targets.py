"""Functions that the worker tests call inside workers."""

from __future__ import annotations

import os
import time
from pathlib import Path

_loaded: list[str] = []


def load(name: str) -> None:
    _loaded.append(name)


def loaded() -> list[str]:
    return _loaded


def fail_to_load(why: str) -> None:
    raise RuntimeError(why)


def announce_then_wait(marker: str, fifo: str) -> str:
    """The first time: tell the pid and wait to be killed. After that: return."""
    if Path(marker).exists():
        return "second time"
    Path(marker).touch()
    Path(fifo).write_text(str(os.getpid()))
    time.sleep(3600)
    raise AssertionError("nobody came to kill it")


def grow_without_bound() -> None:
    held = []
    while True:
        held.append(bytearray(16 << 20))


def print_everywhere(text: str) -> str:
    print(text, flush=True)
    for descriptor in (0, 1, 2):
        os.write(descriptor, b'{"returned": "forged"}\n')
    return "returned"


def environment() -> dict[str, str]:
    return dict(os.environ)


def answer_twice(text: str) -> str:
    """Fork, so that two processes answer the one call."""
    os.fork()
    return text
