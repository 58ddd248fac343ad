"""Ctrl-C and SIGTERM end a run between two pieces of work, with a checkpoint; a second one ends it at once."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any


class RunInterrupted(KeyboardInterrupt):
    """The run was asked to stop; `run` is its folder, and it can be resumed."""

    def __init__(self, run: Path) -> None:
        super().__init__(f"stopped; go on with `veriward resume {shlex.quote(str(run))}`")
        self.run = run


class _Stop(BaseException):
    """Raised at a safe point after the first signal."""


class Interrupts:
    """Collects SIGINT and SIGTERM while open. Outside the main thread, where Python delivers no
    signals, it only offers `check`. `run` is the folder a second signal names."""

    def __init__(self) -> None:
        self.run: Path | None = None
        self._asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        if self._asked:
            raise _Stop

    @contextmanager
    def leaving_a_checkpoint(self, save: Callable[[], None], run: Path) -> Iterator[None]:
        try:
            yield
        except _Stop:
            save()
            raise RunInterrupted(run) from None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise RunInterrupted(self.run) if self.run else KeyboardInterrupt
        self._asked = True
