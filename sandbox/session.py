"""State between cells: the caller's side of a session, the same over every backend that can talk to a job.

A session is one job whose program is `session_main.py`. What it says is hostile text like any job's: a
line that is no answer ends the session, never the caller, and every wait for one ends.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from sandbox.backend import SessionKind
from sandbox.errors import ConfigError
from sandbox.languages import PYTHON
from sandbox.models import Execution, LimitName, Limits, check_path
from sandbox.slot import SlotLost
from sandbox.steps import Step

_HERE = Path(__file__).parent
_DRIVER = ("session_cells.py", "session_processes.py", "session_state.py")  # beside session_main.py
_LIFE_S = 3600.0
_GRACE_S = 30.0  # for the driver to end a cell that is over a limit, and answer
_CHUNK = 192 << 10
_UNRECEIVED_BYTES = 1 << 20
_CELL_CHARACTERS = 4 << 20  # as a Program's code
_OWN_PROCESSES, _OWN_FILES = 4, 16
_ENDED: dict[str, LimitName] = {"wall": "wall", "cpu": "cpu", "output": "output"}
_LOST = "the session's processes were ended; its state is lost and the next cell starts anew"


class Dialogue(Protocol):
    """What a session needs of a running job; `sandbox.job.Job` says what each call does."""

    def send(self, data: bytes) -> bool: ...

    def receive_line(self, timeout_s: float) -> bytes | None: ...

    def ran_out_of_memory(self) -> bool: ...

    def stop(self) -> None: ...

    def finish(self) -> Execution: ...


class _Over(Exception):
    """The session's job said no more, or nothing that could be read."""


