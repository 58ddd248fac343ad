"""A run where what it runs in can be lost: stopped from outside, tried once more, and whose doing a loss was."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from sandbox.models import Execution
from sandbox.steps import Step


class Stoppable(Protocol):
    def stop(self) -> None:
        """May come from any thread."""


class Handle:
    """Lets the awaiting side of `run` stop a job that a thread is busy with."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self._lock = threading.Lock()
        self._job: Stoppable | None = None

    def cancel(self) -> None:
        with self._lock:
            self.is_cancelled = True
            if self._job is not None:
                self._job.stop()

    @contextlib.contextmanager
    def holding(self, job: Stoppable) -> Iterator[None]:
        with self._lock:
            self._job = job
            if self.is_cancelled:
                job.stop()
        try:
            yield
        finally:
            with self._lock:
                self._job = None


def attempt_twice(
    step: Step, handle: Handle, attempt: Callable[[Step, Handle], Execution], known_good: Step, where: str
) -> Execution:
    """A step that loses two places in a row, where a known-good one runs, has ended them itself: `killed`."""
    execution = attempt(step, handle)
    if execution.status == "unavailable" and not handle.is_cancelled:
        execution = attempt(step, handle)
        if execution.status == "unavailable" and attempt(known_good, Handle()).exit_code == 0:
            return execution.model_copy(update={"status": "killed", "error": f"it ended its {where}, twice"})
    return execution
