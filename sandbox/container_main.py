"""Pid 1 of a sandbox container: runs one job at a time and tells its parent how it went.

Its text is sent along as `python3 -c`: standard library only, for Python 3.8 and later. Jobs share
its uid, so it is undumpable, takes no signal from them that it has no handler for, and their filter
lets them change the limits or priority of nothing but themselves.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import select
import signal
import sys
import time
from typing import Any

from sandbox.container_files import MOUNT, SHM, WORK, every_file, open_beneath, wipe, write_all
from sandbox.container_start import PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS, prctl, start_job
from sandbox.container_wire import CHUNK, WINDOW, Wire

TICK_S = 0.1
CGROUPS = (
    ("/sys/fs/cgroup/memory/memory.oom_control", "/sys/fs/cgroup/memory/memory.stat", ("total_rss", "total_shmem")),
    ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory.stat", ("anon", "shmem")),
)


def main() -> None:
    close_inherited()
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a handler would make pid 1 reachable by its jobs
    woken, waker = os.pipe()
    for descriptor in (woken, waker):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    wire = Wire()
    cgroup = next((row for row in CGROUPS if os.access(row[0], os.R_OK) and os.access(row[1], os.R_OK)), None)
    wire.send_json("R", introduction(cgroup is not None))
    wire.flush()
    _, payload = wire.await_frame()
    code = ctypes.create_string_buffer(payload, len(payload))
    while True:
        job = Job(wire, woken, cgroup, code)
        job.receive()
        job.run()
        wire.flush()


def close_inherited() -> None:
    """Runtimes have leaked descriptors of the host into containers; all that Python opens closes on exec."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))


def introduction(has_cgroup: bool) -> dict[str, Any]:
    return {
        "python": sys.executable,
        "version": list(sys.version_info[:2]),
        "machine": platform.machine(),
        "cgroup": has_cgroup,
        "uid": os.getuid(),
        "writable": writable_mounts(),
    }


def writable_mounts() -> list[str]:
    """Where a job could leave something for the next beside what is wiped: an image's volumes."""
    with open("/proc/self/mountinfo") as file:
        points = [line.split()[4].encode().decode("unicode_escape") for line in file]
    own = (MOUNT, SHM)
    return [path for path in points if path not in own and os.path.isdir(path) and os.access(path, os.W_OK)]


