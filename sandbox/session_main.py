"""The driver of a session: runs inside the sandbox as the job's own process and keeps the state.

It answers JSON lines on the descriptors it was started with; cells never hold those, only pipes that
the driver reads. A `python` cell runs in the holder, which forks a sleeping snapshot of itself
first: when the cell takes the holder down, or is ended, the snapshot wakes with the variables as
they were. A `shell` cell is a new bash that sources what the last one saved. Standard library
only; the text is sent to every backend.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import ctypes
import json
import linecache
import os
import select
import signal
import stat
import sys
import time
import traceback
import types
import warnings
from typing import Any, NoReturn

_CHUNK = 48 << 10
_TICK_S = 0.1
_TAKEOVER_S = 10.0
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36

_SHELL = r"""
__state=$1
__save() {
  unset BASH_EXECUTION_STRING
  { declare -p; declare -f; } > "$__state.new" && printf '%s\n' "$PWD" > "$__state.dir.new" &&
    mv -f -- "$__state.new" "$__state" && mv -f -- "$__state.dir.new" "$__state.dir"
} 2> /dev/null
if [ -f "$__state" ]; then
  source "$__state" 2> /dev/null
  cd -- "$(cat -- "$__state.dir")" 2> /dev/null || { cd -- "$3"; echo "the directory is gone: back in $3" >&2; }
