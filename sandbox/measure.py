"""What a job costs on this machine, kinds taking turns so that a busy moment slows them alike.

CPU counts everything of ours: the caller, its slots and the jobs in them. What a daemon does for a
job (Docker's) is outside and not counted.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from sandbox.backend import Backend
from sandbox.models import Program

CODE = "print(1)"
SCI_CODE = "import numpy, sympy\nx = sympy.Symbol('x')\nprint(numpy.arange(9).sum(), sympy.expand((x + 1) ** 2))"
_ROUNDS = 10

Kind = Callable[[], object]


class Figures(NamedTuple):
    """Milliseconds: wall clock, and CPU as a mean over the jobs."""

    min_ms: float
    p10_ms: float
    median_ms: float
    cpu_ms: float


def measure(kinds: dict[str, Kind], jobs: int, slow: dict[str, Kind] | None = None) -> dict[str, Figures]:
    """`jobs` of each kind in ten rounds, of each slow one a tenth, after one of each to start what is kept."""
    each = max(1, jobs // _ROUNDS)
    plan = [(name, run, each) for name, run in kinds.items()]
    plan += [(name, run, max(1, each // _ROUNDS)) for name, run in (slow or {}).items()]
    walls: dict[str, list[float]] = {name: [] for name, *_ in plan}
    cpu = dict.fromkeys(walls, 0.0)
    for _, run, _ in plan:
        run()
    for _ in range(_ROUNDS):
        for name, run, times in plan:
            before = cpu_s_of_all()
            for _ in range(times):
                started = time.perf_counter()
                run()
                walls[name].append(1e3 * (time.perf_counter() - started))
            cpu[name] += 1e3 * (cpu_s_of_all() - before)
    figures = {}
    for name, taken in walls.items():
        taken.sort()
        figures[name] = Figures(taken[0], taken[len(taken) // 10], taken[len(taken) // 2], cpu[name] / len(taken))
    return figures


def bare_python(code: str = CODE, *prefix: str, isolated: bool = True, pass_fds: Sequence[int] = ()) -> Kind:
    """The same program in an interpreter of its own, unsandboxed or behind a command that confines it."""
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable)) if isolated else sys.executable
    command = [*prefix, python, *(["-I", "-S"] if isolated else ["-I"]), "-c", code]
    return lambda: subprocess.run(command, capture_output=True, check=True, pass_fds=pass_fds)


def local_kinds(sandbox: Backend, *, with_sci: bool) -> dict[str, Kind]:
    kinds: dict[str, Kind] = {
        "sandbox, fast": lambda: sandbox.run_sync(Program(code=CODE)),
        "sandbox, fresh": lambda: sandbox.run_sync(Program(code=CODE, mode="fresh")),
    }
    if with_sci:
        kinds["sandbox, numpy and sympy"] = lambda: sandbox.run_sync(Program(code=SCI_CODE, flavour="sci"))
    return kinds


def jobs_per_s(sandbox: Backend, in_flight: int, jobs: int, code: str = CODE) -> float:
    def work() -> None:
        for _ in range(jobs // in_flight):
            sandbox.run_sync(Program(code=code))

    return rate(work, in_flight, jobs // in_flight)


def rate(work: Callable[[], None], in_flight: int, each: int) -> float:
    """Jobs a second with `in_flight` threads that do `each` of them."""
    threads = [threading.Thread(target=work) for _ in range(in_flight)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return each * in_flight / (time.perf_counter() - started)


def cpu_s_of_all() -> float:
    """CPU seconds of this process, its finished children, and its slots with the jobs they reaped."""
    own = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            stats[int(entry.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    keepers = {pid for pid, (parent, _) in stats.items() if parent == os.getpid()}
    ticks = sum(used for pid, (parent, used) in stats.items() if pid in keepers or parent in keepers)
    return own + ticks / os.sysconf("SC_CLK_TCK")
