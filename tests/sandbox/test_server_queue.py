"""Turns and kept answers, where the order of events matters to the step."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from sandbox import Execution, Program, server_queue
from sandbox.backend import Backend
from sandbox.errors import ConfigError, VeriwardError
from sandbox.server_queue import Answer, Answers, Cancelled, JobQueue, OtherBody, Refused


class ByHand:
    """A backend whose jobs end when the test says so."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ends: dict[str, asyncio.Future[Execution]] = {}

    async def run(self, program: Program) -> Execution:
        self.began.append(program.code)
        self.ends[program.code] = asyncio.get_running_loop().create_future()
        return await self.ends[program.code]

    def end(self, code: str) -> None:
        self.ends[code].set_result(Execution(status="finished", exit_code=0))


def begin(queue: JobQueue, *codes: str) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(queue.run(Program(code=code))) for code in codes]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_turns_come_in_order_and_one_too_many_is_refused() -> None:
    backend = ByHand()
    queue = JobQueue(cast(Backend, backend), slots=1, size=2)
    tasks = begin(queue, "a", "b", "c", "d")
    await settle()
    assert (queue.running, queue.waiting) == (1, 2)
    with pytest.raises(Refused):
        await tasks[3]
    for code in "abc":
        backend.end(code)
        await settle()
    assert backend.began == ["a", "b", "c"]
    assert (queue.running, queue.waiting) == (0, 0)


async def test_a_turn_given_to_one_who_leaves_at_that_moment_goes_on_to_the_next() -> None:
    backend = ByHand()
    queue = JobQueue(cast(Backend, backend), slots=1, size=5)
    tasks = begin(queue, "a", "b", "c", "d")
    await settle()
    tasks[1].cancel()  # before its turn
    backend.end("a")
    await asyncio.sleep(0)
    tasks[2].cancel()  # as its turn comes, or after
    await settle()
    assert backend.began[-1] == "d"
    backend.end("d")
    await settle()
    assert (queue.running, queue.waiting) == (0, 0)


async def test_a_drain_refuses_who_waits_and_ends_with_who_runs() -> None:
    backend = ByHand()
    queue = JobQueue(cast(Backend, backend), slots=1, size=5)
    tasks = begin(queue, "a", "b")
    await settle()
    drain = asyncio.create_task(queue.drain())
    with pytest.raises(Refused):
        await tasks[1]
    assert not drain.done()
    backend.end("a")
    await drain
    assert backend.began == ["a"]


@pytest.mark.parametrize(("error", "is_raised"), [(VeriwardError("no engine"), False), (ConfigError("no numpy"), True)])
async def test_what_the_machine_lacks_is_unavailable_what_was_asked_wrongly_an_error(
    error: VeriwardError, is_raised: bool
) -> None:
    backend = ByHand()
    queue = JobQueue(cast(Backend, backend), slots=1, size=1)
    (task,) = begin(queue, "a")
    await settle()
    backend.ends["a"].set_exception(error)
    if is_raised:
        with pytest.raises(ConfigError):
            await task
    else:
        assert (await task)[0].status == "unavailable"
    assert queue.running == 0


def answering(status: int = 200, body: bytes = b"") -> Any:
    async def make() -> Answer:
        made.append(status)
        return Answer(status, body, {})

    made: list[int] = []
    make.made = made  # type: ignore[attr-defined]
    return make


async def test_only_a_result_is_kept_and_only_for_the_same_body() -> None:
    answers = Answers()
    unavailable, result = answering(503), answering(200)
    await answers.get("k", b"body", unavailable)
    await answers.get("k", b"body", result)
    await answers.get("k", b"body", result)
    assert (unavailable.made, result.made) == ([503], [200])
    with pytest.raises(OtherBody):
        await answers.get("k", b"other", result)
    assert await answers.cancel("k") is False
    with pytest.raises(Cancelled):
        await answers.get("k", b"body", result)


async def test_kept_answers_are_bounded_by_number_bytes_and_age(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_queue, "_KEPT_COUNT", 10)
    answers = Answers()
    for number in range(30):
        await answers.get(str(number), b"", answering())
    assert [str(number) in answers for number in (19, 20, 29)] == [False, True, True]
    monkeypatch.setattr(server_queue, "_KEPT_BYTES", 20_000)
    for number in range(30, 34):
        await answers.get(str(number), b"", answering(body=b"x" * 8000))
    assert [str(number) in answers for number in (31, 32, 33)] == [False, True, True]
    monkeypatch.setattr(server_queue, "_KEPT_S", -1.0)
    assert "33" not in answers
    assert answers._bytes == 0


async def test_a_job_under_way_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_queue, "_KEPT_S", -1.0)
    answers, go = Answers(), asyncio.Event()

    async def slow() -> Answer:
        await go.wait()
        return Answer(200, b"slow", {})

    first = asyncio.create_task(answers.get("k", b"", slow))
    await settle()
    second = asyncio.create_task(answers.get("k", b"", answering(body=b"another")))
    await settle()
    first.cancel()  # who asked leaves; the job goes on
    go.set()
    assert (await second).body == b"slow"