fi
trap __save EXIT
eval "$2"
"""


def main(kind: str) -> None:
    requests, replies = os.dup(0), os.dup(1)
    for descriptor in (requests, replies):
        os.set_inheritable(descriptor, False)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    streams = []
    for target in (1, 2):
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.dup2(writer, target)
        os.close(writer)
        streams.append(reader)
    os.close(nothing)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_DUMPABLE, 0)  # else a cell could open these descriptors by /proc
    limits = json.loads(_first_line(requests))
    state = Shell() if kind == "shell" else Holder([requests, replies, *streams])
    Driver(requests, replies, streams, limits, state).serve()


def _first_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            os._exit(0)
        line += byte
    return line


class Driver:
    """Takes requests one at a time and bounds each cell in time, CPU and output."""

    def __init__(
        self, requests: int, replies: int, streams: list[int], limits: dict[str, Any], state: Shell | Holder
    ) -> None:
        self.requests, self.replies, self.streams, self.limits, self.state = requests, replies, streams, limits, state
        self.held = {stream: bytearray() for stream in streams}
        self.pending = bytearray()
        self.cwd = os.getcwd()

    def serve(self) -> NoReturn:
        while True:
            request = json.loads(self._next_request())
            if "run" in request:
                self._run(request["run"])
            else:
                self._file(request)

    def _next_request(self) -> bytes:
        """Meanwhile what background processes print is kept, up to the output limit, for the next cell."""
        while b"\n" not in self.pending:
            for descriptor in _readable([self.requests, *self.streams], None):
                if descriptor in self.held:
                    self._read(descriptor)
                    continue
                data = os.read(descriptor, 1 << 16)
                if not data:
                    os._exit(0)
                self.pending += data
        line, _, rest = bytes(self.pending).partition(b"\n")
        self.pending = bytearray(rest)
        return line

    def _reply(self, message: dict[str, Any]) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            data = data[os.write(self.replies, data) :]

    def _read(self, stream: int) -> bool:
        """False once the output of this cell is over its limit."""
        try:
            data = os.read(stream, 1 << 16)
        except BlockingIOError:
            return True
        room = self.limits["output_bytes"] - sum(map(len, self.held.values()))
        self.held[stream] += data[: max(0, room)]
        return len(data) <= room

    def _run(self, cell: str) -> None:
        started, cpu_before = time.monotonic(), _cpu_s()
        self.state.start(cell)
        limit = self._wait(started, cpu_before)
        if limit is None and self.state.ended is not None:
            code, is_lost = self.state.ended, False
        else:
            code, is_lost = self.state.stop()
        for stream in self.streams:
            while _readable([stream], 0) and self._read(stream) and limit != "output":
                pass
        wall_s, cpu_s = time.monotonic() - started, max(0.0, _cpu_s() - cpu_before)
        for name, stream in zip(("out", "err"), self.streams, strict=True):
            held, self.held[stream] = bytes(self.held[stream]), bytearray()
            for at in range(0, len(held), _CHUNK):
                self._reply({name: base64.b64encode(held[at : at + _CHUNK]).decode()})
        self._reply({"end": code, "limit": limit, "wall_s": wall_s, "cpu_s": cpu_s, "is_lost": is_lost})

    def _wait(self, started: float, cpu_before: float) -> str | None:
        """Until the cell is over; the limit that ended it, or None."""
        deadline = started + self.limits["wall_s"]
        next_look = started + _TICK_S
        while not self.state.is_over():
            now = time.monotonic()
            if now >= deadline:
                return "wall"
            if now >= next_look:
                next_look = now + _TICK_S
                if _cpu_s() - cpu_before > self.limits["cpu_s"]:
                    return "cpu"
            waited = [*self.streams, *self.state.descriptors()]
            for descriptor in _readable(waited, min(deadline, next_look) - now):
                if descriptor in self.held and not self._read(descriptor):
                    return "output"
        return None

    def _file(self, request: dict[str, Any]) -> None:
        try:
            if "write" in request:
                self._write_file(request)
            else:
                self._read_file(request["read"])
        except OSError as error:
            missing = isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError))
            self._reply({"error": "missing" if missing else "other", "message": error.strerror or str(error)})
        else:
            self._reply({"ok": True})

    def _write_file(self, request: dict[str, Any]) -> None:
        folder, name = self._folder_of(request["write"], make=True)
        try:
            how = os.O_APPEND if request["append"] else os.O_TRUNC
            flags = os.O_WRONLY | os.O_CREAT | how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(name, flags, 0o644, dir_fd=folder), "wb", buffering=0) as file:
                _must_be_regular(file.fileno())
                file.write(base64.b64decode(request["content"]))
        finally:
            os.close(folder)

    def _read_file(self, path: str) -> None:
        folder, name = self._folder_of(path, make=False)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            try:
                descriptor = os.open(name, flags, dir_fd=folder)
            except OSError as error:  # a link, a socket: no regular file is there
                raise FileNotFoundError(2, f"no regular file: {error.strerror}") from None
            with open(descriptor, "rb", buffering=0) as file:
                _must_be_regular(descriptor)
                while data := file.read(_CHUNK):
                    self._reply({"data": base64.b64encode(data).decode()})
        finally:
            os.close(folder)

    def _folder_of(self, path: str, *, make: bool) -> tuple[int, str]:
        """The folder that holds `path`, reached without following a link."""
        *parents, name = path.split("/")
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(self.cwd, flags)
        for parent in parents:
            try:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(parent, dir_fd=folder)
                below = os.open(parent, flags, dir_fd=folder)
            finally:
                os.close(folder)
            folder = below
        return folder, name


def _must_be_regular(descriptor: int) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise FileNotFoundError(2, "no regular file")


class Shell:
    """A new bash for each cell; variables, functions and the directory come from what the last one saved."""

    def __init__(self) -> None:
        self.state = os.path.join(os.environ.get("TMPDIR", "/tmp"), ".shell-state")
        self.home = os.getcwd()
        self.child = -1
        self.ended: int | None = None

    def start(self, cell: str) -> None:
        self.ended = None
        _ends.clear()
        self.child = os.fork()
        if not self.child:
            try:
                os.execvp("bash", ["bash", "--norc", "--noprofile", "-c", _SHELL, "bash", self.state, cell, self.home])
            except OSError as error:
                os.write(2, f"bash: {error.strerror}\n".encode())
            os._exit(127)
        self.handle = os.pidfd_open(self.child)

    def descriptors(self) -> list[int]:
        return [self.handle]

    def is_over(self) -> bool:
        if self.ended is None and self.child in _reap():
            self.ended = _ends.pop(self.child)
            os.close(self.handle)
        return self.ended is not None

    def stop(self) -> tuple[int, bool]:
        _kill_all_but(set())
        while not self.is_over():
            select.select([self.handle], [], [])
        return self.ended or 0, False


class Holder:
    """The process that has the variables, and the snapshot that can take its place."""

    def __init__(self, not_theirs: list[int]) -> None:
        self.not_theirs = not_theirs
        self._begin()

    def _begin(self) -> None:
        self.pid = self.snapshot = self.took_over = -1
        self.ended: int | None = None
        self.crashed: int | None = None
        self.heard = bytearray()
        cells, self.cells = os.pipe()
        self.status, status = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            for descriptor in (*self.not_theirs, self.cells, self.status):
                os.close(descriptor)
            _prctl(_PR_SET_DUMPABLE, 1)
            hold(cells, status)
        os.close(cells)
        os.close(status)
        os.set_blocking(self.status, False)
        os.set_blocking(self.cells, False)

    def start(self, cell: str) -> None:
        self.ended = self.crashed = None
        self.snapshot = self.took_over = -1
        for pid in set(_reap()) - {self.pid}:
            del _ends[pid]
        text = cell.encode("utf-8", "surrogatepass")
        data = memoryview(b"%d\n" % len(text) + text)
        deadline = time.monotonic() + _TAKEOVER_S
        while data and time.monotonic() < deadline:
            if self.is_over():
                return
            try:
                data = data[os.write(self.cells, data) :]
            except BlockingIOError:
                select.select([], [self.cells], [], _TICK_S)
            except BrokenPipeError:
                self.crashed = self.crashed or 0
                return

    def descriptors(self) -> list[int]:
        return [self.status]

    def is_over(self) -> bool:
        if self.crashed is None and self.pid in _reap():
            self.crashed = _ends.pop(self.pid)
        self._hear()
        return self.ended is not None or self.crashed is not None

    def _hear(self) -> None:
        """Take in whole lines of the holder; a cell can write here too, so anything else is passed over."""
        try:
            self.heard += os.read(self.status, 4096)
        except BlockingIOError:
            return
        *lines, rest = bytes(self.heard).split(b"\n")
        self.heard = bytearray(rest[-64:])
        for line in lines:
            word, _, number = line.partition(b" ")
            if not number.isdigit() or len(number) > 9:
                continue
            if word == b"snapshot":
                self.snapshot = int(number)
            elif word == b"took":
                self.took_over = int(number)
            elif word == b"done":
                self.ended = int(number) & 0xFF

    def stop(self) -> tuple[int, bool]:
        """End all but the snapshot and let it take over; how the cell ended, and whether the state is lost."""
        self.is_over()  # a limit may be met before the snapshot's number was heard
        spared = {self.snapshot} if self.snapshot > 0 else set()
        _kill_all_but(spared)
        code = self._wait_for_end()
        if spared and self._takes_over():
            return code, False
        _kill_all_but(set())
        os.close(self.cells)
        os.close(self.status)
        self._begin()
        return code, True

    def _wait_for_end(self) -> int:
        deadline = time.monotonic() + _TAKEOVER_S
        while self.crashed is None and time.monotonic() < deadline:
            self.is_over()
            select.select([], [], [], 0.001)
        return -9 if self.crashed is None else self.crashed

    def _takes_over(self) -> bool:
        deadline = time.monotonic() + _TAKEOVER_S
        while time.monotonic() < deadline:
            self._hear()
            if self.took_over == self.snapshot:
                self.pid = self.snapshot
                return True
            if self.snapshot in _reap():
                return False
            _readable([self.status], _TICK_S)
        return False


_ends: dict[int, int] = {}  # exit code, or minus the signal, by pid: of the cell's processes, orphans too


def _reap() -> dict[int, int]:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            _ends[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return _ends


def _kill_all_but(spared: set[int]) -> None:
    """Every other process that may be signalled, however it hides or forks: all are stopped first."""
    _signal(-1, signal.SIGSTOP)
    newest = _newest_pid(spared) if spared else None
    if newest is None:
        _signal(-1, signal.SIGKILL)
        return
    me = os.getpid()
    for pid in range(2 if newest > me else 1, max(newest, me) + 1):
        if pid != me and pid not in spared:
            _signal(pid, signal.SIGKILL)
    for pid in spared:
        _signal(pid, signal.SIGCONT)


def _newest_pid(spared: set[int]) -> int | None:
    """Numbers are given in order, so no living process is above it. None where a full table allows no fork."""
    for _ in range(100):
        try:
            newest = os.fork()
        except OSError:
            for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc/self") else []):
                if int(name) not in {1, os.getpid(), *spared}:
                    _signal(int(name), signal.SIGKILL)
            select.select([], [], [], 0.01)
            _reap()
            continue
        if not newest:
            os._exit(0)
        os.waitpid(newest, 0)
        return newest
    return None


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


# --- the holder's side


def hold(cells: int, status: int) -> NoReturn:
    """Run cells in this process for ever; never returns."""
    warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["main.py"]
    count = 0
    while True:
        cell = _next_cell(cells)
        count += 1
        wakes = _snapshot(status)
        if wakes is None:
            continue  # this is the snapshot, and it has taken over
        code = run_cell(cell, f"<cell {count}>", module.__dict__)
        os.write(wakes, b"k")
        os.close(wakes)
        os.write(status, b"done %d\n" % code)


def _next_cell(cells: int) -> str:
    header = b""
    while not header.endswith(b"\n"):
        byte = os.read(cells, 1)
        if not byte:
            os._exit(0)
        header += byte
    cell = b""
    while len(cell) < int(header):
        data = os.read(cells, int(header) - len(cell))
        if not data:
            os._exit(0)
        cell += data
    return cell.decode("utf-8", "surrogatepass")


def _snapshot(status: int) -> int | None:
    """Fork it. Returns the pipe that dismisses it; None in the snapshot itself, once it is needed."""
    _flush()
    sleeps, wakes = os.pipe()
    child = os.fork()
    if child:
        os.close(sleeps)
        os.write(status, b"snapshot %d\n" % child)
        return wakes
    os.close(wakes)
    if os.read(sleeps, 1):
        os._exit(0)
    os.close(sleeps)
    os.write(status, b"took %d\n" % os.getpid())
    return None


def run_cell(text: str, name: str, variables: dict[str, Any]) -> int:
    """As a notebook would: the value of a last expression is shown. Returns an exit code."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    try:
        tree = ast.parse(text, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec", dont_inherit=True), variables)
        if last is not None:
            exec(compile(ast.Interactive([last]), name, "single", dont_inherit=True), variables)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        if code == 1 and not isinstance(stop.code, int):
            print(stop.code, file=sys.stderr)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != name:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)
        code = 1
    _flush()
    return code & 0xFF


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


# --- the system


def _readable(descriptors: list[int], timeout_s: float | None) -> list[int]:
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return [fd for fd, _ in poller.poll(None if timeout_s is None else max(0, timeout_s * 1000) + 1)]


def _cpu_s() -> float:
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


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(ctypes.c_int(option), ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)


if __name__ == "__main__":
    main(sys.argv[1])
