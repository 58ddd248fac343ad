"""The program env: its specs, their behaviour, its hidden inputs, and verdicts from the sandbox."""

from __future__ import annotations

import asyncio
import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.base import Reply, Task
from envs.program import (
    CONSTANTS,
    GRID,
    MAX_REPLY_CHARACTERS,
    NAMES,
    ProgramEnv,
    _near_misses,
    behaviour,
    draw_operations,
    generate_tasks,
    hidden_inputs,
    make_task,
    run_spec,
    worked_solution,
)
from rewards.verdict import Verdict

ENV = ProgramEnv(train_size=100)
operation_lists = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(list(CONSTANTS))), min_size=2, max_size=4
).map(tuple)


def _run_here(source: str, x: int) -> int:
    """Runs only what `worked_solution` wrote; a policy's text never comes here."""
    space: dict[str, object] = {}
    exec(source, space)
    return space["f"](x)  # type: ignore[operator]


def test_the_prompt_and_the_worked_solution_are_spelled_exactly() -> None:
    task = make_task("t", (("mul", 5), ("add", 2)), "train")
    assert task.prompt == [{"role": "user", "content": "Write f: mul 5, add 2."}]
    assert task.reference == [["mul", 5], ["add", 2]]
    assert worked_solution(task.reference) == "def f(x):\n    x = x * 5\n    x = x + 2\n    return x"
    assert worked_solution([["mod", 3], ["max", 4]]) == "def f(x):\n    x = x % 3\n    x = max(x, 4)\n    return x"


@given(operation_lists, st.integers(-2000, 2000))
def test_the_worked_solution_computes_what_the_spec_does(operations: tuple, x: int) -> None:
    assert _run_here(worked_solution(operations), x) == run_spec(operations, x)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("add 2, add 3", "add 3, add 2"),
        ("add 2, add 3", "add 5"),
        ("mul 2, mul 3", "mul 3, mul 2"),
        ("mul 2, mul 3", "mul 6"),
        ("add 2, mul 3", "mul 3, add 6"),
        ("max 3, max 7", "max 7"),
        ("mod 6, mod 3", "mod 3"),
        ("sub 3, max 2", "max 5, sub 3"),
        ("max 4, min 4", "mul 2, max 4, min 4"),
    ],
)
def test_specs_that_compute_the_same_function_are_the_same_task(first: str, second: str) -> None:
    assert behaviour(_operations(first)) == behaviour(_operations(second))


@pytest.mark.parametrize(
    ("first", "second"), [("add 2, mul 3", "mul 3, add 2"), ("max 3, min 7", "max 3, min 8"), ("mod 3", "mod 6")]
)
def test_specs_that_differ_somewhere_are_different_tasks(first: str, second: str) -> None:
    assert behaviour(_operations(first)) != behaviour(_operations(second))


@settings(max_examples=40)
@given(operation_lists)
def test_every_near_miss_that_differs_on_the_grid_differs_on_a_hidden_input(operations: tuple) -> None:
    """Fixed inputs alone let some through, as `max 9` for `max 8` behind other operations."""
    inputs = hidden_inputs(operations)
    right = [run_spec(operations, x) for x in inputs]
    same = behaviour(operations)
    for near_miss in _near_misses(operations):
        if [run_spec(near_miss, x) for x in inputs] == right:
            assert behaviour(near_miss) == same, near_miss


@given(operation_lists)
def test_hidden_inputs_are_distinct_and_some_are_negative(operations: tuple) -> None:
    inputs = hidden_inputs(operations)
    assert len(set(inputs)) == len(inputs) >= 10
    assert min(inputs) < 0 < max(inputs)


@given(st.integers(0, 2**32), st.integers(2, 4))
def test_a_drawn_spec_needs_all_its_operations_and_is_neither_constant_nor_the_identity(seed: int, count: int) -> None:
    rng = random.Random(seed)
    while (drawn := draw_operations(rng, count)) is None:
        pass
    operations, fingerprint = drawn
    assert fingerprint == behaviour(operations)
    values = [run_spec(operations, x) for x in GRID]
    assert values != GRID
    assert len(set(values)) > 1
    for index in range(count):
        assert behaviour(operations[:index] + operations[index + 1 :]) != fingerprint


def test_a_spec_of_three_operations_never_computes_what_two_can() -> None:
    short = {behaviour([(a, b), (c, d)]) for a in NAMES for b in CONSTANTS for c in NAMES for d in CONSTANTS}
    tasks = list(generate_tasks("train", 480))
    assert all((ENV.canonical(task) in short) == (task.metadata["difficulty"] == 2) for task in tasks)
    counts = [sum(task.metadata["difficulty"] == count for task in tasks) for count in (2, 3, 4)]
    assert counts == [20, 280, 180]


@pytest.mark.parametrize("wrong", [[["div", 2]], [["add"]], [["add", "2"]], [["add", True]], ["add 2"], [["mod", 0]]])
def test_a_broken_spec_is_refused_and_its_task_unscored(wrong: list) -> None:
    with pytest.raises(ValueError, match="not an operation"):
        behaviour(wrong)
    verdict = asyncio.run(ENV.verify(Task("t", [{"role": "user", "content": "?"}], wrong, "dev"), Reply("def f(x): 0")))
    assert verdict.status == "unscored"


def test_a_reply_too_long_for_a_short_function_is_not_even_searched() -> None:
    """verify is inline, so what it does with hostile text in this process must stay small."""
    assert ENV.parse("def f(x): return 1") == "def f(x): return 1"
    assert ENV.parse("```\n" * MAX_REPLY_CHARACTERS) is None


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the local sandbox needs Linux")
def test_golden_cases_get_the_verdicts_they_declare() -> None:
    cases = list(ENV.golden())

    async def judge_all() -> list[Verdict]:
        return await asyncio.gather(*(ENV.verify(case.task, Reply(case.text)) for case in cases))

    found = [(case.why, verdict.status) for case, verdict in zip(cases, asyncio.run(judge_all()), strict=True)]
    assert found == [(case.why, case.status) for case in cases]


def _operations(spec: str) -> list[tuple[str, int]]:
    return [(name, int(constant)) for name, constant in (part.split() for part in spec.split(", "))]
