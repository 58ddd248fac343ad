"""The backends that one suite tests, and what the machine shows of their jobs from outside.

VERIWARD_TEST_BACKENDS names them (`local,remote,docker`); without it local and remote are tested, and
docker where VERIWARD_TEST_IMAGE names an image and DOCKER_HOST an engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sandbox import Sandbox
from sandbox.backend import Backend
from sandbox.errors import VeriwardError
from tests.sandbox.serving import TOKEN, serving

ROOT = Path(__file__).resolve().parents[2]
KNOWN = ("local", "remote", "docker")


def chosen_backends() -> list[str]:
    usual = "local,remote,docker" if os.environ.get("VERIWARD_TEST_IMAGE") else "local,remote"
    names = os.environ.get("VERIWARD_TEST_BACKENDS", usual).split(",")
    if unknown := set(names) - set(KNOWN):
        raise pytest.UsageError(f"VERIWARD_TEST_BACKENDS: {sorted(unknown)} are none of {', '.join(KNOWN)}")
    return names


class Process(NamedTuple):
    pid: int
    parent: int
    uid: int
    is_job: bool  # inside a pid namespace, and not the slot itself


class Outside(NamedTuple):
    """A backend under test. `jobs`: processes of programs that run, or survive, in it, as the machine counts them.

    `harness`: the process that started its slots or containers.
    """

    name: str
    box: Backend
    jobs: Callable[[], list[int]]
    harness: int


@contextmanager
def starting(name: str, *, slots: int = 2, token: str = TOKEN) -> Iterator[Outside]:
    """Skips, or fails where docker is required, when this machine lacks what the backend needs."""
    begin = {"local": _local, "remote": _remote, "docker": _docker}[name]
    with begin(slots, token) as tested:
        yield tested


@contextmanager
def _local(slots: int, token: str) -> Iterator[Outside]:
    skip_unless_confined()
    with Sandbox(slots=slots) as box:
        yield Outside("local", box, lambda: [process.pid for process in jobs_of(os.getpid())], os.getpid())


@contextmanager
def _remote(slots: int, token: str) -> Iterator[Outside]:
    from sandbox import RemoteSandbox

    skip_unless_confined()
    with serving(slots=slots, token=token) as server, RemoteSandbox(server.url, token=token) as box:
        pid = server.process.pid
        yield Outside("remote", box, lambda: [process.pid for process in jobs_of(pid)], pid)


@contextmanager
def _docker(slots: int, token: str) -> Iterator[Outside]:
    import docker

    from sandbox import DockerSandbox
    from sandbox.docker_engine import LABEL, OWNER

    image, host = os.environ.get("VERIWARD_TEST_IMAGE", ""), os.environ.get("DOCKER_HOST", "")
    if not (image and host):
        lacks("VERIWARD_TEST_IMAGE and DOCKER_HOST name no engine")
    engine = docker.APIClient(base_url=host, version="auto", timeout=60)

    def jobs() -> list[int]:
        rows = engine.containers(filters={"label": f"{LABEL}=1"})
        own = [row["Id"] for row in rows if row["Labels"][OWNER].startswith(f"{os.getpid()}:")]
        return [pid for container in own for pid in processes_in(engine, container)[1:]]

    try:
        with DockerSandbox(image, slots=slots) as box:
            try:
                box.guarantees()
            except VeriwardError as error:
                lacks(str(error))
            yield Outside("docker", box, jobs, os.getpid())
    finally:
        engine.close()


def processes_in(engine: Any, container: str) -> list[int]:
    """Pids as the machine has them, pid 1 first; empty where the container has ended."""
    from docker.errors import APIError

    try:
        listing = engine.top(container, "-eo pid")
    except APIError:
        return []
    return sorted(int(row[0]) for row in listing["Processes"])


def lacks(what: str) -> None:
    if os.environ.get("VERIWARD_DOCKER_REQUIRED"):
        pytest.fail(what)
    pytest.skip(what)


def skip_unless_confined() -> None:
    if missing := can_confine():
        pytest.skip(missing)


def can_confine() -> str:
    """Empty where programs can run, else the reason they can't."""
    try:
        with Sandbox(slots=1) as probe:
            probe.guarantees()
    except VeriwardError as error:
        return str(error)
    return ""


def shares_root(box: Backend) -> bool:
    """Whether programs are confined on the machine's own root, for want of namespaces."""
    found = box.guarantees()
    return found.backend == "local" and not found.enforces("disk")


def descendants(ancestor: int) -> list[Process]:
    """Every living process below this one, as the machine sees them. Orphans of a job stay below its slot."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            lines = (entry / "status").read_text().splitlines() if entry.name.isdigit() else []
        except OSError:
            continue
        fields = {key: value.split() for key, _, value in (line.partition(":") for line in lines)}
        if fields and fields["State"][0] != "Z":
            inner = fields["NSpid"]
            is_job = len(inner) > 1 and inner[-1] != "1"
            pid = int(entry.name)
            found[pid] = Process(pid, int(fields["PPid"][0]), int(fields["Uid"][0]), is_job)
    below = {ancestor}
    while True:
        more = {process.pid for process in found.values() if process.parent in below} - below
        if not more:
            return [found[pid] for pid in below if pid != ancestor]
        below |= more


def jobs_of(owner: int) -> list[Process]:
    """Processes of programs in the local sandboxes of a process: below a keeper's slot."""
    mine = descendants(owner)
    keepers = {p.pid for p in mine if p.parent == owner and _is_keeper(p.pid)}
    slots = {p.pid for p in mine if p.parent in keepers}
    return [p for p in mine if p.pid not in keepers | slots and (p.is_job or _is_below(p, slots, mine))]


def _is_keeper(pid: int) -> bool:
    try:
        return b"sandbox.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _is_below(process: Process, ancestors: set[int], all_of_them: list[Process]) -> bool:
    parents = {other.pid: other.parent for other in all_of_them}
    pid = process.parent
    while pid in parents and pid not in ancestors:
        pid = parents[pid]
    return pid in ancestors