class Job:
    """One command: what it may use, what it used, and how it ended."""

    def __init__(self, wire: Wire, woken: int, cgroup: Any, filter_code: Any) -> None:
        self.wire, self.woken, self.cgroup, self.filter_code = wire, woken, cgroup, filter_code
        self.request: dict[str, Any] = {}
        self.failure = ""
        self.limit = ""
        self.child = -1
        self.status: int | None = None
        self.cpu_s = 0.0
        self.peak_kb = 0
        self.input = bytearray()
        self.closes_input = False
        self.stdin = -1
        self.streams: dict[int, str] = {}
        self.output_bytes = 0
        self.oom_kills = self.count("oom_kill", 0)
        self.baseline_kb = self.memory_kb()

    def receive(self) -> None:
        """The request and its files, until `G`: go. A file that can't be written is our failure, told at the end."""
        os.mkdir(WORK, 0o700)
        os.chdir(WORK)
        file = -1
        while True:
            kind, payload = self.wire.await_frame()
            try:
                if kind == "J":
                    self.request = json.loads(payload)
                elif kind == "F":
                    file = self.open_file(file, payload.decode())
                elif kind == "D":
                    write_all(file, payload)
                elif kind == "G":
                    break
                elif kind == "K":
                    self.told(payload)
            except OSError as error:
                self.failure = self.failure or f"its files could not be laid out: {error.strerror}"
        if file >= 0:
            os.close(file)

    def open_file(self, last: int, path: str) -> int:
        if last >= 0:
            os.close(last)
        if "/" in path:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        mode = 0o755 if self.request["are_executable"] else 0o644
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)

    def run(self) -> None:
        started = time.monotonic()
        if not self.failure and not self.limit:
            self.child, (self.stdin, out, err), self.failure = start_job(self.request, self.filter_code)
            self.streams = {out: "O", err: "X"}
            self.attend(started + self.request["wall_s"])
        wall_s = time.monotonic() - started
        self.kill_all()
        self.drain()
        report = {
            "job": self.request.get("job"),
            "status": self.status or 0,
            "limit": self.limit,
            "cpu_s": self.cpu_s,
            "wall_s": wall_s,
            "peak_kb": self.peak_kb,
            "oom": self.count("oom_kill", 0) > self.oom_kills,
            "failure": self.failure,
        }
        if self.child >= 0 and not self.failure:
            self.fetch()
        os.chdir("/")
        report["is_clean"] = wipe(MOUNT) and wipe(SHM)
        self.wire.send_json("T", report)

    def attend(self, deadline: float) -> None:
        """Move bytes and watch limits until the job's first process ends or a limit says so."""
        look_at = time.monotonic() + TICK_S
        self.hear()  # what came in one read with the order to go
        while self.status is None and not self.limit:
            now = time.monotonic()
            if now >= deadline:
                self.limit = "wall"
                return
            if now >= look_at:
                self.look()
                look_at = now + TICK_S
            self.move(min(deadline, look_at) - now)
            self.reap()

    def move(self, timeout_s: float) -> None:
        poller = select.poll()
        poller.register(0, select.POLLIN)
        poller.register(self.woken, select.POLLIN)
        if self.wire.unsent():
            poller.register(1, select.POLLOUT)
        if self.wire.unsent() < WINDOW:
            for descriptor in self.streams:
                poller.register(descriptor, select.POLLIN)
        if self.stdin >= 0 and self.input:
            poller.register(self.stdin, select.POLLOUT)
        for descriptor, _ in poller.poll(max(0, timeout_s * 1000) + 1):
            if descriptor == 0:
                self.wire.read()
                self.hear()
            elif descriptor == 1:
                self.wire.write()
            elif descriptor == self.woken:
                os.read(self.woken, CHUNK)
            elif descriptor == self.stdin:
                self.feed()
            elif descriptor in self.streams:
                self.relay(descriptor)

    def hear(self) -> None:
        while True:
            frame = self.wire.next_frame()
            if frame is None:
                return
            kind, payload = frame
            if kind == "I":
                if self.stdin >= 0:
                    self.input += payload
                else:
                    self.wire.send("W", b"%d" % len(payload))
            elif kind == "E":
                self.closes_input = True
                self.end_input_if_due()
            elif kind == "K":
                self.told(payload)
            elif kind == "M":
                before, self.oom_kills = self.oom_kills, self.count("oom_kill", 0)
                self.wire.send("M", b"%d" % (self.oom_kills > before))

    def told(self, job: bytes) -> None:
        """To stop; an order that came late is for a job before this one."""
        if job == b"%d" % self.request.get("job", -1):
            self.limit = self.limit or "told"

    def feed(self) -> None:
        """Pass input on, and tell the parent how much room that made."""
        try:
            count = os.write(self.stdin, self.input[:CHUNK])
        except BlockingIOError:
            return
        except OSError:
            count, self.closes_input = len(self.input), True
        del self.input[:count]
        self.wire.send("W", b"%d" % count)
        self.end_input_if_due()

    def end_input_if_due(self) -> None:
        if self.closes_input and not self.input and self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1
            self.wire.send("Z")

    def relay(self, descriptor: int) -> bool:
        """One read of the job's output; False once there is no more now."""
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return False
        kind = self.streams[descriptor]
        if not data:
            os.close(descriptor)
            del self.streams[descriptor]
            self.wire.send("C", kind.encode())
            return False
        room = self.request["output_bytes"] - self.output_bytes if self.request["keeps_output"] else len(data)
        self.output_bytes += len(data)
        if len(data) > room:
            self.limit = self.limit or "output"
        if room > 0:
            self.wire.send(kind, data[:room])
        return True

    def drain(self) -> None:
        """Every writer is dead: what the pipes hold now is all there will be."""
        for descriptor in list(self.streams):
            while self.relay(descriptor):
                self.wire.flush()
        for descriptor in (*self.streams, self.stdin):
            if descriptor >= 0:
                os.close(descriptor)
        self.streams, self.stdin = {}, -1

    def kill_all(self) -> None:
        """End every other process here, whatever it became; the kernel lets no fork slip through a kill(-1)."""
        while self.child >= 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            if not self.reap_one(0):
                return

    def reap(self) -> None:
        while self.reap_one(os.WNOHANG):
            pass

    def reap_one(self, options: int) -> bool:
        try:
            pid, status, usage = os.wait4(-1, options)
        except ChildProcessError:
            return False
        if pid == 0:
            return False
        self.cpu_s += usage.ru_utime + usage.ru_stime
        self.peak_kb = max(self.peak_kb, usage.ru_maxrss)
        if pid == self.child:
            self.status = status
        return True

    def look(self) -> None:
        """Sums over all processes of the job, which no rlimit bounds."""
        ticks = 0
        for name in os.listdir("/proc"):
            if name.isdigit() and name != "1":
                try:
                    with open(f"/proc/{name}/stat", "rb") as file:
                        ticks += sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))
                except OSError:
                    continue
        if self.cpu_s + ticks / os.sysconf("SC_CLK_TCK") > self.request["cpu_s"]:
            self.limit = self.limit or "cpu"
        self.peak_kb = max(self.peak_kb, self.memory_kb() - self.baseline_kb)

    def memory_kb(self) -> int:
        return sum(self.count(name, 1) for name in self.cgroup[2]) // 1024 if self.cgroup else 0

    def count(self, name: str, which: int) -> int:
        if self.cgroup is None:
            return 0
        try:
            with open(self.cgroup[which]) as file:
                return sum(int(line.split()[1]) for line in file if line.split()[0] == name)
        except OSError:
            return 0

    def fetch(self) -> None:
        """Send the files asked for: regular ones, reached through real directories only."""
        room = self.request["disk_mb"] << 20  # more can only be holes of sparse files
        for path in self.request["fetch"] if self.request["fetch"] != ["*"] else every_file():
            file = open_beneath(path)
            if file < 0:
                continue
            size = os.fstat(file).st_size
            if size <= room:
                room -= size
                self.wire.send("P", path.encode("utf-8", "surrogateescape"))
                self.send_content(file)
            os.close(file)

    def send_content(self, file: int) -> None:
        while True:
            data = os.read(file, CHUNK)
            if not data:
                return
            self.wire.send("D", data)
            self.wire.flush()
