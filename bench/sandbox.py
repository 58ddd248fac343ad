"""What a hardened job costs beside the same program unsandboxed, both measured in one run.

    python -m bench.sandbox [--jobs 200]

CPU counts everything: the caller's side, the slot and the job. Kinds take turns, so that a busy
machine slows them alike. bubblewrap is measured where it is installed.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sandbox import Program, Sandbox

_CODE = "print(1)"
_ROUNDS = 10


def measure(kinds: dict[str, Callable[[], object]], cpu_s: Callable[[], float], jobs: int) -> None:
    """Print min, p10 and median wall milliseconds and mean CPU milliseconds of each kind."""
    walls: dict[str, list[float]] = {name: [] for name in kinds}
    cpu = dict.fromkeys(kinds, 0.0)
    for _ in range(_ROUNDS):
        for name, run in kinds.items():
            before = cpu_s()
            for _ in range(jobs // _ROUNDS):
                started = time.perf_counter()
                run()
                walls[name].append(1e3 * (time.perf_counter() - started))
            cpu[name] += 1e3 * (cpu_s() - before)
    print(f"{'print(1)':<30}{'min':>8}{'p10':>8}{'median':>8}{'CPU':>8}  of the first (ms)")
    first = cpu[next(iter(kinds))]
    for name, times in walls.items():
        times.sort()
        row = [times[0], times[len(times) // 10], times[len(times) // 2], cpu[name] / len(times)]
        print(f"{name:<30}" + "".join(f"{value:8.2f}" for value in row) + f"  {cpu[name] / first:.2f}")


def jobs_per_s(sandbox: Sandbox, in_flight: int, jobs: int) -> float:
    def work() -> None:
        for _ in range(jobs // in_flight):
            sandbox.run_sync(Program(code=_CODE))

    threads = [threading.Thread(target=work) for _ in range(in_flight)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return jobs // in_flight * in_flight / (time.perf_counter() - started)


def cpu_of_all() -> float:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200)
    jobs = parser.parse_args().jobs
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))

    def unsandboxed(*prefix: str) -> Callable[[], object]:
        return lambda: subprocess.run([*prefix, python, "-I", "-S", "-c", _CODE], capture_output=True, check=True)

    with Sandbox(slots=4) as sandbox:
        kinds: dict[str, Callable[[], object]] = {
            "python -I -S -c, unsandboxed": unsandboxed(),
            "sandbox, fast": lambda: sandbox.run_sync(Program(code=_CODE)),
            "sandbox, fresh": lambda: sandbox.run_sync(Program(code=_CODE, mode="fresh")),
        }
        if shutil.which("bwrap"):
            kinds["bubblewrap + python -I -S"] = unsandboxed("bwrap", "--ro-bind", "/", "/", "--unshare-all")
        kinds["sandbox, fast"]()
        measure(kinds, cpu_of_all, jobs)
        for in_flight in (1, 2, 4):
            print(f"sandbox, fast, {in_flight} in flight: {jobs_per_s(sandbox, in_flight, 2 * jobs):.0f} jobs/s")


if __name__ == "__main__":
    main()
