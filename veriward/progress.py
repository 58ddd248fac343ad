"""How long work shows where it is: `progress(phase, done, total, note)`, called by the trainer.

On a terminal a bar with rate and time left; elsewhere a sparse line, so that logs stay short.
Always on stderr: stdout belongs to results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from trainer.hostile import visible

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

PLAIN_EVERY_S = 15.0


class Progress(Protocol):
    """`done` of `total` units of a phase are finished; a total of 0 is unknown. `note` is a word about now."""

    def __call__(self, phase: str, done: int, total: int, note: str = "") -> None: ...


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """A progress to hand to the trainer; what it draws is gone, or final, when the block ends."""
    if not sys.stderr.isatty():
        yield _PlainLines()
        return
    with _rich_bars() as bars:
        yield _Bars(bars)


class _PlainLines:
    def __init__(self) -> None:
        self._phase = ""
        self._began_s = self._said_s = 0.0
        self._done_before = 0

    def __call__(self, phase: str, done: int, total: int, note: str = "") -> None:
        now_s = time.monotonic()
        if phase != self._phase:
            self._phase, self._began_s, self._done_before = phase, now_s, done
        elif done != total and now_s - self._said_s < PLAIN_EVERY_S:
            return
        self._said_s = now_s
        elapsed_s = now_s - self._began_s
        per_s = (done - self._done_before) / elapsed_s if elapsed_s > 1 else 0.0
        rate = f", {per_s:.2f}/s" if per_s > 0 else ""
        left = f", {(total - done) / per_s:.0f} s left" if per_s > 0 and done < total else ""
        tail = f"  {visible(note, one_line=True)}" if note else ""
        print(f"{phase} {done}/{total or '?'}{rate}{left}{tail}", file=sys.stderr, flush=True)


class _Bars:
    """One bar a phase: a phase that comes again (an evaluation between steps) starts its bar anew."""

    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self._done: dict[str, int] = {}

    def __call__(self, phase: str, done: int, total: int, note: str = "") -> None:
        if phase not in self._tasks:
            self._tasks[phase] = self._bars.add_task(phase, total=total or None, note="")
        elif done <= self._done[phase]:
            self._bars.reset(self._tasks[phase])
        self._done[phase] = done
        shown = visible(note, limit=60, one_line=True)
        self._bars.update(self._tasks[phase], completed=done, total=total or None, note=shown)


def _rich_bars() -> RichProgress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:.2f}/s" if speed else "-/s", style="cyan")

    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False, style="dim"),
        console=Console(stderr=True),
    )
