"""A task set on which a random tiny model is sometimes right: loaded by its path, as an author's env is."""

from __future__ import annotations

from collections.abc import Iterable

from envs.base import Env, Reply, Split, Task
from rewards.verdict import Verdict


class Coin(Env):
    """Right when the reply's first character is of the asked half. `outcome` bends it for a test."""

    version = "1"
    inline = True

    def __init__(self, outcome: str = "coin", train_size: int = 50, with_reference: bool = True) -> None:
        self.outcome = outcome
        self.train_size = train_size
        self.with_reference = with_reference

    def tasks(self, split: Split) -> Iterable[Task]:
        for number in range(self.train_size if split == "train" else 6):
            reference = number % 2 if self.with_reference else None
            yield Task(f"{split}-{number}", [{"role": "user", "content": f"{split} {number}"}], reference, split)

    def verify(self, task: Task, reply: Reply) -> Verdict | bool:
        if self.outcome == "always wrong":
            return False
        if self.outcome == "judge down":
            raise ConnectionError("judge unreachable at the address of its last known host, which is long")
        if self.outcome == "judge goes down" and task.split == "train":
            raise ConnectionError("judge unreachable")
        if self.outcome == "judge flaky" and len(reply.text) % 3 == 0:
            return Verdict.unscored("judge unreachable")
        return len(reply.text) % 2 == task.reference
