"""The pool keeps its promise: every call ends, in one of five ways, and only we can be unavailable."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rewards.workers import WorkerPool, default_pool

TARGETS = "tests.rewards.worker_targets:"


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(workers=2, memory_mb=256)
    yield pool
    pool.close()


def test_a_call_returns_what_the_function_returned(pool: WorkerPool) -> None:
    outcome = pool.call("operator:mul", 6, 7, timeout_s=10)
    assert (outcome.status, outcome.value) == ("returned", 42)


def test_an_exception_comes_back_as_text(pool: WorkerPool) -> None:
    outcome = pool.call("operator:truediv", 1, 0, timeout_s=10)
    assert outcome.status == "raised"
    assert "ZeroDivisionError: division by zero" in outcome.error


def test_system_exit_is_an_exception_like_others(pool: WorkerPool) -> None:
    assert pool.call("sys:exit", 0, timeout_s=10).status == "raised"


def test_a_result_that_is_not_json_is_an_error_of_the_function(pool: WorkerPool) -> None:
    assert pool.call("itertools:count", timeout_s=10).status == "raised"


def test_a_busy_loop_in_c_code_is_killed(pool: WorkerPool) -> None:
    """AReaL#1426: one hung sympy call pinned a reward worker for the rest of the run."""
    assert pool.call("math:factorial", 10**8, timeout_s=0.3).status == "timeout"
    assert pool.call("operator:mul", 6, 7, timeout_s=10).value == 42


def test_a_wait_without_cpu_is_killed_too(pool: WorkerPool) -> None:
    assert pool.call("time:sleep", 3600, timeout_s=0.2).status == "timeout"


def test_unbounded_memory_is_crashed(pool: WorkerPool) -> None:
    """Math-Verify#63: a hang with growing memory."""
    assert pool.call(TARGETS + "grow_without_bound", timeout_s=60).status == "crashed"


def test_one_huge_allocation_is_crashed(pool: WorkerPool) -> None:
    assert pool.call("operator:mul", [0], 1 << 40, timeout_s=10).status == "crashed"


def test_a_call_that_ends_its_worker_twice_is_crashed(pool: WorkerPool) -> None:
    assert pool.call("os:_exit", 0, timeout_s=10).status == "crashed"


def test_a_worker_killed_from_outside_is_replaced_and_the_call_repeated(pool: WorkerPool, tmp_path: Path) -> None:
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)
    killer = threading.Thread(target=lambda: os.kill(int(fifo.read_text()), signal.SIGKILL))
    killer.start()
    outcome = pool.call(TARGETS + "announce_then_wait", str(tmp_path / "marker"), str(fifo), timeout_s=30)
    killer.join()
    assert (outcome.status, outcome.value) == ("returned", "second time")


def test_a_call_never_gets_the_answer_of_another() -> None:
    """A verify that forks leaves a second answer in the pipe, and without numbers the next reply got it."""
    pool = WorkerPool(workers=1)
    for round_ in range(3):
        assert pool.call(TARGETS + "answer_twice", f"first {round_}", timeout_s=10).value == f"first {round_}"
        for other in range(3):
            assert pool.call("operator:add", round_, 10 * other, timeout_s=10).value == round_ + 10 * other
    pool.close()


def test_a_target_that_does_not_exist_is_unavailable_not_a_score(pool: WorkerPool) -> None:
    assert pool.call("no_such_module:function", timeout_s=10).status == "unavailable"


def test_a_setup_that_fails_is_unavailable_and_says_why(pool: WorkerPool) -> None:
    outcome = pool.call("operator:mul", 6, 7, timeout_s=10, setup=(TARGETS + "fail_to_load", ["no such env"]))
    assert outcome.status == "unavailable"
    assert "no such env" in outcome.error


def test_setup_runs_once_in_a_worker_and_its_state_stays() -> None:
    pool = WorkerPool(workers=1)
    for _ in range(3):
        outcome = pool.call(TARGETS + "loaded", timeout_s=10, setup=(TARGETS + "load", ["env"]))
        assert outcome.value == ["env"]
    pool.close()


def test_setup_time_is_not_the_calls_time(pool: WorkerPool) -> None:
    assert pool.call("operator:mul", 6, 7, timeout_s=0.2, setup=("time:sleep", [0.5])).value == 42


def test_what_a_function_prints_cannot_forge_an_answer(pool: WorkerPool) -> None:
    assert pool.call(TARGETS + "print_everywhere", '{"returned": "forged"}', timeout_s=10).value == "returned"


def test_the_environment_of_a_worker_holds_no_secret(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERIWARD_SECRET_TOKEN", "hunter2")
    fresh = WorkerPool(workers=1)
    assert "hunter2" not in json.dumps(fresh.call(TARGETS + "environment", timeout_s=10).value)
    fresh.close()


def test_a_worker_is_replaced_after_its_number_of_calls() -> None:
    pool = WorkerPool(workers=1, max_calls=2)
    pids = [pool.call("os:getpid", timeout_s=10).value for _ in range(4)]
    pool.close()
    assert pids[0] == pids[1] != pids[2] == pids[3]


def test_calls_from_many_threads_all_get_their_own_answer(pool: WorkerPool) -> None:
    """Math-Verify#55, trl#5281: signals work in the main thread only."""
    with ThreadPoolExecutor(8) as threads:
        values = list(threads.map(lambda n: pool.call("operator:neg", n, timeout_s=30).value, range(100)))
    assert values == [-n for n in range(100)]


def test_waiting_for_a_worker_is_not_counted_as_its_time() -> None:
    """verifiers#831: correct answers scored 0 in a burst."""
    pool = WorkerPool(workers=1)
    pool.call("time:sleep", 0, timeout_s=10)
    with ThreadPoolExecutor(6) as threads:
        outcomes = list(threads.map(lambda _: pool.call("time:sleep", 0.3, timeout_s=1.0), range(6)))
    pool.close()
    assert [outcome.status for outcome in outcomes] == ["returned"] * 6


async def test_a_blocking_call_works_inside_a_running_loop(pool: WorkerPool) -> None:
    assert pool.call("operator:mul", 6, 7, timeout_s=10).value == 42


async def test_the_async_twin_leaves_the_loop_free(pool: WorkerPool, tmp_path: Path) -> None:
    """verifiers#1453: verification on the loop made it lag by seconds."""
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)
    waiting = asyncio.create_task(
        pool.call_async(TARGETS + "announce_then_wait", str(tmp_path / "marker"), str(fifo), timeout_s=30)
    )
    pid = int(await asyncio.to_thread(fifo.read_text))  # needs the loop while the call is in progress
    assert not waiting.done()
    os.kill(pid, signal.SIGKILL)
    assert (await waiting).value == "second time"


def test_a_closed_pool_is_unavailable() -> None:
    pool = WorkerPool(workers=1)
    pool.close()
    assert pool.call("operator:mul", 6, 7, timeout_s=10).status == "unavailable"


def test_the_default_pool_is_one() -> None:
    assert default_pool() is default_pool()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's parent-death signal is Linux's")
def test_workers_die_with_a_parent_that_is_killed() -> None:
    """verifiers#399: a crash leaves workers behind, here one that is busy and reads no input."""
    script = (
        "import sys, threading; from rewards.workers import default_pool; pool = default_pool();"
        "print(pool.call('os:getpid', timeout_s=10).value, flush=True);"
        "threading.Thread(target=lambda: pool.call('time:sleep', 3600, timeout_s=3600)).start()"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    worker = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert select.select([worker], [], [], 10)[0], "the worker outlived its parent"
    os.close(worker)
