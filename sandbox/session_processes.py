"""Inside a session's sandbox: the driver's view of every other process, and how it ends them.

The driver adopts orphans, so whatever a cell starts becomes its child sooner or later and can be
found and reaped. Standard library only; the text is sent to every backend.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time

_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_KILL_S = 5.0


class Others:
    """How they ended, by pid: an exit code, or minus the signal."""

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}
        self.news, self._teller = os.pipe()  # readable when a child has ended
        for descriptor in (self.news, self._teller):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._teller, warn_on_full_buffer=False)
        # A cell that signals its parent, or a whole group, means no harm to the session.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGCHLD})
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        _prctl(_PR_SET_DUMPABLE, 0)  # else a cell could open the driver's descriptors by /proc

    def fork(self) -> int:
        """A child of the driver for which nothing of the above holds."""
        child = os.fork()
        if not child:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.close(self.news)
            os.close(self._teller)
            _prctl(_PR_SET_DUMPABLE, 1)
            with contextlib.suppress(OSError):  # where it is denied, the job's own group can't be left either
                os.setsid()
        return child

    def reap(self) -> dict[int, int]:
        with contextlib.suppress(BlockingIOError):
            os.read(self.news, 4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self.ends[ended[0]] = exit_code(ended[1])
        return self.ends

    def end(self) -> None:
        """SIGKILL everything that may be signalled. The kernel lets no fork slip through a kill(-1)."""
        _signal(-1, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, 0)
                self.ends[pid] = exit_code(status)

    def end_one(self, pid: int) -> None:
        if pid not in self.reap():
            _signal(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def end_all_but(self, spared: int) -> bool:
        """False when that took too long; then all must go."""
        deadline = time.monotonic() + _KILL_S
        while time.monotonic() < deadline:
            _signal(-1, signal.SIGSTOP)  # again each time: a process that was not yet stopped may wake others
            children = _own_children()
            victims = _numbers() if children is None else children
            for pid in set(victims) - {spared, os.getpid()}:
                _signal(pid, signal.SIGKILL)
            time.sleep(0.001)  # for those to end, and for theirs to become the driver's
            if spared in self.reap():
                return False
            if children is None or children == [spared]:
                _signal(spared, signal.SIGCONT)
                return bool(victims)
        return False


def exit_code(status: int) -> int:
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def cpu_s() -> float:
    """User and system seconds of every process here that can be seen, and of those that they waited for."""
    own = os.times()
    total = own.children_user + own.children_system
    try:
        pids = [name for name in os.listdir("/proc") if name.isdigit() and name not in ("1", str(os.getpid()))]
    except OSError:
        return total
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        total += sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return total


def readable(descriptors: list[int], timeout_s: float | None) -> list[int]:
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return [fd for fd, _ in poller.poll(None if timeout_s is None else max(0, timeout_s * 1000) + 1)]


def _own_children() -> list[int] | None:
    """None where the kernel does not tell."""
    try:
        with open("/proc/thread-self/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return None


def _numbers() -> range:
    """Every pid up to the newest, since they are given in order; none where a full table allows no fork."""
    try:
        newest = os.fork()
    except OSError:
        return range(0)
    if not newest:
        os._exit(0)
    os.waitpid(newest, 0)
    return range(2, max(newest, os.getpid()) + 1)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(ctypes.c_int(option), ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)
