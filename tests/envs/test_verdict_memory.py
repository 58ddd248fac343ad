"""One judgement for equal questions, whoever asks and whenever."""

from __future__ import annotations

import asyncio
import threading

import pytest

from envs.verdict_memory import VerdictMemory
from rewards.verdict import Verdict


class Judge:
    """Counts its calls; holds each until told to go on."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict, self.calls, self.go_on = verdict, 0, threading.Event()

    def __call__(self) -> Verdict:
        self.calls += 1
        self.go_on.wait(10)
        return self.verdict


async def test_equal_questions_at_the_same_time_are_judged_once() -> None:
    memory, judge = VerdictMemory(size=8, threads=4), Judge(Verdict.correct())
    asked = [asyncio.ensure_future(memory.verdict("a", judge)) for _ in range(5)]
    await asyncio.sleep(0)
    judge.go_on.set()
    assert await asyncio.gather(*asked) == [Verdict.correct()] * 5
    assert judge.calls == 1


def test_a_verdict_is_remembered_for_another_loop_too() -> None:
    memory, judge = VerdictMemory(size=8, threads=1), Judge(Verdict.wrong())
    judge.go_on.set()
    for _ in range(3):
        assert asyncio.run(memory.verdict("a", judge)).status == "wrong"
    assert judge.calls == 1


async def test_an_unscored_verdict_is_asked_for_again() -> None:
    memory, judge = VerdictMemory(size=8, threads=1), Judge(Verdict.unscored("sandbox gone"))
    judge.go_on.set()
    await memory.verdict("a", judge)
    judge.verdict = Verdict.correct()
    assert (await memory.verdict("a", judge)).status == "correct"


async def test_an_exception_reaches_the_caller_and_is_not_kept() -> None:
    def fail() -> Verdict:
        raise OSError("no slot")

    memory = VerdictMemory(size=8, threads=1)
    with pytest.raises(OSError, match="no slot"):
        await memory.verdict("a", fail)
    assert (await memory.verdict("a", Verdict.correct)).status == "correct"


async def test_a_cancelled_caller_does_not_take_the_verdict_from_the_others() -> None:
    memory, judge = VerdictMemory(size=8, threads=1), Judge(Verdict.correct())
    first, second = (asyncio.ensure_future(memory.verdict("a", judge)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    judge.go_on.set()
    assert (await second).status == "correct"
    assert first.cancelled() or first.cancelling()


async def test_the_oldest_verdict_is_forgotten_first() -> None:
    memory, judge = VerdictMemory(size=2, threads=1), Judge(Verdict.correct())
    judge.go_on.set()
    for key in ("a", "b", "a", "c", "a", "b"):
        await memory.verdict(key, judge)
    assert judge.calls == 4  # a, b, c, and b again: asking for a again kept it
