"""A second fence for whatever runs hostile programs on purpose: if a sandbox leaks, the machine must not pay.

As root, the calling process moves into a pids and a memory cgroup of its own, and all it starts with it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def second_fence(processes: int = 600, memory_bytes: int = 3 << 30) -> Iterator[None]:
    """Does nothing where this process may make no cgroups."""
    fences: list[tuple[Path, Path]] = []
    limits = (("pids", "pids.max", processes), ("memory", "memory.limit_in_bytes", memory_bytes))
    for controller, name, value in limits if os.geteuid() == 0 else ():
        home = own_cgroup(controller)
        fence = home / f"fence-{os.getpid()}"
        try:
            fence.mkdir()
            (fence / name).write_text(str(value))
            (fence / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            continue
        fences.append((home, fence))
    try:
        yield
    finally:
        for home, fence in fences:
            (home / "cgroup.procs").write_text(str(os.getpid()))
            try:
                fence.rmdir()
            except OSError as error:
                print(f"a cgroup was left: {error}", file=sys.stderr)


def own_cgroup(controller: str) -> Path:
    """Where this process is now, so that it goes back there and not out of a fence around it."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return Path("/sys/fs/cgroup", controller, path.lstrip("/"))
    return Path("/sys/fs/cgroup", controller)
