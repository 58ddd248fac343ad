"""Worker processes for whatever reads the policy's text: parsers, symbolic algebra, an author's `verify`.

A call is bounded in wall time and memory by killing its worker from outside, so no text can hang
or grow the trainer. Each call ends in exactly one `Outcome` and never raises for what happened in
the worker. What a reply can cause (killed on time or memory) is told apart from what it cannot
(no sound worker to be had): only the latter is `unavailable`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from rewards.watchdog import Watch, Watchdog

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rewards.worker_main import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
_KEPT_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "LANG", "LC_ALL")
_PROBE = "rewards.worker_main:probe"
_PROBE_LIMIT_S = 10.0

Setup = tuple[str, Sequence[Any]]


@dataclass(frozen=True)
class Outcome:
    """How one call ended.

    returned     `value` is what the function returned, through JSON.
    raised       the function's own exception, as text in `error`.
    timeout      killed at its time limit; on CPU all along, or again on a fresh and sound worker.
    crashed      its worker died or was killed on memory, twice, the second time on a fresh and
                 sound one.
    unavailable  no sound worker could be had, or the target or its setup does not load: says
                 nothing about the arguments.
    """

    status: Literal["returned", "raised", "timeout", "crashed", "unavailable"]
    value: Any = None
    error: str = ""


class WorkerPool:
    """`workers` persistent processes, started when first needed, replaced when killed or dead.

    workers            processes at most, hence calls at the same time; further calls queue, and
                       waiting in the queue is never counted against a call's limit.
    memory_mb          resident memory of one worker above which it is killed (where /proc tells);
                       its address space is limited too, to twice that and a half GB more.
    startup_timeout_s  for starting a worker, importing the target and running its setup.
    max_calls          after so many calls a worker is replaced, so that what libraries cache and
                       leak stays bounded.
    """

    def __init__(
        self,
        workers: int = 2,
        memory_mb: int = 1024,
        startup_timeout_s: float = 60.0,
        max_calls: int = 5000,
    ) -> None:
        self.memory_mb = memory_mb
        self.startup_timeout_s = startup_timeout_s
        self.max_calls = max_calls
        self._owner_pid = os.getpid()
        self._numbers = itertools.count()
        self._watchdog = Watchdog()
        # Last in, first out: a warm worker is preferred over one not started yet.
        self._slots: queue.LifoQueue[_Slot] = queue.LifoQueue()
        self._all_slots = [_Slot(self) for _ in range(workers)]
        for slot in self._all_slots:
            self._slots.put(slot)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="worker-call")
        atexit.register(self.close)

    def call(self, target: str, *args: Any, timeout_s: float, setup: Setup | None = None) -> Outcome:
        """Run `package.module:function` on JSON arguments in a worker; block until it ended.

        Safe from any thread, a running event loop's included (which it blocks; there use
        `call_async`). `setup = (target, args)` runs first, once per worker, outside the time
        limit: the place for slow imports and for loading what later calls find in module globals.
        """
        if os.getpid() != self._owner_pid:
            return Outcome("unavailable", error="this pool belongs to the process that forked this one")
        request = self._request(target, args, setup)
        slot = self._slots.get()
        try:
            return self._judged(slot, request, timeout_s)
        finally:
            self._slots.put(slot)

    async def call_async(self, target: str, *args: Any, timeout_s: float, setup: Setup | None = None) -> Outcome:
        """`call` without blocking the running loop. A cancelled wait leaves the worker to its limit."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._threads, lambda: self.call(target, *args, timeout_s=timeout_s, setup=setup)
        )

    def close(self) -> None:
        """Kill every worker. Calls in progress end as `unavailable`. In a forked child, nothing."""
        if os.getpid() != self._owner_pid:
            return
        atexit.unregister(self.close)
        self._watchdog.close()
        for slot in self._all_slots:
            slot.discard()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _request(self, target: str, args: Sequence[Any], setup: Setup | None) -> _Request:
        number = next(self._numbers)
        line = json.dumps({"number": number, "target": target, "args": args, "setup": setup})
        return _Request(number, line.encode() + b"\n")

    def _judged(self, slot: _Slot, request: _Request, timeout_s: float) -> Outcome:
        """One attempt, and where the worker was lost a second on a fresh worker that has answered
        a known-good probe: lost again, the cause is the request; no probe answered, it is us."""
        first = slot.attempt(request, timeout_s)
        if first.status not in ("timeout", "crashed") or first.is_own_doing:
            return first.outcome()
        for _ in range(2):
            if slot.attempt(self._request(_PROBE, ["sound"], None), _PROBE_LIMIT_S).value == "sound":
                second = slot.attempt(request, timeout_s)
                # Lost twice before the call's own clock started: start-up and setup are not the reply's.
                return second.outcome() if second.was_ready else Outcome("unavailable", error=second.error)
        return Outcome("unavailable", error="a fresh worker process does not answer a known-good probe")


