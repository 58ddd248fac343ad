"""One thread that starts worker processes and kills those over their time or memory.

It is also the thread that starts them, because the kernel's parent-death signal follows the
thread that forked: a worker started by a short-lived thread would be killed when that one ends.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Literal

_TICK_S = 0.02


class Watch:
    """One call under observation. Its first limit covers start-up; `start_clock` begins the call's own."""

    def __init__(self, process: subprocess.Popen[bytes], startup_s: float, memory_mb: int) -> None:
        self.process = process
        self.memory_mb = memory_mb
        self.killed_for: Literal["time", "memory", ""] = ""
        self.clock_started = False
        self.was_on_cpu = False
        self._limit_s = startup_s
        self._started = time.monotonic()
        self._cpu_before = 0.0

    def start_clock(self, limit_s: float) -> None:
        self._cpu_before = _cpu_seconds(self.process.pid)
        self._started, self._limit_s = time.monotonic(), limit_s
        self.clock_started = True

    def check(self) -> None:
        if self.killed_for:
            return
        wall_s = time.monotonic() - self._started
        if wall_s > self._limit_s:
            # A call that computed for half of its time and more ran out of it by its own doing; one
            # that did not may have been starved by the machine.
            self.was_on_cpu = _cpu_seconds(self.process.pid) - self._cpu_before > 0.5 * self._limit_s
            self.killed_for = "time"
        elif _resident_mb(self.process.pid) > self.memory_mb:
            self.killed_for = "memory"
        if self.killed_for:
            Watchdog.kill(self.process)


class Watchdog:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: set[Watch] = set()
        self._orders: queue.SimpleQueue[tuple[Future[subprocess.Popen[bytes]], list[str], dict[str, str]] | None]
        self._orders = queue.SimpleQueue()
        self._is_closed = False
        threading.Thread(target=self._run, name="worker-watchdog", daemon=True).start()

    def spawn(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """Raises OSError when the process cannot be started, RuntimeError after `close`."""
        order: Future[subprocess.Popen[bytes]] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the worker pool is closed")
            self._orders.put((order, command, environment))
        return order.result()

    @contextlib.contextmanager
    def watch(self, process: subprocess.Popen[bytes], startup_s: float, memory_mb: int) -> Iterator[Watch]:
        watch = Watch(process, startup_s, memory_mb)
        with self._lock:
            self._watches.add(watch)
        self._orders.put(None)  # wake the thread
        try:
            yield watch
        finally:
            # Under the lock, so that a kill decided before cannot strike after the worker is released.
            with self._lock:
                self._watches.discard(watch)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self._orders.put(None)

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> None:
        """The whole process group, unless the process is already reaped (its number may be another's)."""
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if hasattr(os, "killpg"):
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()

    def _run(self) -> None:
        while not self._is_closed:
            with contextlib.suppress(queue.Empty):
                order = self._orders.get(timeout=_TICK_S if self._watches else None)
                if order is not None:
                    self._start(*order)
            with self._lock:
                for watch in self._watches:
                    watch.check()
        while not self._orders.empty():
            if order := self._orders.get():
                order[0].set_exception(RuntimeError("the worker pool is closed"))

    @staticmethod
    def _start(order: Future[subprocess.Popen[bytes]], command: list[str], environment: dict[str, str]) -> None:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the trainer; a worker it killed would look like a crash
            )
        except OSError as error:
            order.set_exception(error)
        else:
            order.set_result(process)


def _cpu_seconds(pid: int) -> float:
    """User and system time so far; 0 where /proc does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rsplit(b")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, AttributeError):
        return 0.0


def _resident_mb(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    except (OSError, IndexError, AttributeError):
        return 0.0
