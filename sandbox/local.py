"""The local sandbox: slots that run hostile Python on this machine, with no daemon and as any user.

It promises that a program sees nothing of this process, reaches no network, writes nowhere else
and outlives nothing; where the machine can't hold that, the first use raises VeriwardError.
Slots start when first needed (tens of milliseconds) and are kept.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING

from sandbox.attempts import Handle, attempt_twice
from sandbox.cgroups import sweep_leftovers
from sandbox.errors import ConfigError, VeriwardError
from sandbox.guarantees import Guarantees, local_guarantees
from sandbox.job import Job
from sandbox.models import Execution, Limits, Program
from sandbox.slot import CannotConfine, Slot, SlotLost, cannot_confine
from sandbox.slot_dirs import sweep_slot_dirs
from sandbox.steps import CompileCache, Step, run_program, run_step

if TYPE_CHECKING:
    from sandbox.backend import Session, SessionKind

# Jobs of one zygote share its address-space layout, so it is replaced now and then.
_JOBS_PER_SLOT = 2000
_CLOSE_S = 0.5

_live: weakref.WeakSet[Sandbox] = weakref.WeakSet()
_slot_numbers = itertools.count()


class Sandbox:
    """Runs programs, `slots` at a time. Safe from any thread; close it, or let interpreter exit do so."""

    def __init__(self, *, slots: int | None = None, require: tuple[str, ...] = ()) -> None:
        """`slots`: jobs at a time, default the CPUs this process may use. `require`: names of guarantees
        that must be enforced; where one is weaker the first use raises VeriwardError.

        Raises VeriwardError off Linux and ConfigError for an impossible `slots`.
        """
        if not sys.platform.startswith("linux"):
            raise cannot_confine(f"a Linux kernel (this is {sys.platform})")
        if slots is not None and slots < 1:
            raise ConfigError(f"Sandbox(slots={slots}): at least 1 job at a time; leave it out for one per usable CPU")
        self.slots = slots or len(os.sched_getaffinity(0))
        self._is_closed = False
        self._require = require
        self._compiled = CompileCache()
        self._shares_root: bool | None = None  # not known before the first slot
        self._reset()
        sweep_leftovers()
        sweep_slot_dirs()
        _live.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._gate = threading.BoundedSemaphore(self.slots)
        self._all: set[Slot] = set()
        self._idle: list[Slot] = []
        self._threads: ThreadPoolExecutor | None = None

    def run_sync(self, program: Program) -> Execution:
        """Run to the end, waiting for a free slot first. Blocking; safe from any thread or running loop.

        What the program does is in the Execution, never an exception. A lost slot is retried once
        on a new one; `unavailable` means that failed too and a known-good program fails as well. A
        program that loses two slots where a known-good one runs is `killed`. Raises VeriwardError
        where the machine can't confine programs.
        """
        return self._run(program, Handle())

    async def run(self, program: Program) -> Execution:
        """`run_sync` without blocking the loop. Cancelling it ends the job."""
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix="sandbox")
        handle = Handle()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, program, handle)
        except asyncio.CancelledError:
            handle.cancel()
            raise

    def open(self, program: Program) -> Job:
        """Start a program to talk to, as a context manager. Its `stdin` is sent first.

        Never waits for a free slot but adds one for the time, so that holding one job while opening
        another cannot lock. Raises SlotLost when two slots in a row do not come up, and VeriwardError
        where the machine can't confine programs or the language needs a compile: run that one.
        """
        if program.spec.compile is not None:
            raise ConfigError("Sandbox.open: a compiled language can't be talked to; use run, or compile it first")
        return self.open_step(run_step(program))

    def open_step(self, step: Step) -> Job:
        """`open` for one command; a compiled program's binary is one of its files."""
        try:
            return self._begin(step)
        except SlotLost:
            return self._begin(step)

    def session(self, kind: SessionKind = "python", *, limits: Limits | None = None) -> Session:
        """State kept between cells; see `sandbox.backend.Session`. Adds a slot for its life, as `open` does."""
        from sandbox.session import JobSession

        return JobSession(self.open_step, kind, limits or Limits())

    def guarantees(self) -> Guarantees:
        """What is enforced here and what is weaker and why; starts a slot if there is none yet."""
        slot = self._take("slim")
        self._give(slot, True)
        return _guarantees_of(slot, bool(self._shares_root))

    def close(self) -> None:
        """End every slot, and any job still in one. Later use raises RuntimeError."""
        with self._lock:
            self._is_closed = True
            threads, self._threads = self._threads, None
            idle, self._idle = self._idle, []
            self._all.difference_update(idle)
            busy = set(self._all)
        for slot in busy:
            slot.kill()
        if threads is not None:
            threads.shutdown(wait=True, cancel_futures=True)
        for slot in idle:
            slot.close()
        # A thread in the middle of a job closes its slot itself, since it still reads from it. A
        # dialogue that was left open has nobody to do so.
        deadline = time.monotonic() + _CLOSE_S
        while self._all and time.monotonic() < deadline:
            time.sleep(0.005)
        with self._lock:
            abandoned, self._all = self._all, set()
        for slot in abandoned:
            slot.close()

    def __del__(self) -> None:
        """Collected without `close`: nobody is using a slot any more, but its cgroup must be given back."""
        for slot in getattr(self, "_all", ()):
            slot.close()

    def _run(self, program: Program, handle: Handle) -> Execution:
        def run_one(step: Step) -> Execution:
            return attempt_twice(step, handle, self._attempt, _KNOWN_GOOD, "slot")

        with self._gate:
            return run_program(program, run_one, self._compiled, warm=True)

    def _attempt(self, step: Step, handle: Handle) -> Execution:
        try:
            with self._begin(step) as job, handle.holding(job):
                return job.finish()
        except SlotLost as lost:
            return Execution(status="unavailable", error=f"no sandbox slot: {lost}")

    def _begin(self, step: Step) -> Job:
        slot = self._take(step.flavour)
        return Job(slot, step, lambda is_healthy: self._give(slot, is_healthy))

    def _take(self, flavour: str) -> Slot:
        with self._lock:
            if self._is_closed:
                raise RuntimeError("this Sandbox is closed")
            for slot in reversed(self._idle):
                if slot.flavour == flavour:
                    self._idle.remove(slot)
                    return slot
        slot = self._new_slot(flavour)
        with self._lock:
            self._all.add(slot)
        return slot

    def _new_slot(self, flavour: str) -> Slot:
        """With a root of its own where the machine allows that, else on the shared one."""
        if self._shares_root is not None:
            return Slot(str(next(_slot_numbers)), flavour, shares_root=self._shares_root)
        try:
            slot, shares_root = Slot(str(next(_slot_numbers)), flavour), False
        except CannotConfine as refused:
            try:
                slot, shares_root = Slot(str(next(_slot_numbers)), flavour, shares_root=True), True
            except CannotConfine as also_refused:
                raise also_refused from refused
        try:
            _guarantees_of(slot, shares_root).require(self._require)
        except VeriwardError:
            slot.close()
            raise
        self._shares_root = shares_root
        return slot

    def _give(self, slot: Slot, is_healthy: bool) -> None:
        with self._lock:
            if is_healthy and slot.jobs_started < _JOBS_PER_SLOT and not self._is_closed:
                self._idle.append(slot)
                if len(self._idle) <= 2 * self.slots:
                    return
                slot = self._idle.pop(0)  # the longest unused
            was_mine = slot in self._all
            self._all.discard(slot)
        if was_mine:  # else close() took it
            slot.close()

    def _forget(self) -> None:
        """In the child of a fork: the slots are the parent's; start with none."""
        for slot in self._all:
            slot.forget()
        self._reset()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _guarantees_of(slot: Slot, shares_root: bool) -> Guarantees:
    return local_guarantees(
        as_root=os.geteuid() == 0,
        has_cgroup=slot.cgroup is not None,
        counts_cpu=bool(slot.cgroup and slot.cgroup.cpu_file),
        shares_cpu=bool(slot.cgroup and slot.cgroup.has_share),
        landlock_abi=slot.landlock_abi,
        has_proc=slot.has_proc,
        shares_root=shares_root,
    )


_KNOWN_GOOD = run_step(Program(code="pass"))
_default: Sandbox | None = None
_default_lock = threading.Lock()


def default_sandbox() -> Sandbox:
    """The process's shared sandbox, made when first asked for; a forked child gets its own."""
    global _default
    with _default_lock:
        if _default is None or _default._is_closed:
            _default = Sandbox()
        return _default


def _after_fork_in_child() -> None:
    global _default_lock
    _default_lock = threading.Lock()
    for sandbox in list(_live):
        sandbox._forget()


@atexit.register
def _close_all() -> None:
    for sandbox in list(_live):
        sandbox.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
