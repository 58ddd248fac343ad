"""What every backend promises its callers: side by side, from any thread, cancelled, closed."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from sandbox import Execution, Limits, Program
from sandbox.backend import Backend
from tests.sandbox.backends import Outside

pytestmark = pytest.mark.backends("local", "remote", "docker")

LONG = Program(code="import time; time.sleep(60)", limits=Limits(wall_s=100))
NEVER_WEAKER = ("harness", "files", "network", "survivors")


def becomes(holds) -> bool:
    """Wait, within reason, for what the machine shows a moment later."""
    deadline = time.monotonic() + 30
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_eight_threads_share_two_slots_and_each_gets_its_own_answer(box: Backend):
    wrong: list[tuple[int, Execution]] = []

    def work(worker: int) -> None:
        for turn in range(6):
            number = worker * 100 + turn
            execution = box.run_sync(Program(code=f"print({number})"))
            if execution.stdout != b"%d\n" % number:
                wrong.append((number, execution))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


async def test_run_sync_works_inside_a_running_loop(box: Backend):
    assert box.run_sync(Program(code="print(1)")).stdout == b"1\n"


async def test_async_runs_go_side_by_side(box: Backend):
    executions = await asyncio.gather(*(box.run(Program(code=f"print({n})")) for n in range(6)))
    assert [e.stdout for e in executions] == [b"%d\n" % n for n in range(6)]


async def test_as_many_jobs_as_slots_run_at_once_and_no_more(start):
    """Three on two slots: two processes at every look, until one of the two is cancelled."""
    with start(slots=2) as two:
        runs = [asyncio.create_task(two.box.run(LONG)) for _ in range(3)]
        assert await asyncio.to_thread(becomes, lambda: len(two.jobs()) == 2)
        seen = [len(await asyncio.to_thread(two.jobs)) for _ in range(5)]
        for running in runs:
            running.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        assert await asyncio.to_thread(becomes, lambda: two.jobs() == [])
    assert seen == [2] * 5


async def test_cancelling_a_run_ends_its_job_and_frees_its_slot(start):
    with start(slots=1) as one:
        running = asyncio.create_task(one.box.run(LONG))
        assert await asyncio.to_thread(becomes, lambda: len(one.jobs()) == 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await asyncio.to_thread(becomes, lambda: one.jobs() == [])
        assert (await one.box.run(Program(code="print(1)"))).stdout == b"1\n"


async def test_cancelling_a_run_that_waits_for_a_slot_lets_the_others_pass(start):
    with start(slots=1) as one:
        first, second = (asyncio.create_task(one.box.run(LONG)) for _ in range(2))
        assert await asyncio.to_thread(becomes, lambda: len(one.jobs()) == 1)
        third = asyncio.create_task(one.box.run(Program(code="print(3)")))
        second.cancel()
        first.cancel()
        assert (await third).stdout == b"3\n"
        await asyncio.gather(first, second, return_exceptions=True)


def test_waiting_for_a_slot_is_not_the_jobs_time(start):
    with start(slots=1) as one:
        one.box.run_sync(Program(code="pass"))
        first = threading.Thread(target=one.box.run_sync, args=(Program(code="import time; time.sleep(0.7)"),))
        first.start()
        second = one.box.run_sync(Program(code="print(1)", limits=Limits(wall_s=0.5)))
        first.join(30)
    assert second.status == "finished"
    assert second.wall_s < 0.5


def test_closing_ends_the_job_of_another_thread(start):
    with start(slots=1) as one:
        outcome: list[object] = []

        def work() -> None:
            try:
                outcome.append(one.box.run_sync(LONG).status)
            except BaseException as error:
                outcome.append(type(error).__name__)

        worker = threading.Thread(target=work)
        worker.start()
        assert becomes(lambda: len(one.jobs()) == 1)
        one.box.close()
        worker.join(30)
        assert becomes(lambda: one.jobs() == [])
    assert len(outcome) == 1
    assert outcome[0] != "finished"


def test_a_closed_sandbox_says_so_and_may_be_closed_again(start):
    with start(slots=1) as one:
        one.box.close()
        one.box.close()
        with pytest.raises(RuntimeError, match="closed"):
            one.box.run_sync(Program(code=""))


def test_guarantees_never_weaken_what_nothing_excuses_and_give_reasons(tested: Outside):
    guarantees = tested.box.guarantees()
    assert guarantees.backend == ("docker" if tested.name == "docker" else "local")
    assert {item.name for item in guarantees.weaker()}.isdisjoint(NEVER_WEAKER)
    assert all(item.how for item in guarantees.items)
    names = [item.name for item in guarantees.items]
    assert len(names) == len(set(names))
    for name in (*NEVER_WEAKER, "wall", "cpu", "memory", "processes", "output", "file_size", "disk", "open_files"):
        assert isinstance(guarantees.enforces(name), bool)
