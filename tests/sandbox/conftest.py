"""Sandboxes to test, inside a second fence: if one leaks, this machine must not pay for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from sandbox import Execution, Limits, Program, Sandbox
from sandbox.backend import Backend
from tests.sandbox import backends
from tests.sandbox.backends import Outside, Process, can_confine, descendants, jobs_of, shares_root

__all__ = ["Process", "can_confine", "descendants", "jobs", "shares_root"]  # what other files of this folder import


def jobs() -> list[Process]:
    """Processes of programs that run, or survive, in this process's own sandboxes."""
    return jobs_of(os.getpid())


def own_cgroup(controller: str) -> Path:
    """Where this process is now, so that it goes back there and not out of a fence around it."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return Path("/sys/fs/cgroup", controller, path.lstrip("/"))
    return Path("/sys/fs/cgroup", controller)


@pytest.fixture(scope="package", autouse=True)
def second_fence() -> Iterator[None]:
    """As root, this process gets a pids and memory cgroup that its slots' lie in, for this folder's tests only."""
    fences: list[tuple[Path, Path]] = []
    if os.geteuid() == 0:
        for controller, name, value in (("pids", "pids.max", "600"), ("memory", "memory.limit_in_bytes", str(3 << 30))):
            home = own_cgroup(controller)
            fence = home / f"fence-{os.getpid()}"
            try:
                fence.mkdir()
                (fence / name).write_text(value)
                (fence / "cgroup.procs").write_text(str(os.getpid()))
            except OSError:
                continue
            fences.append((home, fence))
    yield
    for home, fence in fences:
        (home / "cgroup.procs").write_text(str(os.getpid()))
        try:
            fence.rmdir()
        except OSError as error:
            print(f"a cgroup of the tests was left: {error}", file=sys.stderr)


# One suite for every backend: a file says `pytestmark = pytest.mark.backends("local", "remote", "docker")`, and its
# tests run on those of them that are chosen. Without the mark a test gets the local one.


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "backends(*names): the backends that a test of `box` runs on")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("backends")
    if mark is not None and "tested" in metafunc.fixturenames:
        names = [name for name in backends.chosen_backends() if name in mark.args]
        metafunc.parametrize("tested", names, indirect=True, scope="package")


@pytest.fixture(scope="package")
def tested(second_fence: None, request: pytest.FixtureRequest) -> Iterator[Outside]:
    with backends.starting(getattr(request, "param", "local")) as found:
        yield found


@pytest.fixture(scope="package")
def box(tested: Outside) -> Backend:
    return tested.box


@pytest.fixture
def start(tested: Outside) -> Callable[..., AbstractContextManager[Outside]]:
    """Starts another backend of the tested kind."""
    return partial(backends.starting, tested.name)


@pytest.fixture
def run(box: Sandbox) -> Callable[..., Execution]:
    """Run code under limits that a hostile program meets soon."""

    def run_code(
        code: str,
        *,
        language: str = "python",
        mode: str = "fast",
        stdin: bytes = b"",
        argv: tuple[str, ...] = (),
        **limits: float,
    ) -> Execution:
        tight = {"wall_s": 8.0, "memory_mb": 128, "output_bytes": 1 << 16, "disk_mb": 8, "file_size_mb": 4, **limits}
        given = {"language": language, "code": code, "mode": mode, "stdin": stdin, "argv": argv}
        return box.run_sync(Program.model_validate({**given, "limits": Limits(**tight)}))

    return run_code
