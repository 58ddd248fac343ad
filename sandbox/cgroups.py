"""A cgroup per slot for memory, processes, and the count and share of CPU, v1 or v2, where this process may make one.

The slot's process attaches itself once and jobs inherit: attaching each job had a heavy latency
tail. Limits are written between jobs, when only the slot's own process is inside.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_PREFIX = "veriward-"
_V1 = Path("/sys/fs/cgroup")
_V1_CPU = ("cpuacct", "cpu")
_CPU_SHARES = ("cpu.shares", "cpu.weight")


class SlotCgroup:
    """The files of one slot's cgroup. Bytes are the kernel's count: anonymous memory, tmpfs, page cache."""

    def __init__(self, memory: Path, pids: Path, cpu: list[Path]) -> None:
        """`cpu`: where v1 counts and shares out CPU, up to two hierarchies; empty with v2, which has one for all."""
        self.directories = sorted({memory, pids, *cpu})
        self._memory, self._pids = memory, pids
        self._is_v2 = (memory / "memory.max").exists()
        count = "cpu.stat" if self._is_v2 else "cpuacct.usage"
        files = (directory / count for directory in self.directories)
        self.cpu_file = str(next(filter(Path.exists, files), ""))  # counts all that was ever inside
        self.has_share = any((directory / name).exists() for directory in self.directories for name in _CPU_SHARES)
        self._baseline = 0
        self._limits = (0, 0)

    @property
    def procs_files(self) -> list[str]:
        return [str(directory / "cgroup.procs") for directory in self.directories]

    def note_baseline(self) -> None:
        """What the slot itself takes; a job's memory is allowed on top of it."""
        self._baseline = self._number("memory.current" if self._is_v2 else "memory.usage_in_bytes")

    def prepare(self, memory_mb: int, processes: int) -> None:
        """Set a job's limits and start its peak count anew."""
        if self._limits != (memory_mb, processes):
            self._write_memory_limit(self._baseline + (memory_mb << 20))
            (self._pids / "pids.max").write_text(str(processes + 1))
            self._limits = (memory_mb, processes)
        if not self._is_v2:
            (self._memory / "memory.max_usage_in_bytes").write_text("0")

    def _write_memory_limit(self, limit: int) -> None:
        if self._is_v2:
            (self._memory / "memory.max").write_text(str(limit))
            with contextlib.suppress(OSError):
                (self._memory / "memory.swap.max").write_text("0")
            return
        memory, swap = self._memory / "memory.limit_in_bytes", self._memory / "memory.memsw.limit_in_bytes"
        files = [memory, swap] if swap.exists() else [memory]
        # The kernel keeps memory <= memory+swap at every moment, so a raise starts with the wider one.
        if limit > int(memory.read_text()):
            files.reverse()
        for file in files:
            file.write_text(str(limit))

    def oom_kills(self) -> int:
        text = (self._memory / ("memory.events" if self._is_v2 else "memory.oom_control")).read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))

    def peak_mb(self) -> float | None:
        """A job's most memory in MiB, all its processes together; None where it can't be read per job."""
        if self._is_v2:
            return None
        return max(0, self._number("memory.max_usage_in_bytes") - self._baseline) / (1 << 20)

    def _number(self, name: str) -> int:
        return int((self._memory / name).read_text())

    def remove(self) -> None:
        """Give the directories back; the kernel may need a moment after the last process left."""
        for directory in self.directories:
            for _ in range(50):
                try:
                    directory.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.01)
                else:
                    break


def make_slot_cgroup(name: str) -> SlotCgroup | None:
    """A new cgroup for a slot, or None where none can be made; `name` must be unique in this process."""
    if os.geteuid() != 0:
        return None
    leaf = f"{_PREFIX}{os.getpid()}-{name}"
    for memory, pids in _homes():
        try:
            for home in {memory, pids}:
                (home / leaf).mkdir()
            group = SlotCgroup(memory / leaf, pids / leaf, _make_cpu_leaves(leaf))
            group.note_baseline()
            group.oom_kills()
            (pids / leaf / "pids.max").write_text("max")
            return group
        except (OSError, ValueError):
            for home in {memory, pids}:
                with contextlib.suppress(OSError):
                    (home / leaf).rmdir()
    return None


def _make_cpu_leaves(leaf: str) -> list[Path]:
    """In v1 the count and the share of CPU are hierarchies of their own, or one; a slot can do without."""
    made: list[Path] = []
    for controller in _V1_CPU:
        for home in _cpu_homes(controller):
            with contextlib.suppress(OSError):
                (home / leaf).mkdir(exist_ok=True)
                made.append(home / leaf)
                break
    return made


def _own() -> dict[str, str]:
    """This process's path in each v1 hierarchy."""
    own = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own.update(dict.fromkeys(controllers.split(","), path.lstrip("/")))
    return own


def _cpu_homes(controller: str) -> list[Path]:
    top = _V1 / controller
    return [home for home in (top / _own().get(controller, ""), top) if (home / "cgroup.procs").exists()]


def _homes() -> list[tuple[Path, Path]]:
    """Where slot cgroups may go: below this process's own v1 cgroups, else at the root of v1 or v2."""
    own = _own()
    homes = []
    if "memory" in own and "pids" in own:
        homes.append((_V1 / "memory" / own["memory"], _V1 / "pids" / own["pids"]))
    homes += [(_V1 / "memory", _V1 / "pids"), (_V1, _V1)]
    return [pair for pair in homes if all((home / "cgroup.procs").exists() for home in pair)]


def sweep_leftovers() -> None:
    """Remove slot cgroups whose owner is dead: a killed process can't do it itself."""
    for home in {home for pair in _homes() for home in pair} | {
        home for controller in _V1_CPU for home in _cpu_homes(controller)
    }:
        for directory in home.glob(_PREFIX + "*-*"):
            owner = directory.name.removeprefix(_PREFIX).split("-")[0]
            if owner.isdigit() and not Path("/proc", owner).exists():
                with contextlib.suppress(OSError):
                    directory.rmdir()
