"""One container, made and held through the `docker` SDK, and the wire to its pid 1.

A container is locked down when it is made and ends by itself when its client does: pid 1 leaves at
the end of its stdin, which the engine closes with the client's connection, and the engine removes
what has ended.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sandbox import seccomp
from sandbox.container_wire import HEADER, MOST_BYTES
from sandbox.docker_engine import LABEL, OWNER, ContainerLost, brief, connect_again, losing, owner, remove
from sandbox.docker_plan import Plan
from sandbox.errors import VeriwardError
from sandbox.models import Limits

_START_TIMEOUT_S = 60
_OVERHEAD_MB = 8  # pid 1 and what the kernel keeps for it
_SHM_MB = 4
_CHUNK = 1 << 16
_PARTS = ("container_wire", "container_files", "container_start", "container_main")
_STARTER = """
import sys, types
sys.modules["sandbox"] = types.ModuleType("sandbox")
for name, text in {parts!r}.items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
module.main()
"""
_STREAM_HEADER = struct.Struct(">BxxxI")
_uid_numbers = itertools.count(random.SystemRandom().randrange(1 << 30))


class Walls(NamedTuple):
    """The limits that hold for a container as a whole, and so decide which jobs may share one."""

    memory_mb: int
    processes: int
    disk_mb: int
    disk_inodes: int

    @staticmethod
    def around(limits: Limits) -> Walls:
        return Walls(limits.memory_mb, limits.processes, limits.disk_mb, limits.disk_inodes)


class Container:
    """A locked-down container with our pid 1 ready in it. Raises ContainerLost when it does not come up and
    VeriwardError where the image can never work. One thread at a time, except for `send` and `kill`."""

    def __init__(self, plan: Plan, walls: Walls) -> None:
        self.walls = walls
        self.jobs_started = 0
        self.deadline = float("inf")  # when a pump gives up on it
        self._api = connect_again(plan.base_url)
        self._lock = threading.Lock()
        self._out, self._raw, self._in = bytearray(), bytearray(), bytearray()
        self._said = bytearray()  # by pid 1's stderr: its last words
        self._socket: socket.socket | None = None
        with losing("it could not be made"):
            self.id: str = self._api.create_container(**_creation(self._api, plan, walls))["Id"]
        try:
            with losing("it could not be started"):
                streams = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
                self._attached = self._api.attach_socket(self.id, params=streams)
                self._socket = self._attached._sock
                self._socket.setblocking(False)
                self._api.start(self.id)
            self.features = self._introduce(plan)
        except BaseException as error:
            self.close()
            raise _explained(error, plan) from None

    def send(self, kind: str, payload: bytes = b"") -> None:
        """Queue a frame and write what the connection takes now; `pump` writes the rest. Any thread may."""
        with self._lock:
            self._out += HEADER.pack(ord(kind), len(payload)) + payload
            with contextlib.suppress(OSError):
                self._write()

    def is_sending(self) -> bool:
        return bool(self._out)

    def pump(self, timeout_s: float) -> Iterator[tuple[str, bytes]]:
        """Move bytes once, waiting at most so long, and yield the frames that are whole. Raises ContainerLost."""
        if self._socket is None:
            raise ContainerLost("it was closed")
        left = max(0.0, self.deadline - time.monotonic())
        poller = select.poll()
        poller.register(self._socket, select.POLLIN | (select.POLLOUT if self._out else 0))
        try:
            events = poller.poll(1000 * min(timeout_s, left) + 1)
            for _, event in events:
                if event & select.POLLOUT:
                    with self._lock:
                        self._write()
                if event & ~select.POLLOUT:
                    self._read()
        except (OSError, ValueError) as error:
            raise ContainerLost(brief(error)) from error
        if not events and not left:
            raise ContainerLost("it did not end a job that was over its time")
        yield from self._frames()

    def _write(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(BlockingIOError):
                while self._out:
                    del self._out[: self._socket.send(self._out[: 4 * _CHUNK])]

    def _read(self) -> None:
        assert self._socket is not None
        with contextlib.suppress(BlockingIOError):
            data = self._socket.recv(4 * _CHUNK)
            if not data:
                raise ContainerLost(self._last_words())
            self._raw += data
        while len(self._raw) >= _STREAM_HEADER.size:
            stream, length = _STREAM_HEADER.unpack_from(self._raw)
            end = _STREAM_HEADER.size + length
            if len(self._raw) < end:
                return
            (self._in if stream == 1 else self._said).extend(self._raw[_STREAM_HEADER.size : end])
            del self._raw[:end]
            del self._said[:-_CHUNK]

    def _frames(self) -> Iterator[tuple[str, bytes]]:
        while len(self._in) >= HEADER.size:
            kind, length = HEADER.unpack_from(self._in)
            if length > MOST_BYTES:
                raise ContainerLost("its pid 1 sent a frame over the limit")
            end = HEADER.size + length
            if len(self._in) < end:
                return
            payload = bytes(self._in[HEADER.size : end])
            del self._in[:end]
            yield chr(kind), payload

    def _introduce(self, plan: Plan) -> dict[str, Any]:
        self.deadline = time.monotonic() + _START_TIMEOUT_S
        features = self._await_introduction()
        self.deadline = float("inf")
        if features["writable"]:
            raise VeriwardError(
                f"image {plan.image}: jobs could write to {', '.join(features['writable'])[:200]} and find it later; "
                "use an image that declares no volume there"
            )
        try:
            self.send("S", seccomp.build_filter(features["machine"]))
        except KeyError:
            raise VeriwardError(f"image {plan.image}: no system call filter for {features['machine']}") from None
        return features

    def _await_introduction(self) -> dict[str, Any]:
        while True:
            for kind, payload in self.pump(_START_TIMEOUT_S):
                if kind == "R":
                    features: dict[str, Any] = json.loads(payload)
                    return features

    def _last_words(self) -> str:
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else "its pid 1 ended"

    def kill(self) -> None:
        """End all in it now, from any thread; whoever pumps then learns that it is lost."""
        with contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(ContainerLost), losing("it could not be killed"):
            self._api.kill(self.id)

    def close(self) -> None:
        """Remove it and wait until it is gone, or its engine is. May be called twice."""
        self.forget()
        remove(self._api, self.id)
        self._api.close()

    def forget(self) -> None:
        """Let go of the connection only: for the child of a fork, whose copy would keep it open."""
        taken, self._socket = self._socket, None
        if taken is not None:
            with contextlib.suppress(OSError):
                self._attached.close()
            with contextlib.suppress(OSError):
                taken.close()


def _creation(api: Any, plan: Plan, walls: Walls) -> dict[str, Any]:
    """All that is said when a container is made: every wall of it in one place."""
    import docker

    uid = _own_uid(plan.is_remapped)
    mode = "mode=1777" if plan.is_podman else f"mode=0700,uid={uid},gid={uid}"
    memory = f"{walls.memory_mb + _OVERHEAD_MB}m"
    files = docker.types.Ulimit(name="nofile", soft=4160, hard=4160)
    # Both are named, since Podman's own defaults can be above what its user may set.
    tasks = docker.types.Ulimit(name="nproc", soft=4096, hard=4096)
    # Message queues would outlive a job, and Podman gives a read-only container writable places of its own.
    shut = ["/dev/mqueue", *(("/run", "/var/tmp") if plan.is_podman else ())]
    host = api.create_host_config(
        network_mode="none",
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        auto_remove=True,
        mem_limit=memory,
        memswap_limit=memory,
        pids_limit=walls.processes + 1,
        nano_cpus=None if plan.cpus is None else int(plan.cpus * 1e9),
        ulimits=[files, tasks],
        log_config=docker.types.LogConfig(type="none"),
        runtime=plan.runtime,
        tmpfs={
            "/tmp": f"rw,exec,nosuid,nodev,size={walls.disk_mb}m,{mode}{_inodes(plan, walls.disk_inodes + 2)}",
            "/dev/shm": f"rw,noexec,nosuid,nodev,size={_SHM_MB}m,{mode}{_inodes(plan, 256)}",
            **dict.fromkeys(shut, f"ro,noexec,nosuid,nodev,size=4k,mode=0555{_inodes(plan, 1)}"),
        },
    )
    return {
        "image": plan.image,
        "entrypoint": ["python3", "-I", "-S", "-B", "-c", _starter()],
        "command": [],
        "user": f"{uid}:{uid}",
        "working_dir": "/",
        "stdin_open": True,
        "labels": {LABEL: "1", OWNER: owner()},
        "host_config": host,
    }


def _inodes(plan: Plan, most: int) -> str:
    return "" if plan.is_podman else f",nr_inodes={most}"


def _starter() -> str:
    """The text of what runs inside, as modules of the names they have here."""
    here = Path(__file__).parent
    return _STARTER.format(parts={f"sandbox.{name}": (here / f"{name}.py").read_text() for name in _PARTS})


def _own_uid(is_remapped: bool) -> int:
    """A uid that no account and no other container has: the kernel counts some things by uid alone."""
    number = next(_uid_numbers)
    return 20_000 + number % 40_000 if is_remapped else (1 << 30) + number % (1 << 30)


def _explained(error: BaseException, plan: Plan) -> BaseException:
    """A loss that will come again with every container of this image becomes an error for the person."""
    text = str(error)
    if isinstance(error, ContainerLost):
        if "python3" in text and ("not found" in text or "no such file" in text):
            return VeriwardError(
                f"image {plan.image} has no python3 on its PATH; the docker backend needs 3.8 or newer"
            )
        if "SyntaxError" in text or "ModuleNotFoundError" in text:
            return VeriwardError(f"image {plan.image}: its python3 can't serve jobs ({text}); it needs 3.8 or newer")
        if "nknown runtime" in text or "unknown or invalid runtime" in text:
            return VeriwardError(f"the engine has no runtime {plan.runtime!r}: {text}")
    return error
