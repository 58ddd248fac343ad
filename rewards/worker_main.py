"""The inside of one worker process: read a call, run it, answer, until the parent is gone.

Calls and answers are JSON lines on the pipes the process was started with; they are moved to
private descriptors first, so that whatever a called function prints cannot reach the protocol.
Nothing in here bounds a call: the parent does, by killing the process.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

_PR_SET_PDEATHSIG = 1

_setups_done: set[str] = set()


def main(parent_pid: int, address_space_mb: int) -> None:
    calls, answers = _private_streams()
    _die_with(parent_pid)
    _limit_address_space(address_space_mb)
    for line in calls:
        _serve(line, answers)


def probe(value: Any) -> Any:
    """A call that a sound worker always answers; see `WorkerPool`."""
    return value


def _serve(line: bytes, answers: BinaryIO) -> None:
    """Two answers a call: `ready` once everything is imported and set up (the call's clock starts
    there), then how the function ended. Both bear the call's number: a fork that a function left
    behind may answer as well, and much later."""
    call = json.loads(line)
    number = call["number"]
    try:
        function = _loaded(call["target"])
        if call["setup"]:
            _set_up_once(*call["setup"])
    except BaseException as error:
        _send(answers, {"number": number, "unavailable": _described(error)})
        return
    _send(answers, {"number": number, "ready": True})
    try:
        answer = json.dumps({"number": number, "returned": function(*call["args"])})
    except MemoryError:
        # The address-space limit is the inner belt of the same limit the parent enforces on
        # resident memory, so it ends the worker in the same way.
        os._exit(1)
    except BaseException as error:
        answer = json.dumps({"number": number, "raised": _described(error)})
    answers.write(answer.encode() + b"\n")
    answers.flush()


def _set_up_once(target: str, args: list[Any]) -> None:
    key = json.dumps([target, args])
    if key not in _setups_done:
        _loaded(target)(*args)
        _setups_done.add(key)


def _loaded(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _described(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" ({last[0].filename}:{last[0].lineno})" if last else ""
    return f"{type(error).__name__}: {error}{place}"[:2000]


def _send(answers: BinaryIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _private_streams() -> tuple[BinaryIO, BinaryIO]:
    calls, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)
    return os.fdopen(calls, "rb"), os.fdopen(answers, "wb")


def _die_with(parent_pid: int) -> None:
    """A worker busy in a long call would not notice the end of its input; the kernel tells it."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(0)


def _limit_address_space(limit_mb: int) -> None:
    """Only the soft limit: a sandbox started from a worker must stay free to choose its own."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (limit_mb << 20, hard))
