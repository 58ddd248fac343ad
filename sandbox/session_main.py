"""The driver of a session: runs inside the sandbox as the job's own process and bounds each cell.

It answers JSON lines on the descriptors it was started with; cells never hold those, only pipes that
the driver reads. What cells keep is `session_state.py`'s. Standard library only, Python 3.8 and later;
the text is sent to every backend.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import shutil
import stat
import sys
import time
from typing import Any, NoReturn

from sandbox.session_processes import Others, cpu_s, readable
from sandbox.session_state import Holder, Shell

_CHUNK = 48 << 10
_TICK_S = 0.1


def main(kind: str) -> None:
    _remove_own_files()
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    streams = []
    for target in (1, 2):
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.dup2(writer, target)
        os.close(writer)
        streams.append(reader)
    limits = json.loads(_first_line(requests))
    others, open_files, own = Others(), limits["open_files"], [requests, replies, *streams]
    state = Shell(others, open_files) if kind == "shell" else Holder(others, open_files, own)
    Driver(requests, replies, streams, limits, state).serve()


def _remove_own_files() -> None:
    """A session's folder starts empty."""
    with contextlib.suppress(OSError):
        os.unlink("main.py")
        shutil.rmtree("sandbox")


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
            for descriptor in readable([self.requests, *self.streams], None):
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

    def _drain(self) -> bool:
        """Read what is there; False once that is over the limit."""
        for stream in self.streams:
            while readable([stream], 0):
                if not self._read(stream):
                    return False
        return True

    def _run(self, cell: str) -> None:
        started, cpu_before = time.monotonic(), cpu_s()
        deadline = started + self.limits["wall_s"]
        self.state.start(cell, deadline)
        limit = self._wait(deadline, cpu_before)
        if limit is None and not self._drain():
            limit = "output"
        code, is_lost = self.state.keep() if limit is None else self.state.undo()
        self._drain()
        report = {"wall_s": time.monotonic() - started, "cpu_s": max(0.0, cpu_s() - cpu_before)}
        for name, stream in zip(("out", "err"), self.streams):  # noqa: B905  # strict= is of 3.10
            held, self.held[stream] = bytes(self.held[stream]), bytearray()
            for at in range(0, len(held), _CHUNK):
                self._reply({name: base64.b64encode(held[at : at + _CHUNK]).decode()})
        self._reply({"end": code, "limit": limit, "is_lost": is_lost, **report})

    def _wait(self, deadline: float, cpu_before: float) -> str | None:
        """Until the cell is over; the limit that ended it, or None."""
        next_look = time.monotonic() + _TICK_S
        while not self.state.is_over():
            now = time.monotonic()
            if now >= deadline:
                return "wall"
            if now >= next_look:
                next_look = now + _TICK_S
                if cpu_s() - cpu_before > self.limits["cpu_s"]:
                    return "cpu"
            waited = [*self.streams, *self.state.descriptors()]
            for descriptor in readable(waited, min(deadline, next_look) - now):
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
                content = memoryview(base64.b64decode(request["content"]))
                while content:
                    content = content[file.write(content) :]
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
                left = self.limits["disk_mb"] << 20
                if os.fstat(descriptor).st_size > left:
                    raise OSError(errno.EFBIG, "a sparse file, longer than the session's disk")
                while left > 0 and (data := file.read(min(left, _CHUNK))):
                    self._reply({"data": base64.b64encode(data).decode()})
                    left -= len(data)
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


if __name__ == "__main__":
    main(sys.argv[1])