class _Request(NamedTuple):
    number: int
    line: bytes


@dataclass(frozen=True)
class _Attempt:
    status: Literal["returned", "raised", "timeout", "crashed", "unavailable"]
    value: Any = None
    error: str = ""
    is_own_doing: bool = False
    was_ready: bool = True

    def outcome(self) -> Outcome:
        return Outcome(self.status, self.value, self.error)


class _Slot:
    """Room for one worker process; used by one call at a time."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._process: subprocess.Popen[bytes] | None = None
        self._calls = 0

    def attempt(self, request: _Request, timeout_s: float) -> _Attempt:
        pool = self._pool
        try:
            process = self._sound_process()
        except (OSError, RuntimeError) as error:
            return _Attempt("unavailable", error=f"cannot start a worker process: {error}")
        with pool._watchdog.watch(process, pool.startup_timeout_s, pool.memory_mb) as watch:
            answer = self._exchange(process, request, watch, timeout_s)
        if watch.killed_for or answer is None:
            self.discard()
        if answer is None:
            return self._lost(watch, timeout_s)
        if "returned" in answer:
            return _Attempt("returned", value=answer["returned"])
        if "raised" in answer:
            return _Attempt("raised", error=answer["raised"])
        return _Attempt("unavailable", error=answer["unavailable"])

    def discard(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            Watchdog.kill(process)
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # an unsent request has nowhere to go
                    if stream:
                        stream.close()

    def _exchange(
        self, process: subprocess.Popen[bytes], request: _Request, watch: Watch, timeout_s: float
    ) -> dict[str, Any] | None:
        """The worker's last answer to `request`; None when it ended instead, or answered anything else."""
        assert process.stdin
        assert process.stdout
        self._calls += 1
        try:
            process.stdin.write(request.line)
            process.stdin.flush()
            answer = _answer_to(request, process.stdout.readline(), "ready", "unavailable")
            if answer is None or "unavailable" in answer:
                return answer
            watch.start_clock(timeout_s)
            return _answer_to(request, process.stdout.readline(), "returned", "raised")
        except (OSError, ValueError):
            return None

    def _lost(self, watch: Watch, timeout_s: float) -> _Attempt:
        if not watch.clock_started:
            cause = "was killed before it was ready" if watch.killed_for else "ended before it was ready"
            return _Attempt("crashed", error=f"the worker {cause}", was_ready=False)
        if watch.killed_for == "time":
            return _Attempt("timeout", error=f"over its {timeout_s:g} s", is_own_doing=watch.was_on_cpu)
        if watch.killed_for == "memory":
            return _Attempt("crashed", error=f"over {self._pool.memory_mb} MB")
        return _Attempt("crashed", error="its worker process died or answered out of turn")

    def _sound_process(self) -> subprocess.Popen[bytes]:
        if self._process is not None and (self._calls >= self._pool.max_calls or self._process.poll() is not None):
            self.discard()
        if self._process is None:
            self._calls = 0
            self._process = self._pool._watchdog.spawn(self._command(), _environment())
        return self._process

    def _command(self) -> list[str]:
        path = json.dumps([entry or os.getcwd() for entry in sys.path])
        address_space_mb = 2 * self._pool.memory_mb + 512
        return [sys.executable, "-P", "-c", _BOOT, path, str(os.getpid()), str(address_space_mb)]


def _answer_to(request: _Request, line: bytes, *kinds: str) -> dict[str, Any] | None:
    """The line, when it answers this request in one of these ways. Raises ValueError when it is not JSON."""
    answer = json.loads(line) if line else None
    if not isinstance(answer, dict) or answer.get("number") != request.number:
        return None
    return answer if any(kind in answer for kind in kinds) else None


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    # A fixed hash seed: set order decides which of several paths sympy takes, hence its time.
    return kept | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


_default: tuple[int, WorkerPool] | None = None
_default_lock = threading.Lock()


def default_pool() -> WorkerPool:
    """The pool of this process, made when first asked for; a forked child makes its own."""
    global _default
    with _default_lock:
        if _default is None or _default[0] != os.getpid():
            _default = (os.getpid(), WorkerPool())
        return _default[1]
