"""A running program: send it input, read its lines, and learn how it ended.

`Sandbox.open` gives one. All bytes go through this object, which stops reading, and the job, at
its output cap. It belongs to one thread.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Literal

from sandbox.models import Execution, LimitName
from sandbox.slot import Slot, SlotLost
from sandbox.steps import Step

_CHUNK = 1 << 16
_GRACE_S = 5.0  # for a slot to end and report a job after its wall limit; then the slot itself is killed
_ENDED_BY: dict[str, tuple[Literal["timeout", "killed"], LimitName]] = {
    "wall": ("timeout", "wall"),
    "cpu": ("timeout", "cpu"),
    "memory": ("killed", "memory"),
    "processes": ("killed", "processes"),  # the last two only where no cgroup and no mount bounds them
    "disk": ("killed", "disk"),
}


# A fork of this process without an exec would inherit the pipes of every job in progress, and a job
# whose stdin some child still holds never reads its end. So the child closes them, and no fork
# happens while a job's ends of its pipes are open here.
_fork_guard = threading.Lock()
_descriptors: set[int] = set()


class Job:
    """One execution in progress. Leaving its `with` block ends it, whatever it was doing."""

    def __init__(self, slot: Slot, step: Step, on_end: Callable[[bool], None]) -> None:
        """`on_end(is_healthy)` is called once, when the slot is free again. Raises SlotLost."""
        self._slot, self._step, self._on_end = slot, step, on_end
        self._input = bytearray(step.stdin)
        self._closes_input = False
        self._output, self._errors = bytearray(), bytearray()
        self._files: dict[str, bytes] = {}
        self._next_line = 0
        self._is_over_cap = False
        self._report: list[str] | None = None
        self._result: Execution | None = None
        self._oom_kills = 0
        self._backstop = time.monotonic() + step.limits.wall_s + _GRACE_S
        self._start()

    def _start(self) -> None:
        with _fork_guard:
            stdin, self._stdin, self._stdout, stdout, self._stderr, stderr, code = self._make_descriptors()
            theirs = [code, stdin, stdout, stderr]
            _descriptors.update((self._stdin, self._stdout, self._stderr))
            try:
                self._number = self._hand_over(code, theirs)
            except BaseException:
                self._release(is_healthy=False)
                raise
            finally:
                for descriptor in theirs:
                    os.close(descriptor)

    def _make_descriptors(self) -> list[int]:
        """Both ends of its input, output and errors, and a file for the program."""
        made: list[int] = []
        try:
            self._oom_kills = self._slot.cgroup.oom_kills() if self._slot.cgroup else 0
            for _ in range(3):
                made += os.pipe()
            return [*made, os.memfd_create("program")]
        except OSError as error:
            for descriptor in made:
                os.close(descriptor)
            self._on_end(True)
            raise SlotLost(f"this process has no room for a job: {error.strerror}") from error

    def _hand_over(self, code: int, theirs: list[int]) -> int:
        step = self._step
        content = memoryview(marshal.dumps((step.command, step.files, step.are_executable)))
        while content:
            content = content[os.write(code, content) :]
        os.lseek(code, 0, os.SEEK_SET)
        for descriptor in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(descriptor, False)
        return self._slot.begin(step.limits, warm=step.warm, fetch=step.fetch, descriptors=theirs)

    def send(self, data: bytes) -> bool:
        """Write to the job's stdin, reading its output meanwhile. False once the job takes no more."""
        self._input += data
        try:
            while self._input and self._stdin >= 0 and self._report is None:
                self._pump(None)
        except SlotLost as lost:
            self._give_up(lost)
        return self._stdin >= 0 and not self._input and self._result is None

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
                if self._stdout < 0:
                    rest = len(self._output)
                    return self._take_line(rest, rest) if self._next_line < rest else None
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError(f"no line within {timeout_s} s")
                self._pump(left)
        except SlotLost as lost:
            self._give_up(lost)
            return None

    def _take_line(self, end: int, following: int) -> bytes:
        line = bytes(self._output[self._next_line : end])
        self._next_line = following
        if not self._step.keeps_output:
            del self._output[:following]
            self._next_line = 0
        return line

    def close_stdin(self) -> None:
        """No more input: the job reads the end of file after what was sent."""
        self._closes_input = True
        if not self._input:
            self._stdin = _closed(self._stdin)

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed a process of it for memory since this was last asked; only with a cgroup."""
        if self._slot.cgroup is None:
            return False
        before, self._oom_kills = self._oom_kills, self._slot.cgroup.oom_kills()
        return self._oom_kills > before

    def stop(self) -> None:
        """End the job now; `finish` tells how. The one method that another thread may call."""
        self._slot.order_stop(self._number)

    def finish(self) -> Execution:
        """Close its stdin, wait for its end and report. Never raises for what the job, or its slot, did."""
        if self._result is not None:
            return self._result
        self.close_stdin()
        try:
            while self._report is None:
                self._pump(None)
            result = self._read_report(self._report)
        except (SlotLost, OSError) as lost:  # an OSError is our own: no descriptor left to read a count with
            self._give_up(lost)
        else:
            self._result = result
            self._release(is_healthy=True)
        assert self._result is not None
        return self._result

    def _pump(self, timeout_s: float | None) -> None:
        """Move bytes until something moved or the time is up. Raises SlotLost."""
        left = self._backstop - time.monotonic()
        if left <= 0:
            self._slot.kill()
            raise SlotLost("it did not end a job that was over its wall time")
        if self._slot.fileno() < 0:
            raise SlotLost("its sandbox was closed")
        poller = select.poll()
        for descriptor in (self._stdout, self._stderr):
            if descriptor >= 0:
                poller.register(descriptor, select.POLLIN)
        if self._stdin >= 0 and self._input:
            poller.register(self._stdin, select.POLLOUT)
        if self._report is None:
            poller.register(self._slot.fileno(), select.POLLIN)
        for descriptor, _ in poller.poll(1000 * min(left, left if timeout_s is None else timeout_s) + 1):
            if self._report is not None:  # and with it everything else was read and closed
                return
            # The job holds these pipes too: what poll found it may have emptied, filled or shrunk by now.
            with contextlib.suppress(BlockingIOError):
                self._move(descriptor)

    def _move(self, descriptor: int) -> None:
        if descriptor == self._stdout:
            self._stdout = self._read(descriptor, self._output)
        elif descriptor == self._stderr:
            self._stderr = self._read(descriptor, self._errors)
        elif descriptor == self._stdin:
            self._write()
        else:
            self._hear_slot()

    def _hear_slot(self) -> None:
        message, file = self._slot.receive()
        if message.startswith(b"file %d " % self._number) and file >= 0:
            self._keep_file(message.split(b" ", 2)[2], file)
            return
        if file >= 0:
            os.close(file)
        report = message.decode("ascii", "replace").split()
        is_whole = len(report) == 7 and all(word.isdigit() for word in report[1:6])
        if report[:2] != ["done", str(self._number)] or not is_whole:
            raise SlotLost(f"it said {' '.join(report)[:80]!r}")
        self._report = report
        self._drain()

    def _keep_file(self, name: bytes, file: int) -> None:
        """Read what the job left under `name`, as long as all files together stay within its disk."""
        with open(file, "rb", buffering=0) as content, contextlib.suppress(UnicodeDecodeError):
            path = name.decode()
            left = (self._step.limits.disk_mb << 20) - sum(map(len, self._files.values()))
            size = os.fstat(file).st_size
            if size <= left:  # a sparse file may be longer than the disk that it lies on
                self._files[path] = content.read(size) or b""

    def _drain(self) -> None:
        """Read what is left. Every writer is dead, so what the pipes hold now is all there will be."""
        with contextlib.suppress(BlockingIOError):
            while self._stdout >= 0:
                self._stdout = self._read(self._stdout, self._output)
        with contextlib.suppress(BlockingIOError):
            while self._stderr >= 0:
                self._stderr = self._read(self._stderr, self._errors)
        self._stdin, self._stdout, self._stderr = map(_closed, (self._stdin, self._stdout, self._stderr))

    def _read(self, descriptor: int, into: bytearray) -> int:
        data = os.read(descriptor, _CHUNK)
        if not data or (self._is_over_cap and self._report is not None):
            return _closed(descriptor)
        room = self._step.limits.output_bytes - len(self._output) - len(self._errors)
        into += data[:room] if room > 0 else b""
        if len(data) > room and not self._is_over_cap:
            self._is_over_cap = True
            self.stop()
        return descriptor

    def _write(self) -> None:
        try:
            del self._input[: os.write(self._stdin, self._input[:_CHUNK])]
        except BrokenPipeError:
            self._input.clear()
            self._stdin = _closed(self._stdin)
        if self._closes_input and not self._input:
            self._stdin = _closed(self._stdin)

    def _read_report(self, report: list[str] | None) -> Execution:
        assert report is not None
        wait_status, cpu_us, peak_kb, wall_us = (int(word) for word in report[2:6])
        code = os.waitstatus_to_exitcode(wait_status)
        status, limit = self._ended_by(report[6], -code, cpu_us / 1e6)
        peak_mb = self._slot.cgroup.peak_mb() if self._slot.cgroup else None
        return Execution(
            status=status,
            exit_code=code if code >= 0 and status == "finished" else None,
            signal=-code if code < 0 else None,
            stdout=bytes(self._output),
            stderr=bytes(self._errors),
            wall_s=wall_us / 1e6,
            cpu_s=cpu_us / 1e6,
            peak_memory_mb=peak_kb / 1024 if peak_mb is None else peak_mb,
            limit=limit,
            files=self._files,
        )

    def _ended_by(
        self, word: str, sig: int, cpu_s: float
    ) -> tuple[Literal["finished", "timeout", "killed"], LimitName | None]:
        """Which limit ended it, from the slot's word, the signal, and the cgroup's count of OOM kills."""
        if self._is_over_cap:
            return "killed", "output"
        if word in _ENDED_BY:
            return _ENDED_BY[word]
        if word == "told":
            return "killed", None
        if sig == signal.SIGXCPU and cpu_s >= self._step.limits.cpu_s / 2:  # RLIMIT_CPU counts in ticks, roughly
            return "timeout", "cpu"
        if sig == signal.SIGXFSZ:
            return "killed", "file_size"
        if sig == signal.SIGKILL and self._slot.cgroup and self._slot.cgroup.oom_kills() > self._oom_kills:
            return "killed", "memory"
        return "finished", None

    def _give_up(self, lost: Exception) -> None:
        if self._result is None:
            self._result = Execution(
                status="unavailable",
                stdout=bytes(self._output),
                stderr=bytes(self._errors),
                error=f"the sandbox slot was lost: {lost}",
            )
            self._release(is_healthy=False)

    def _release(self, *, is_healthy: bool) -> None:
        self._stdin, self._stdout, self._stderr = map(_closed, (self._stdin, self._stdout, self._stderr))
        self._on_end(is_healthy)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._result is None:
            self.stop()
            self.finish()


def _closed(descriptor: int) -> int:
    if descriptor in _descriptors:  # else it is closed already, and the number may be someone else's by now
        _descriptors.discard(descriptor)
        os.close(descriptor)
    return -1


def _close_in_forked_child() -> None:
    for descriptor in list(_descriptors):
        _closed(descriptor)
    _fork_guard.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_fork_guard.acquire, after_in_parent=_fork_guard.release, after_in_child=_close_in_forked_child
    )
