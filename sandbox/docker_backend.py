"""The docker sandbox: the same promises as the local one, held by containers of a Docker or Podman engine.

A container is made with every wall up and then kept for the next jobs with the same limits, since
making one costs a hundred times what a job in it does. The engine is reached with the first use.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import hashlib
import importlib.metadata
import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from sandbox.backend import Session, SessionKind
from sandbox.docker_container import (
    Container,
    ContainerLost,
    Plan,
    Walls,
    brief,
    connect,
    losing,
    remove_leftovers,
)
from sandbox.docker_job import DockerJob
from sandbox.errors import ConfigError, VeriwardError
from sandbox.guarantees import Guarantee, Guarantees
from sandbox.languages import PYTHON
from sandbox.models import Execution, Limits, Program
from sandbox.steps import CompileCache, Step, interpreter_command, run_program, run_step

SHIPPED_DOCKERFILE = Path(__file__).with_name("container") / "Dockerfile"
_DEFAULT_SOCKET = "unix:///var/run/docker.sock"
_JOBS_PER_CONTAINER = 200
_BUILD_TIMEOUT_S = 1800
_RUN_MAIN = Path(__file__).with_name("run_main.py")
_KNOWN_GOOD = Program(code="pass")

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
        self.image = image or _default_image(dockerfile)
        self._reuse, self._runtime, self._cpus, self._dockerfile, self._require = (
            reuse,
            runtime,
            cpus,
            dockerfile,
            require,
        )
        self._base_url = base_url or os.environ.get("DOCKER_HOST") or _DEFAULT_SOCKET
        self._cache = CompileCache()
        self._is_closed = False
        self._plan: Plan | None = None
        self._info: dict[str, Any] = {}
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
        return self._run(program, _Handle())

    async def run(self, program: Program) -> Execution:
        """`run_sync` without blocking the loop. Cancelling it ends the job."""
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix="docker-sandbox")
        handle = _Handle()
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
        return _guarantees(self._info, plan)

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

    def _run(self, program: Program, handle: _Handle) -> Execution:
        with self._gate:
            return run_program(program, lambda step: self._run_step(step, handle), self._cache, warm=False)

    def _run_step(self, step: Step, handle: _Handle) -> Execution:
        execution = self._attempt(step, handle)
        if execution.status == "unavailable" and not handle.is_cancelled:
            execution = self._attempt(step, handle)
            if execution.status == "unavailable" and self._is_sound():
                return execution.model_copy(update={"status": "killed", "error": "it ended its container, twice"})
        return execution

    def _is_sound(self) -> bool:
        good = run_program(_KNOWN_GOOD, lambda step: self._attempt(step, _Handle()), self._cache, warm=False)
        return good.exit_code == 0

    def _attempt(self, step: Step, handle: _Handle) -> Execution:
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
        """Reach the engine once: what it can do, the image, what a dead process left there."""
        with self._planning:
            if self._is_closed:
                raise RuntimeError("this DockerSandbox is closed")
            if self._plan is None:
                api = connect(self._base_url)
                try:
                    with losing(f"the engine at {self._base_url} failed"):
                        self._info, version = api.info(), api.version()
                        _require_image(api, self.image, self._dockerfile)
                    remove_leftovers(api)
                except ContainerLost as lost:
                    raise VeriwardError(str(lost)) from None
                finally:
                    api.close()
                options = " ".join(self._info.get("SecurityOptions") or ())
                is_remapped = "name=userns" in options or "name=rootless" in options
                is_podman = any("Podman" in part.get("Name", "") for part in version.get("Components") or ())
                plan = Plan(self._base_url, self.image, self._runtime, self._cpus, is_remapped, is_podman)
                _guarantees(self._info, plan).require(self._require)
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


class _Handle:
    """Lets the awaiting side of `run` stop a job that a thread is busy with."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self._lock = threading.Lock()
        self._job: DockerJob | None = None

    def cancel(self) -> None:
        with self._lock:
            self.is_cancelled = True
            if self._job is not None:
                self._job.stop()

    @contextlib.contextmanager
    def holding(self, job: DockerJob) -> Iterator[None]:
        with self._lock:
            self._job = job
            if self.is_cancelled:
                job.stop()
        try:
            yield
        finally:
            with self._lock:
                self._job = None


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


def _default_image(dockerfile: str | os.PathLike[str] | None) -> str:
    if dockerfile is None or Path(dockerfile) == SHIPPED_DOCKERFILE:
        return f"veriward-sandbox:{importlib.metadata.version('veriward')}"
    try:
        return f"veriward-sandbox:{hashlib.sha256(Path(dockerfile).read_bytes()).hexdigest()[:16]}"
    except OSError as error:
        raise ConfigError(f"DockerSandbox(dockerfile={str(dockerfile)!r}): {error.strerror}") from None


def _require_image(api: Any, image: str, dockerfile: str | os.PathLike[str] | None) -> None:
    import docker

    try:
        api.inspect_image(image)
        return
    except docker.errors.ImageNotFound:
        if dockerfile is None:
            build = f"docker build -t {image} {SHIPPED_DOCKERFILE.parent}"
            if image != _default_image(None):
                build = f"docker pull {image}"
            raise VeriwardError(f"the engine has no image {image}; get it with: {build}") from None
    path = Path(dockerfile)
    api.timeout = _BUILD_TIMEOUT_S
    lines = api.build(path=str(path.parent), dockerfile=path.name, tag=image, rm=True, forcerm=True, decode=True)
    for line in lines:
        if "error" in line:
            raise VeriwardError(f"{path} did not build: {brief(Exception(line['error']))}")


def _guarantees(info: dict[str, Any], plan: Plan) -> Guarantees:
    where = f"image {plan.image}, runtime {plan.runtime or info.get('DefaultRuntime') or 'the default one'}"
    enforced = {
        "harness": f"a container of its own, an undumpable pid 1, a fresh interpreter ({where})",
        "files": "read-only root; one tmpfs to write to, emptied after every job",
        "network": "network mode none; only unix sockets (seccomp)",
        "survivors": "every process of the container killed and reaped",
        "wall": "killed by the container's pid 1, or with the container",
        "output": "killed by its reader",
        "disk": "tmpfs with capped bytes and inodes",
        "file_size": "RLIMIT_FSIZE",
        "open_files": "RLIMIT_NOFILE, per process",
        "processes": "pids cgroup and RLIMIT_NPROC of a uid of its own",
        "cpu": "RLIMIT_CPU per process, the sum looked at every 0.1 s",
        "memory": "memory cgroup over all processes and the tmpfs",
        "neighbours": "an equal share of the CPUs for every container's cgroup",
    }
    weaker = {"landlock": "not used; the container's read-only root stands alone"}
    if plan.is_podman:
        weaker["disk"] = "Podman takes no inode limit for a tmpfs: only its bytes are capped"
    if not info.get("MemoryLimit"):
        weaker["memory"] = "the engine can't limit memory: RLIMIT_AS per process"
    if not info.get("CPUShares"):
        weaker["neighbours"] = "the engine has no CPU shares: who has many processes gets many of them"
    items = [Guarantee(name=name, level="enforced", how=how) for name, how in enforced.items() if name not in weaker]
    items += [Guarantee(name=name, level="weaker", how=how) for name, how in weaker.items()]
    return Guarantees(backend="docker", items=tuple(items))


@atexit.register
def _close_all() -> None:
    for sandbox in list(_live):
        sandbox.close()


def _after_fork_in_child() -> None:
    for sandbox in list(_live):
        sandbox._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
