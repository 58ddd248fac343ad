"""Playing everything people try against an environment's verifier, and what its golden cases say.

A reply that must not be paid and gets credit is a false accept; a golden case that must be correct
and is not, a false reject. Both, and every unscored play, are the verifier's to mend.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from envs.attacks import attacks
from envs.base import Env, Golden, Task
from envs.splits import check_golden, check_tasks
from envs.verification import Verifier, build_reply
from rewards.verdict import Verdict

Kind = Literal["attack", "golden", "mutated golden"]
_MOST_DIGITS = 18


@dataclass(frozen=True)
class Play:
    """One reply and what came of it. `expected`: a golden case's status, "" where only no credit is asked."""

    kind: Kind
    name: str
    rule: str
    source: str
    task: str
    expected: str
    verdict: Verdict
    seconds: float

    @property
    def fault(self) -> Literal["", "false accept", "false reject", "other status", "unscored"]:
        status, is_paid = self.verdict.status, bool(self.verdict.score)
        if status == "unscored" and self.expected != "unscored":
            return "unscored"
        if is_paid and self.expected not in ("correct", "partial"):
            return "false accept"
        if self.expected == "correct" and status != "correct":
            return "false reject"
        return "other status" if self.expected and status != self.expected else ""

    def to_json(self) -> dict[str, Any]:
        fields = ("kind", "name", "rule", "source", "task", "expected", "fault")
        return {
            **{name: getattr(self, name) for name in fields},
            "seconds": round(self.seconds, 4),
            "verdict": self.verdict.to_json(),
        }


def audit(env: Env, *, tasks: int = 3, wall_s: float = 10.0) -> list[Play]:
    """Every attack on the first `tasks` dev tasks and on the golden cases' task, every golden case, and every
    correct golden reply with its last number changed.

    Blocking. `wall_s` bounds one verification. Raises VeriwardError for tasks or golden cases that are unsound.
    """
    goldens = check_golden(env)
    chosen = [*islice((golden.task for golden in goldens), 1), *check_tasks(env, ["dev"], at_most=tasks)["dev"]]
    with Verifier(env, wall_s=wall_s) as verifier:
        return [
            *_attacked(env, chosen, verifier),
            *_golden(env, goldens, verifier),
            *_golden(env, _mutated(goldens), verifier, kind="mutated golden"),
        ]


def _attacked(env: Env, tasks: Iterable[Task], verifier: Verifier) -> Iterator[Play]:
    for task in tasks:
        for attack in attacks():
            verdict, seconds = _judged(env, task, attack.make(env, task), verifier)
            yield Play("attack", attack.name, attack.rule, attack.source, task.id, "", verdict, seconds)


def _golden(env: Env, goldens: Iterable[Golden], verifier: Verifier, kind: Kind = "golden") -> Iterator[Play]:
    for golden in goldens:
        verdict, seconds = _judged(env, golden.task, golden.text, verifier)
        expected = golden.status if kind == "golden" else ""
        rule = golden.why or "a golden case has its known verdict"
        yield Play(kind, golden.why or golden.status, rule, "the env's own", golden.task.id, expected, verdict, seconds)


def _mutated(goldens: Iterable[Golden]) -> Iterator[Golden]:
    """Right replies made wrong: the last number one higher. One without a number is left out."""
    for golden in goldens:
        numbers = [found for found in re.finditer(r"\d+", golden.text) if len(found[0]) <= _MOST_DIGITS]
        if golden.status == "correct" and numbers:
            last = numbers[-1]
            text = f"{golden.text[: last.start()]}{int(last[0]) + 1}{golden.text[last.end() :]}"
            yield Golden(golden.task, text, "wrong", f"{golden.why or 'correct'}, with its last number changed")


def _judged(env: Env, task: Task, text: str, verifier: Verifier) -> tuple[Verdict, float]:
    began = time.monotonic()
    verdict = verifier.verdict_sync(task, build_reply(env, text, env.messages(task)))
    return verdict, time.monotonic() - began
