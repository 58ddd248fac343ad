"""A program running in a container: the same dialogue as the local backend's, over the container's wire.

All bytes go through this object, which stops reading, and the job, at its output cap. It belongs to
one thread, except for `stop`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal

from sandbox.container_wire import CHUNK, MOST_BYTES, WINDOW
from sandbox.docker_container import Container
from sandbox.docker_engine import ContainerLost
from sandbox.models import Execution, LimitName
from sandbox.steps import EVERYTHING, Step

_GRACE_S = 15.0  # for pid 1 to kill, clean up and report; then the container itself is given up
_ENDED_BY: dict[str, tuple[Literal["timeout", "killed"], LimitName | None]] = {
    "wall": ("timeout", "wall"),
    "cpu": ("timeout", "cpu"),
    "output": ("killed", "output"),
    "told": ("killed", None),
}


class DockerJob:
    """One step in progress. Leaving its `with` block ends it, whatever it was doing."""

    def __init__(
        self, container: Container, step: Step, environment: dict[str, str], on_end: Callable[[bool], None]
    ) -> None:
        """`step.command` is ready to exec. `on_end(is_reusable)` is called once. Raises ContainerLost."""
        self._container, self._step, self._on_end = container, step, on_end
        self._input = bytearray(step.stdin)
        self._credit = WINDOW
        self._takes_input, self._closes_input = True, False
        self._output, self._errors = bytearray(), bytearray()
        self._has_output = True
        self._next_line = 0
        self._is_over_cap = False
        self._files: dict[str, bytearray] = {}
        self._file = bytearray()
        self._fetched = 0
        self._ran_out: bool | None = None
        self._report: dict[str, Any] | None = None
        self._result: Execution | None = None
        container.jobs_started += 1
        self._number = container.jobs_started
        try:
            self._begin(environment)
        except BaseException:
            self._on_end(False)
            raise

    def _begin(self, environment: dict[str, str]) -> None:
        step = self._step
        request = {
            **step.limits.model_dump(),
            "job": self._number,
            "command": step.command,
            "environment": environment,
            "fetch": step.fetch,
            "are_executable": step.are_executable,
            "keeps_output": step.keeps_output,
            "has_memory_cgroup": self._container.features["cgroup"],
        }
        self._container.send("J", json.dumps(request).encode())
        for path, content in step.files.items():
            self._container.send("F", path.encode("utf-8", "surrogateescape"))
            for start in range(0, len(content), MOST_BYTES):
                self._container.send("D", content[start : start + MOST_BYTES])
        self._container.send("G")
        self._container.deadline = time.monotonic() + step.limits.wall_s + _GRACE_S
        self._feed()

    def send(self, data: bytes) -> bool:
        """Write to the job's stdin, reading its output meanwhile. False once the job takes no more."""
        self._input += data
        try:
            self._feed()
            while (self._input or self._credit < WINDOW) and self._takes_input and self._report is None:
                self._pump(None)
        except ContainerLost as lost:
            self._give_up(lost)
        return self._takes_input and self._report is None and self._result is None

    def receive_line(self, timeout_s: float) -> bytes | None:
        """The next line of stdout without its newline; None at the end of output, or of the job.

        Raises TimeoutError when no whole line came within `timeout_s` seconds; the job goes on.
        """
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                end = self._output.find(b"\n", self._next_line)
                if end >= 0:
                    return self._take_line(end, end + 1)
                if not self._has_output or self._result is not None:
                    rest = len(self._output)
                    return self._take_line(rest, rest) if self._next_line < rest else None
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"no line within {timeout_s} s")
                self._pump(left)
        except ContainerLost as lost:
            self._give_up(lost)
            return None

    def _take_line(self, end: int, following: int) -> bytes:
        line = bytes(self._output[self._next_line : end])
        if self._step.keeps_output:
            self._next_line = following
        else:
            del self._output[:following]
        return line

    def close_stdin(self) -> None:
        """No more input: the job reads the end of file after what was sent."""
        self._closes_input = True
        self._feed()

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed a process of it for memory since this was last asked; only with a cgroup."""
        self._ran_out = None
        try:
            if self._report is None and self._result is None:
                self._container.send("M")
            while self._ran_out is None and self._report is None and self._result is None:
                self._pump(None)
        except ContainerLost as lost:
            self._give_up(lost)
        return bool(self._ran_out) or bool(self._report and self._report.get("oom"))

    def stop(self) -> None:
        """End the job now; `finish` tells how. The one method that another thread may call."""
        self._container.send("K", b"%d" % self._number)

    def finish(self) -> Execution:
        """Close its stdin, wait for its end and report. Never raises for what the job, or its container, did."""
        if self._result is not None:
            return self._result
        try:
            self.close_stdin()
            while self._report is None:
                self._pump(None)
            self._result = self._read_report(self._report)
        except ContainerLost as lost:
            self._give_up(lost)
        else:
            self._on_end(bool(self._report.get("is_clean")) and not self._container.is_sending())
        assert self._result is not None
        return self._result

    def _feed(self) -> None:
        """Send as much input as pid 1 has room for."""
        if not self._takes_input:
            self._input.clear()
        while self._input and self._credit > 0:
            chunk = bytes(self._input[: min(self._credit, CHUNK)])
            del self._input[: len(chunk)]
            self._credit -= len(chunk)
            self._container.send("I", chunk)
        if self._closes_input and self._takes_input and not self._input:
            self._takes_input = False
            self._container.send("E")

    def _pump(self, timeout_s: float | None) -> None:
        if self._report is not None:
            return
        for kind, payload in self._container.pump(3600.0 if timeout_s is None else timeout_s):
            if self._report is not None:
                raise ContainerLost("its pid 1 went on after its report")
            self._take(kind, payload)

    def _take(self, kind: str, payload: bytes) -> None:
        if kind == "O":
            self._keep(payload, self._output)
        elif kind == "X":
            self._keep(payload, self._errors)
        elif kind == "W":
            self._credit = min(WINDOW, self._credit + _number(payload))
            self._feed()
        elif kind == "Z":
            self._takes_input = False
            self._input.clear()
        elif kind == "C":
            self._has_output = self._has_output and payload != b"O"
        elif kind == "M":
            self._ran_out = payload == b"1"
        elif kind == "P":
            self._open_file(payload)
        elif kind == "D":
            self._fetched += len(payload)
            if self._fetched > self._step.limits.disk_mb << 20:
                raise ContainerLost("its pid 1 sent more files than the job had disk")
            self._file += payload
        elif kind == "T":
            self._report = _parsed(payload)
            self._has_output = False
        else:
            raise ContainerLost(f"its pid 1 sent a frame of kind {kind!r}")

    def _keep(self, data: bytes, into: bytearray) -> None:
        room = self._step.limits.output_bytes - len(self._output) - len(self._errors)
        into += data[: max(0, room)]
        if len(data) > room and not self._is_over_cap:
            self._is_over_cap = True
            self.stop()

    def _open_file(self, name: bytes) -> None:
        self._file = bytearray()
        try:
            path = name.decode()
        except UnicodeDecodeError:  # no name that a program could be given again
            return
        if self._step.fetch != (EVERYTHING,) and path not in self._step.fetch:
            raise ContainerLost("its pid 1 sent a file that was not asked for")
        if len(self._files) >= self._step.limits.disk_inodes:
            raise ContainerLost("its pid 1 sent more files than the job could have")
        self._files[path] = self._file

    def _read_report(self, report: dict[str, Any]) -> Execution:
        try:
            if report["job"] != self._number:
                raise ContainerLost("its pid 1 reported another job")
            if report["failure"]:
                raise ContainerLost(str(report["failure"])[:300])
            code = os.waitstatus_to_exitcode(int(report["status"]))
            status, limit = self._ended_by(str(report["limit"]), -code, bool(report["oom"]), float(report["cpu_s"]))
            return Execution(
                status=status,
                exit_code=code if code >= 0 and status == "finished" else None,
                signal=-code if code < 0 else None,
                stdout=bytes(self._output),
                stderr=bytes(self._errors),
                wall_s=float(report["wall_s"]),
                cpu_s=float(report["cpu_s"]),
                peak_memory_mb=float(report["peak_kb"]) / 1024,
                limit=limit,
                files={path: bytes(content) for path, content in self._files.items()},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ContainerLost(f"its pid 1 sent an impossible report: {error!r}") from error

    def _ended_by(
        self, word: str, sig: int, had_oom_kill: bool, cpu_s: float
    ) -> tuple[Literal["finished", "timeout", "killed"], LimitName | None]:
        """Which limit ended it, from pid 1's word, the signal, and whether the kernel ran out of memory for it."""
        if self._is_over_cap:
            return "killed", "output"
        if word in _ENDED_BY:
            return _ENDED_BY[word]
        if sig == signal.SIGXCPU and cpu_s >= self._step.limits.cpu_s / 2:  # RLIMIT_CPU counts in ticks, roughly
            return "timeout", "cpu"
        if sig == signal.SIGXFSZ:
            return "killed", "file_size"
        if sig == signal.SIGKILL and had_oom_kill:
            return "killed", "memory"
        return "finished", None

    def _give_up(self, lost: ContainerLost) -> None:
        if self._result is None:
            self._result = Execution(
                status="unavailable",
                stdout=bytes(self._output),
                stderr=bytes(self._errors),
                error=f"the sandbox container was lost: {lost}",
            )
            self._on_end(False)

    def __enter__(self) -> DockerJob:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._result is None:
            self.stop()
            self.finish()


def _number(payload: bytes) -> int:
    if not payload.isdigit() or len(payload) > 12:
        raise ContainerLost("its pid 1 sent an impossible number")
    return int(payload)


def _parsed(payload: bytes) -> dict[str, Any]:
    try:
        report = json.loads(payload)
    except ValueError:
        report = None
    if not isinstance(report, dict):
        raise ContainerLost("its pid 1 sent an impossible report")
    return report
