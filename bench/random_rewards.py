"""The control that must not learn: the same tasks, with train verdicts by the toss of a coin.

Held-out replies are judged as ever. What a run with such an env gains is not learned from its
reward, so it bounds what the other runs' gains could owe to the machinery alone.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any, ClassVar

from envs.arithmetic import Arithmetic
from envs.base import Reply, Task
from envs.program import ProgramEnv
from rewards.verdict import Verdict


class _Coin:
    """A fair coin for each reply, repeatable: it is named by task, text and how often that text came."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()

    def toss(self, task: Task, reply: Reply) -> bool:
        self._seen[task.id, reply.text] += 1
        name = f"{task.id}\0{self._seen[task.id, reply.text]}\0{reply.text}"
        return hashlib.blake2b(name.encode(errors="replace"), digest_size=1).digest()[0] % 2 == 0


class RandomArithmetic(Arithmetic):
    name: ClassVar[str] = "random-arithmetic"
    version: ClassVar[str] = Arithmetic.version

    def __init__(self, seed: int = 0, train_size: int = 20_000) -> None:
        super().__init__(seed, train_size)
        self._coin = _Coin()

    def verify(self, task: Task, reply: Reply) -> Any:
        return self._coin.toss(task, reply) if task.split == "train" else super().verify(task, reply)


class RandomProgram(ProgramEnv):
    name: ClassVar[str] = "random-program"
    version: ClassVar[str] = ProgramEnv.version

    def __init__(self, seed: int = 0, train_size: int = 20_000) -> None:
        super().__init__(seed, train_size)
        self._coin = _Coin()

    async def verify(self, task: Task, reply: Reply) -> Verdict:
        if task.split == "train":
            return Verdict.of(self._coin.toss(task, reply))
        return await super().verify(task, reply)
