"""The docker sandbox: the same promises as the local one, held by containers of a Docker or Podman engine.

A container is made with every wall up and then kept for the next jobs with the same limits, since
making one costs a hundred times what a job in it does. The engine is reached with the first use.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from sandbox.attempts import Handle, attempt_twice
from sandbox.backend import Session, SessionKind
from sandbox.docker_container import Container, Walls
from sandbox.docker_engine import ContainerLost
from sandbox.docker_job import DockerJob
from sandbox.docker_plan import Plan, default_image, make_plan
from sandbox.errors import ConfigError, VeriwardError
from sandbox.guarantees import Guarantees
from sandbox.languages import PYTHON
from sandbox.models import Execution, Limits, Program
from sandbox.steps import CompileCache, Step, interpreter_command, run_program, run_step

_DEFAULT_SOCKET = "unix:///var/run/docker.sock"
_JOBS_PER_CONTAINER = 200
_RUN_MAIN = Path(__file__).with_name("run_main.py")
_KNOWN_GOOD = run_step(Program(code="pass"), can_be_warm=False)

_live: weakref.WeakSet[DockerSandbox] = weakref.WeakSet()


class DockerSandbox:
    """Runs programs in containers, `slots` at a time. Safe from any thread; close it, or let interpreter exit do so."""

    def __init__(
        self,
        image: str | None = None,
        *,
        slots: int | None = None,
        reuse: bool = True,
        runtime: str | None = None,
        cpus: float | None = None,
        base_url: str | None = None,
        dockerfile: str | os.PathLike[str] | None = None,
        require: tuple[str, ...] = (),
    ) -> None:
        """`image`: one with a python3 of 3.8 or newer and what the languages need; default the one that
        `SHIPPED_DOCKERFILE` builds. `dockerfile`: builds the image first where it is absent. `reuse`: False
        for one container per job. `runtime`: the engine's name of one, as gVisor's `runsc`. `cpus`: CPUs a
        container may use. `base_url`: the engine, default DOCKER_HOST. `require`: guarantees that must hold.

        Raises ConfigError for impossible settings; the engine is first asked by the first use.
        """
        if slots is not None and slots < 1:
            raise ConfigError(f"DockerSandbox(slots={slots}): at least 1 job at a time; leave it out for one per CPU")
        if cpus is not None and not 0.01 <= cpus <= 4096:
            raise ConfigError(f"DockerSandbox(cpus={cpus}): a number of CPUs from 0.01 up")
        self.slots = slots or len(os.sched_getaffinity(0))
        self.image = image or default_image(dockerfile)
        self._reuse, self._require = reuse, require
        self._runtime, self._cpus, self._dockerfile = runtime, cpus, dockerfile
        self._base_url = base_url or os.environ.get("DOCKER_HOST") or _DEFAULT_SOCKET
        self._cache = CompileCache()
        self._is_closed = False
        self._plan: Plan | None = None
        self._reset()
        _live.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._planning = threading.Lock()
        self._gate = threading.BoundedSemaphore(self.slots)
        self._all: set[Container] = set()
        self._idle: list[Container] = []
        self._threads: ThreadPoolExecutor | None = None

    def run_sync(self, program: Program) -> Execution:
        """Run to the end, waiting for a free slot first. Blocking; safe from any thread or running loop.

        What the program does is in the Execution, never an exception. A lost container is retried once;
        `unavailable` means that failed too and a known-good program fails as well. A program that loses
        two containers where a known-good one runs is `killed`. Raises VeriwardError where there is no
        engine, or its image can't serve.
        """
        return self._run(program, Handle())

    async def run(self, program: Program) -> Execution:
        """`run_sync` without blocking the loop. Cancelling it ends the job."""
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix="docker-sandbox")
        handle = Handle()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, program, handle)
        except asyncio.CancelledError:
            handle.cancel()
            raise

    def session(self, kind: SessionKind = "python", *, limits: Limits | None = None) -> Session:
        """A session in a container of its own, started with its first use."""
        from sandbox.session import JobSession

        return JobSession(self.open_step, kind, limits or Limits())

    def open(self, program: Program) -> DockerJob:
        """Start a program to talk to, as a context manager. Its `stdin` is sent first.

        Never waits for a free slot but adds one for the time, so that holding one job while opening
        another cannot lock. Raises ContainerLost when two containers in a row do not come up, and
        ConfigError where the language needs a compile: run that one.
        """
        if program.spec.compile is not None:
            raise ConfigError(
                "DockerSandbox.open: a compiled language can't be talked to; use run, or compile it first"
            )
        return self.open_step(run_step(program, can_be_warm=False))

    def open_step(self, step: Step) -> DockerJob:
        """`open` for one command; a compiled program's binary is one of its files."""
        try:
            return self._begin(step)
        except ContainerLost:
            return self._begin(step)

    def guarantees(self) -> Guarantees:
        """What is enforced here and what is weaker and why; starts a container if there is none yet."""
        plan = self._ready_plan()
        try:
            container = self._take(Walls.around(Limits()))
        except ContainerLost as lost:
            raise VeriwardError(f"no container of image {self.image} comes up: {lost}") from None
        self._give(container, True)
        return plan.guarantees()

    def close(self) -> None:
        """Remove every container, and any job still in one. Later use raises RuntimeError."""
        with self._lock:
            self._is_closed = True
            threads, self._threads = self._threads, None
            idle, self._idle = self._idle, []
            busy = self._all - set(idle)
        for container in busy:
            container.kill()
        if threads is not None:
            threads.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            left, self._all = self._all, set()
        for container in left:
            container.close()

    def _run(self, program: Program, handle: Handle) -> Execution:
        def run_one(step: Step) -> Execution:
            return attempt_twice(step, handle, self._attempt, _KNOWN_GOOD, "container")

        with self._gate:
            return run_program(program, run_one, self._cache, warm=False)

    def _attempt(self, step: Step, handle: Handle) -> Execution:
        try:
            with self._begin(step) as job, handle.holding(job):
                return job.finish()
        except ContainerLost as lost:
            return Execution(status="unavailable", error=f"no sandbox container: {lost}")

    def _begin(self, step: Step) -> DockerJob:
        container = self._take(Walls.around(step.limits))
        command, environment = _to_exec(step, container.features)
        ready = replace(step, command=command)
        return DockerJob(container, ready, environment, lambda is_reusable: self._give(container, is_reusable))

    def _take(self, walls: Walls) -> Container:
        plan = self._ready_plan()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("this DockerSandbox is closed")
            for container in reversed(self._idle):
                if container.walls == walls:
                    self._idle.remove(container)
                    return container
        container = Container(plan, walls)
        with self._lock:
            if not self._is_closed:
                self._all.add(container)
                return container
        container.close()
        raise RuntimeError("this DockerSandbox is closed")

    def _give(self, container: Container, is_reusable: bool) -> None:
        dropped = [container]
        with self._lock:
            if is_reusable and self._reuse and container.jobs_started < _JOBS_PER_CONTAINER and not self._is_closed:
                self._idle.append(container)
                dropped = [self._idle.pop(0)] if len(self._idle) > 2 * self.slots else []
            dropped = [each for each in dropped if each in self._all]  # else close() took it
            self._all.difference_update(dropped)
        for each in dropped:
            each.close()

    def _ready_plan(self) -> Plan:
        """Reach the engine once."""
        with self._planning:
            if self._is_closed:
                raise RuntimeError("this DockerSandbox is closed")
            if self._plan is None:
                plan = make_plan(self._base_url, self.image, self._runtime, self._cpus, self._dockerfile)
                plan.guarantees().require(self._require)
                self._plan = plan
        return self._plan

    def _forget(self) -> None:
        """In the child of a fork: the containers are the parent's; start with none."""
        for container in self._all:
            container.forget()
        self._reset()

    def __enter__(self) -> DockerSandbox:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _to_exec(step: Step, features: dict[str, Any]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The step's command for this image's interpreter, and the environment it needs."""
    command = interpreter_command(step, features["python"], _RUN_MAIN.read_text())
    if step.command[:1] != (PYTHON,):
        return command, {}
    python, *rest = command
    flags, words = rest[: rest.index("-c")], rest[rest.index("-c") :]
    unwanted = {"-P"} if features["version"] < [3, 11] else set()
    if step.flavour == "sci":
        unwanted.add("-S")  # the image's own packages
    return (python, *(flag for flag in flags if flag not in unwanted), *words), {"PYTHONHASHSEED": "0"}


@atexit.register
def _close_all() -> None:
    for sandbox in list(_live):
        sandbox.close()


def _after_fork_in_child() -> None:
    for sandbox in list(_live):
        sandbox._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
