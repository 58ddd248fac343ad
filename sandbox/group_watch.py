"""The watch over a job that has no pid namespace: its process group takes the namespace's place.

A job can't leave its group (seccomp denies setsid and setpgid), and the kernel lets no fork slip
through a signal to a group. What has no other bound here, processes and disk, is looked at often.
Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal

from sandbox.watch import Watch, memory_kb


class GroupWatch(Watch):
    """`child` leads the group. Its slot is the subreaper of all that the job starts."""

    tick_s = 0.05

    def _end_processes(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child, signal.SIGKILL)  # it may not have made its group yet
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child, signal.SIGKILL)

    def _abandon(self) -> None:
        self._end_processes()
        self._reap()
        self.place.end_job()
        os._exit(0)

    def _over_a_total(self) -> bool:
        members = group_members(self.child)
        pids = [pid for pid, _ in members]
        if sum(tasks for _, tasks in members) > self.request["processes"]:
            self.limit = "processes"
        elif self.place.is_full(pids):
            self.limit = "disk"
        elif self._cpu_s(pids) > self.request["cpu_s"]:
            self.limit = "cpu"
        elif self.watches.memory and memory_kb(self.watches.proc, pids) > self.request["memory_mb"] * 1024:
            self.limit = "memory"
        return self.limit != "-"


def group_members(group: int) -> list[tuple[str, int]]:
    """Process ids in a group, each with its number of tasks; one that has ended but was not waited for has none."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                if int(fields[2]) == group and fields[0] != b"Z":
                    found.append((name, int(fields[17])))
    return found


def end_orphans() -> None:
    """In the keeper, once its slot has died: kill the groups of all that fell to it, and wait for them."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        orphans = _children()
        if not orphans:
            return
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                group = os.getpgid(pid)
                if group != os.getpgid(0):
                    os.killpg(group, signal.SIGKILL)
                else:
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)


def _children() -> list[int]:
    mine = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                    mine.append(int(name))
    return mine
