"""What a slot does while its job runs: end it on time, then leave no process of it.

Runs as pid 1 of the job's pid namespace, so `kill(-1)` reaches the job and nothing else, and every
orphan becomes its own to reap. Standard library only, as all of a slot's side.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from typing import Any, NamedTuple, Protocol

from sandbox.fetch import send_files

HEADER_BYTES = 1 << 16


def readable(descriptors: list[int], timeout_s: float | None) -> list[int]:
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return [fd for fd, _ in poller.poll(None if timeout_s is None else max(0, timeout_s * 1000))]


class CpuMeter:
    """CPU of the slot's cgroup less the slot's own: also that of children whom nobody waited for."""

    def __init__(self, path: str) -> None:
        """`path`: the cgroup's count, or empty where there is none."""
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path else -1
        self._before = 0.0

    def __bool__(self) -> bool:
        return self._file >= 0

    def begin_job(self) -> None:
        self._before = self._total_s()

    def of_job_s(self) -> float:
        """0 where there is no count."""
        return self._total_s() - self._before

    def _total_s(self) -> float:
        if self._file < 0:
            return 0.0
        own = time.process_time()
        words = os.pread(self._file, 4096, 0).split()
        used = int(words[0]) / 1e9 if len(words) == 1 else int(words[1]) / 1e6  # v2: usage_usec N, and more
        return used - own


class Watches(NamedTuple):
    """Which sums over a job's processes are looked at. The sums by process need a `/proc`."""

    cpu: bool
    memory: bool
    meter: CpuMeter
    proc: int  # a descriptor of one that shows every process of a job


class Place(Protocol):
    """Where jobs run: a root of the slot's own, or the machine's seen through Landlock."""

    work_dir: str
    tmp_dir: str
    sci_dir: str

    def begin_job(self, disk_mb: int, inodes: int) -> None: ...

    def end_job(self) -> None: ...

    def is_full(self, pids: list[str]) -> bool: ...


class Watch:
    """One job as its slot sees it: ends it on time, kills what it left, adds up what it used."""

    tick_s = 0.1

    def __init__(
        self,
        control: socket.socket,
        parent: int,
        request: dict[str, Any],
        child: int,
        *,
        watches: Watches,
        place: Place,
    ) -> None:
        self.control, self.parent, self.request, self.child, self.watches = control, parent, request, child, watches
        self.place = place
        self.started = time.monotonic()
        self.limit = "-"
        self.status = 0
        self.cpu_s = 0.0
        self.peak_kb = 0

    def until_empty(self) -> bytes:
        """Wait for the job's end, leave no process of it, and return the line that reports it."""
        handle = os.pidfd_open(self.child)
        deadline = self.started + self.request["wall_s"]
        while True:
            ready = readable(
                [handle, self.control.fileno(), self.parent], min(deadline - time.monotonic(), self.tick_s)
            )
            if handle in ready:
                break
            if self.parent in ready:
                self._abandon()
            if self.control.fileno() in ready and self._told_to_stop():
                break
            if time.monotonic() >= deadline:
                self.limit = "wall"
                break
            if self._over_a_total():
                break
        wall_us = int((time.monotonic() - self.started) * 1e6)
        self._end_processes()
        self._reap()
        os.close(handle)
        if self.request["fetch"]:
            send_files(self.control, self.request["job"], self.place.work_dir, self.request["fetch"])
        cpu_us = int(1e6 * max(self.cpu_s, self.watches.meter.of_job_s()))
        line = f"done {self.request['job']} {self.status} {cpu_us} {self.peak_kb} {wall_us} {self.limit}"
        return line.encode()

    def _told_to_stop(self) -> bool:
        order = self.control.recv(HEADER_BYTES)
        if not order:
            self._abandon()  # the parent let go of the socket
        if order != b"kill %d" % self.request["job"]:
            return False
        self.limit = "told"
        return True

    def _abandon(self) -> None:
        """The parent is gone: end, and with pid 1 all of the namespace."""
        os._exit(0)

    def _end_processes(self) -> None:
        """SIGKILL everything else in the namespace. The kernel does not let a fork slip through a kill(-1)."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, 0)
            except ChildProcessError:
                return
            self.cpu_s += usage.ru_utime + usage.ru_stime
            self.peak_kb = max(self.peak_kb, usage.ru_maxrss)
            if pid == self.child:
                self.status = status

    def _over_a_total(self) -> bool:
        """Sums over all processes of the job, which no rlimit bounds."""
        by_process = self.watches.memory or (self.watches.cpu and not self.watches.meter)
        pids = [name for name in os.listdir(self.watches.proc) if name.isdigit() and name != "1"] if by_process else []
        if self._cpu_s(pids) > self.request["cpu_s"]:
            self.limit = "cpu"
        elif self.watches.memory and memory_kb(self.watches.proc, pids) > self.request["memory_mb"] * 1024:
            self.limit = "memory"
        return self.limit != "-"

    def _cpu_s(self, pids: list[str]) -> float:
        if self.watches.meter:
            return self.watches.meter.of_job_s()
        return sum(cpu_ticks(self.watches.proc, pid) for pid in pids) / os.sysconf("SC_CLK_TCK")


def cpu_ticks(proc: int, pid: str) -> int:
    """User and system time of a process and of the children it waited for."""
    try:
        fields = _read(proc, f"{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return 0
    return sum(int(field) for field in fields[11:15])


def memory_kb(proc: int, pids: list[str]) -> int:
    """Memory of all processes together, pages shared by forks counted once (proportional set size)."""
    return sum(_kb_of(proc, pid, "smaps_rollup", (b"Pss_Anon:", b"Pss_Shmem:")) for pid in pids)


def _kb_of(proc: int, pid: str, name: str, keys: tuple[bytes, ...]) -> int:
    try:
        lines = _read(proc, f"{pid}/{name}").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(keys))
    except PermissionError:  # of another uid, or hidden by itself: what is shared counts for each that has it
        return 0 if name == "status" else _kb_of(proc, pid, "status", (b"RssAnon:", b"RssShmem:"))
    except (OSError, ValueError):
        return 0


def _read(proc: int, path: str) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc), "rb") as file:
        return file.read()
