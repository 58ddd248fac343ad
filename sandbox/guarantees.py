"""What a sandbox enforces on this machine, what is weaker here, and why.

Some things are never weaker: a machine that cannot hide the harness's memory, files and
environment, cut the network, end survivors and forbid writes outside is refused, not listed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from sandbox.errors import ConfigError, VeriwardError

Level = Literal["enforced", "weaker"]


class Guarantee(BaseModel):
    """One thing promised: `how` names the mechanism, or for a weaker one what is missing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    level: Level
    how: str


class Guarantees(BaseModel):
    """All of them for one backend on one machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: str
    items: tuple[Guarantee, ...]

    def weaker(self) -> tuple[Guarantee, ...]:
        return tuple(item for item in self.items if item.level == "weaker")

    def enforces(self, name: str) -> bool:
        """Raises KeyError for a name that no backend promises."""
        return {item.name: item.level for item in self.items}[name] == "enforced"

    def require(self, names: Iterable[str]) -> None:
        """Raises ConfigError for a name that is none, VeriwardError naming each one that is weaker here."""
        known = {item.name: item for item in self.items}
        if unknown := [name for name in names if name not in known]:
            raise ConfigError(f"require: {unknown[0]!r} is no guarantee; there are {', '.join(sorted(known))}")
        if weaker := [f"{name} ({known[name].how})" for name in names if known[name].level == "weaker"]:
            raise VeriwardError(
                f"the {self.backend} sandbox is required to enforce what is weaker here: {'; '.join(weaker)}"
            )


def local_guarantees(
    *,
    as_root: bool,
    has_cgroup: bool,
    counts_cpu: bool,
    shares_cpu: bool,
    landlock_abi: int,
    has_proc: bool,
    shares_root: bool,
) -> Guarantees:
    """The local backend's, from what its slot found when it started."""
    neighbours = _neighbours(shares_cpu)
    if shares_root:
        items_here = _on_a_shared_root(as_root, has_cgroup, counts_cpu, landlock_abi)
        return Guarantees(backend="local", items=(*items_here, neighbours))
    identity = "a uid of the slot's own" if as_root else "a user namespace without capabilities"
    items = [
        Guarantee(name="harness", level="enforced", how=f"own pid and mount namespaces, {identity}, fresh interpreter"),
        Guarantee(name="files", level="enforced", how="read-only root of its own; one tmpfs to write to"),
        Guarantee(name="network", level="enforced", how="empty network namespace; only unix sockets (seccomp)"),
        Guarantee(name="survivors", level="enforced", how="every process of the pid namespace killed and reaped"),
        *_COMMON,
        Guarantee(name="disk", level="enforced", how="tmpfs with capped bytes and inodes"),
        Guarantee(name="processes", level="enforced", how="pids cgroup" if has_cgroup else "RLIMIT_NPROC of its uid"),
        _cpu(counts_cpu, has_proc, "0.1 s"),
        _memory(as_root, has_cgroup, has_proc),
        Guarantee(
            name="landlock",
            level="enforced" if landlock_abi >= 6 else "weaker",
            how=f"ABI {landlock_abi}"
            if landlock_abi
            else "this kernel has no Landlock; the read-only root stands alone",
        ),
        neighbours,
    ]
    return Guarantees(backend="local", items=tuple(items))


_COMMON = (
    Guarantee(name="wall", level="enforced", how="killed by the slot, or with it"),
    Guarantee(name="output", level="enforced", how="killed by its reader"),
    Guarantee(name="file_size", level="enforced", how="RLIMIT_FSIZE"),
    Guarantee(name="open_files", level="enforced", how="RLIMIT_NOFILE, per process"),
)


def _on_a_shared_root(as_root: bool, has_cgroup: bool, counts_cpu: bool, landlock_abi: int) -> tuple[Guarantee, ...]:
    """Where namespaces are refused, as in an ordinary container."""
    identity = "a uid of the slot's own" if as_root else "signals and ptrace kept inside by Landlock"
    processes = Guarantee(name="processes", level="weaker", how="no count of its own: looked at every 0.05 s")
    if as_root:
        how = "pids cgroup" if has_cgroup else "RLIMIT_NPROC of its uid"
        processes = Guarantee(name="processes", level="enforced", how=how)
    return (
        Guarantee(name="harness", level="enforced", how=f"Landlock domain, {identity}, fresh interpreter"),
        Guarantee(
            name="files", level="enforced", how="Landlock: system to read, one folder to write; names can be seen"
        ),
        Guarantee(name="network", level="enforced", how="no sockets but pairs (seccomp)"),
        Guarantee(name="survivors", level="enforced", how="a process group that can't be left (seccomp), killed whole"),
        *_COMMON,
        Guarantee(name="disk", level="weaker", how="no mounts here: its folder and open files looked at every 0.05 s"),
        processes,
        _cpu(counts_cpu, True, "0.05 s; in sessions for the whole"),
        _memory(as_root, has_cgroup, has_proc=True),
        Guarantee(name="landlock", level="enforced" if landlock_abi >= 6 else "weaker", how=f"ABI {landlock_abi}"),
    )


def _cpu(counts_cpu: bool, has_proc: bool, interval: str) -> Guarantee:
    if counts_cpu:
        return Guarantee(name="cpu", level="enforced", how=f"its cgroup's count, looked at every {interval}")
    if has_proc:
        how = f"RLIMIT_CPU per process, the sum over those that live or were waited for looked at every {interval}"
        return Guarantee(name="cpu", level="enforced", how=how)
    return Guarantee(name="cpu", level="weaker", how="no /proc in the slot: RLIMIT_CPU per process only")


def _neighbours(shares_cpu: bool) -> Guarantee:
    if shares_cpu:
        return Guarantee(name="neighbours", level="enforced", how="an equal share of the CPUs for every slot's cgroup")
    how = "no writable cpu cgroup: who has many processes gets many shares of the CPUs, up to its processes limit"
    return Guarantee(name="neighbours", level="weaker", how=how)


def _memory(as_root: bool, has_cgroup: bool, has_proc: bool) -> Guarantee:
    if has_cgroup:
        return Guarantee(name="memory", level="enforced", how="memory cgroup over all processes and the tmpfs")
    why = "no writable memory cgroup" + ("" if as_root else " (not root)")
    total = "the sum only looked at every 0.1 s" if has_proc else "no bound on the sum"
    return Guarantee(name="memory", level="weaker", how=f"{why}: RLIMIT_AS per process, {total}")
