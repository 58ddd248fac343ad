"""Which task is asked next: every task once an epoch, in an order named by (seed, epoch).

The whole state is one integer, so a resumed run asks exactly what the uninterrupted one would
have asked: no task is skipped (NVIDIA-NeMo/RL#3599) and none is asked twice in an epoch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from envs.base import Task
from trainer.rollouts import Draw


class TaskSchedule:
    """Draws from a fixed, non-empty sequence of tasks; `cursor` counts the draws made so far."""

    def __init__(self, tasks: Sequence[Task], seed: int, cursor: int = 0) -> None:
        self._tasks = tasks
        self._seed = seed
        self.cursor = cursor
        self._epoch = -1
        self._order: list[int] = []

    def draw(self, count: int) -> list[Draw]:
        return [self._next() for _ in range(count)]

    def _next(self) -> Draw:
        epoch, place = divmod(self.cursor, len(self._tasks))
        if epoch != self._epoch:
            self._order = list(range(len(self._tasks)))
            random.Random(f"schedule/{self._seed}/{epoch}").shuffle(self._order)
            self._epoch = epoch
        self.cursor += 1
        return Draw(self._tasks[self._order[place]], visit=epoch)
