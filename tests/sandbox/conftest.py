"""A sandbox to test, inside a second fence: if it leaks, this machine must not pay for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from sandbox import Execution, Limits, Program, Sandbox
from sandbox.errors import VeriwardError


def can_confine() -> str:
    """Empty where programs can run, else the reason they can't."""
    try:
        with Sandbox(slots=1) as probe:
            probe.guarantees()
    except VeriwardError as error:
        return str(error)
    return ""


def shares_root(box: object) -> bool:
    """Whether programs are confined on the machine's own root, for want of namespaces."""
    box.guarantees()  # type: ignore[attr-defined]
    return bool(getattr(box, "_shares_root", False))


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


@pytest.fixture(scope="package")
def box(second_fence: None) -> Iterator[Sandbox]:
    missing = can_confine()
    if missing:
        pytest.skip(missing)
    with Sandbox(slots=2) as sandbox:
        yield sandbox


@pytest.fixture
def run(box: Sandbox) -> Callable[..., Execution]:
    """Run code under limits that a hostile program meets soon."""

    def run_code(code: str, *, mode: str = "fast", stdin: bytes = b"", **limits: float) -> Execution:
        tight = {"wall_s": 8.0, "memory_mb": 128, "output_bytes": 1 << 16, "disk_mb": 8, "file_size_mb": 4, **limits}
        return box.run_sync(
            Program.model_validate({"code": code, "mode": mode, "stdin": stdin, "limits": Limits(**tight)})
        )

    return run_code


class Process(NamedTuple):
    pid: int
    parent: int
    uid: int
    is_job: bool  # inside a pid namespace, and not the slot itself


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


def jobs() -> list[Process]:
    """Processes of programs that run, or survive, in this process's sandboxes: below a keeper's slot."""
    mine = descendants(os.getpid())
    keepers = {p.pid for p in mine if p.parent == os.getpid() and _is_keeper(p.pid)}
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