class JobSession:
    """`sandbox.backend.Session` on a dialogue. Its job starts with the first use."""

    def __init__(self, open_dialogue: Callable[[Step], Dialogue], kind: SessionKind, limits: Limits) -> None:
        if kind not in ("python", "shell"):
            raise ConfigError(f"session({str(kind)[:40]!r}): a session is of kind 'python' or 'shell'")
        self.kind, self.limits = kind, limits
        self._open = open_dialogue
        self._job: Dialogue | None = None
        self._lock = threading.Lock()  # over the next three
        self._stops = 0  # how often the job of the time was told to stop
        self._job_since = 0  # what that count was when the job was asked for
        self._asked_at = 0  # and when the work in progress was
        self._is_closed = False
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="session")  # a job belongs to one thread at a time

    async def run(self, cell: str) -> Execution:
        if len(cell) > _CELL_CHARACTERS:
            raise ValueError(f"cell: {len(cell)} characters, more than {_CELL_CHARACTERS}; write a file and read that")
        if self.kind == "shell" and "\0" in cell:
            raise ValueError("cell: a shell's command can't hold a NUL character")
        return await self._do(self._run, cell)

    async def write_file(self, path: str, content: bytes) -> None:
        check_path("path", path)
        await self._do(self._write, path, content)

    async def read_file(self, path: str) -> bytes:
        check_path("path", path)
        return await self._do(self._read, path)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._stop()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._end)
        self._thread.shutdown(wait=False)

    async def _do(self, work: Callable[..., Any], *arguments: object) -> Any:
        async with self._turn:
            if self._is_closed:
                raise RuntimeError("this session is closed")
            try:
                return await asyncio.get_running_loop().run_in_executor(
                    self._thread, self._work, self._stops, work, *arguments
                )
            except asyncio.CancelledError:
                self._stop()  # the cell, and the state with it: the next one starts anew
                raise

    def _stop(self) -> None:
        with self._lock:
            self._stops += 1
            if self._job is not None:
                self._job.stop()

    def _work(self, asked_at: int, work: Callable[..., Any], *arguments: object) -> Any:
        self._asked_at = asked_at
        if self._job is not None and self._job_since != asked_at:
            self._end()  # it was told to stop when its work was done already
        return work(*arguments)

    def _run(self, cell: str) -> Execution:
        streams = {"out": bytearray(), "err": bytearray()}
        try:
            job = self._started()
            self._ask({"run": cell})
            deadline = time.monotonic() + self.limits.wall_s + _GRACE_S
            while True:
                message = self._answer(deadline)
                for name in streams.keys() & message.keys():
                    streams[name] += _decoded(message[name])
                    self._bound(len(streams["out"]) + len(streams["err"]), self.limits.output_bytes)
                if "end" in message:
                    return _execution(message, streams, job.ran_out_of_memory())
        except SlotLost as lost:
            return Execution(status="unavailable", error=f"no sandbox slot: {lost}")
        except _Over:
            return self._lost(streams)

    def _lost(self, streams: dict[str, bytearray]) -> Execution:
        ended = self._end()
        status = "unavailable" if ended is not None and ended.status == "unavailable" else "killed"
        limit = ended.limit if ended is not None and ended.limit in ("memory", "processes", "disk") else None
        return Execution(
            status=status,  # type: ignore[arg-type]
            stdout=bytes(streams["out"]),
            stderr=bytes(streams["err"]),
            limit=limit,
            error=_LOST,
        )

    def _write(self, path: str, content: bytes) -> None:
        with self._for_files():
            self._started()
            for at in range(0, max(1, len(content)), _CHUNK):
                part = base64.b64encode(content[at : at + _CHUNK]).decode()
                self._ask({"write": path, "content": part, "append": at > 0})
                _check_file(path, self._answer(time.monotonic() + _GRACE_S))

    def _read(self, path: str) -> bytes:
        content = bytearray()
        with self._for_files():
            self._started()
            self._ask({"read": path})
            deadline = time.monotonic() + _GRACE_S
            while True:
                message = self._answer(deadline)
                if "data" not in message:
                    _check_file(path, message)
                    return bytes(content)
                content += _decoded(message["data"])
                self._bound(len(content), self.limits.disk_mb << 20)

    @contextlib.contextmanager
    def _for_files(self) -> Any:
        try:
            yield
        except (_Over, SlotLost):
            self._end()
            raise OSError(_LOST) from None

    def _started(self) -> Dialogue:
        if self._job is None:
            job = self._open(self._step())
            with self._lock:
                self._job, self._job_since = job, self._asked_at
                if self._stops != self._asked_at:  # cancelled, or closed, while it came up
                    raise _Over
            told = ("wall_s", "cpu_s", "output_bytes", "open_files", "disk_mb")
            self._ask({name: getattr(self.limits, name) for name in told})
        return self._job

    def _step(self) -> Step:
        """The driver, with room for its own processes and descriptors beside what the cells may have."""
        limits = self.limits.model_copy(
            update={
                "wall_s": _LIFE_S,
                "cpu_s": _LIFE_S,
                "output_bytes": _UNRECEIVED_BYTES,
                "processes": min(4096, self.limits.processes + _OWN_PROCESSES),
                "open_files": min(4096, self.limits.open_files + _OWN_FILES),
            }
        )
        files = {f"sandbox/{name}": (_HERE / name).read_bytes() for name in _DRIVER}
        files |= {"main.py": (_HERE / "session_main.py").read_bytes(), "sandbox/__init__.py": b""}
        return Step((PYTHON, "main.py", self.kind), files, limits, keeps_output=False)

    def _ask(self, message: dict[str, Any]) -> None:
        if self._job is None or not self._job.send(json.dumps(message).encode() + b"\n"):
            raise _Over

    def _answer(self, deadline: float) -> dict[str, Any]:
        if self._job is None:
            raise _Over
        try:
            line = self._job.receive_line(deadline - time.monotonic())
            message = json.loads(line) if line is not None else None
        except (TimeoutError, ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise _Over
        return message

    def _bound(self, size: int, most: int) -> None:
        if size > most:
            raise _Over

    def _end(self) -> Execution | None:
        with self._lock:
            job, self._job = self._job, None
        if job is None:
            return None
        job.stop()
        return job.finish()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()


def _decoded(text: object) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except (ValueError, binascii.Error):
        raise _Over from None


def _execution(message: dict[str, Any], streams: dict[str, bytearray], was_oom: bool) -> Execution:
    try:
        code, wall_s, cpu_s = int(message["end"]), float(message["wall_s"]), float(message["cpu_s"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise _Over from None
    if not (math.isfinite(wall_s) and math.isfinite(cpu_s)):
        raise _Over
    limit = _ENDED.get(str(message.get("limit")))
    if limit is None and was_oom and code == -9:
        limit = "memory"
    is_lost = bool(message.get("is_lost"))
    status = "timeout" if limit in ("wall", "cpu") else "killed" if limit is not None or is_lost else "finished"
    return Execution(
        status=status,  # type: ignore[arg-type]
        exit_code=code if status == "finished" and 0 <= code <= 255 else None,
        signal=-code if -65 < code < 0 else None,
        stdout=bytes(streams["out"]),
        stderr=bytes(streams["err"]),
        wall_s=wall_s,
        cpu_s=cpu_s,
        limit=limit,
        error=_LOST if is_lost else "",
    )


def _check_file(path: str, message: dict[str, Any]) -> None:
    if message.get("ok"):
        return
    reason = f"{path}: {str(message.get('message'))[:200]}"
    raise FileNotFoundError(reason) if message.get("error") == "missing" else OSError(reason)
