"""Sandboxes to test, inside a second fence: if one leaks, this machine must not pay for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import pytest

from bench import fence
from sandbox import Execution, Limits, Program, Sandbox
from sandbox.backend import Backend
from tests.sandbox import backends
from tests.sandbox.backends import Outside, Process, can_confine, descendants, jobs_of, shares_root
from tests.sandbox.hostile import Root

__all__ = ["Process", "can_confine", "descendants", "jobs", "shares_root"]  # what other files of this folder import


def jobs() -> list[Process]:
    """Processes of programs that run, or survive, in this process's own sandboxes."""
    return jobs_of(os.getpid())


@pytest.fixture(scope="package", autouse=True)
def second_fence() -> Iterator[None]:
    """Around this folder's tests only."""
    with fence.second_fence():
        yield


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
def nothing_is_left(tested: Outside) -> Iterator[None]:
    """After a hostile program: none of its processes lives, and the sandbox still works."""
    yield
    assert tested.jobs() == []
    assert tested.box.run_sync(Program(code="print(6 * 7)")).stdout == b"42\n"


@pytest.fixture
def root(tested: Outside) -> Root:
    """What a job sees as /: without namespaces, paths are denied instead of absent."""
    if tested.name == "docker":
        return "container"
    return "shared" if shares_root(tested.box) else "own"


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
