"""Sound tasks, and splits that share none: every planted fault is found and named."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest

from envs.arithmetic import Arithmetic
from envs.arithmetic import make_task as make_expression
from envs.base import SPLITS, Env, Golden, Reply, Split, Task
from envs.program import ProgramEnv
from envs.program import make_task as make_program
from envs.splits import check_disjoint, check_golden, check_tasks, find_overlaps
from sandbox.errors import VeriwardError

ASK = [{"role": "user", "content": "Say yes."}]


class Given(Env):
    version = "1"

    def __init__(self, tasks: dict[str, list[Any]]) -> None:
        self.given = tasks

    def tasks(self, split: Split) -> Iterable[Task]:
        return self.given[split]

    def verify(self, task: Task, reply: Reply) -> bool:
        return True


def _sound() -> dict[str, list[Any]]:
    return {split: [Task(f"{split}-0", [{"role": "user", "content": split}], 1, split)] for split in SPLITS}


def test_sound_tasks_come_back_by_split() -> None:
    given = _sound()
    assert check_tasks(Given(given)) == given
    assert find_overlaps(Given(given)) == []
    check_disjoint(Given(given))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Task("a", ASK, None, "train"), "train task a: a task without reference; give what verify compares with"),
        (Task("a", "Say yes.", 1, "train"), "train task a: prompt is no list of messages"),  # type: ignore[arg-type]
        (Task("a", [], 1, "train"), "train task a: prompt is no list of messages"),
        (Task("a", [{"role": "user"}], 1, "train"), "train task a: prompt is no list of messages"),
        (Task("a", ASK, 1, "dev"), "train task a: split is 'dev'"),
        (Task("", ASK, 1, "train"), "train task : id '' is no text"),
        (Task("a", ASK, {1, 2}, "train"), "train task a: reference and metadata must be plain JSON"),
        (Task("a", ASK, float("nan"), "train"), "train task a: reference and metadata must be plain JSON"),
        (Task("a", ASK, (1, 2), "train"), "train task a: reference and metadata change on their way through JSON"),
        (Task("a", ASK, 1, "train", {"n": {1: 2}}), "train task a: reference and metadata change"),
        ({"id": "a"}, "train task number 0: a dict; tasks must yield Task objects"),
    ],
)
def test_a_broken_task_is_named_with_what_to_do(task: Any, message: str) -> None:
    with pytest.raises(VeriwardError) as raised:
        check_tasks(Given(_sound() | {"train": [task]}))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_empty_train_split_is_an_error() -> None:
    with pytest.raises(VeriwardError, match="env given: the train split is empty"):
        check_tasks(Given(_sound() | {"train": []}))


def test_an_id_used_in_two_splits_is_an_error() -> None:
    given = _sound()
    given["test"] = [Task("train-0", ASK, 1, "test")]
    with pytest.raises(VeriwardError, match="test task train-0: its id is used twice"):
        check_tasks(Given(given))


def test_a_split_that_is_another_over_again_hints_at_the_argument() -> None:
    given = _sound()
    given["dev"] = [Task("train-0", ASK, 1, "dev")]
    with pytest.raises(VeriwardError, match=r"does tasks\(split\) use its argument\?"):
        check_tasks(Given(given))
    given["dev"].append(Task("dev-0", ASK, 1, "dev"))
    with pytest.raises(VeriwardError, match=r"make ids unique in all splits$"):
        check_tasks(Given(given))


def test_tasks_that_returns_nothing_to_go_through_is_one_line() -> None:
    with pytest.raises(VeriwardError, match=r'env given: tasks\("dev"\) returned None; it must yield Task objects'):
        check_tasks(Given(_sound() | {"dev": None}))  # type: ignore[dict-item]


def test_at_most_so_many_tasks_are_read() -> None:
    class Endless(Given):
        def tasks(self, split: Split) -> Iterable[Task]:
            return (Task(f"{split}-{number}", ASK, 1, split) for number in count())

    found = check_tasks(Endless({}), at_most=2)
    assert [[task.id for task in tasks] for tasks in found.values()] == [
        ["train-0", "train-1"],
        ["dev-0", "dev-1"],
        ["test-0", "test-1"],
    ]


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        (None, r"golden\(\) returned None; it must yield Golden objects"),
        (["14"], "golden case 0 is a str; golden must yield Golden objects"),
        ([Golden(Task("a", ASK, (1,), "dev"), "1", "correct")], "task of golden case 0: reference and metadata change"),
    ],
)
def test_golden_cases_are_checked_too(cases: Any, message: str) -> None:
    class Shown(Given):
        def golden(self) -> Any:
            return cases

    with pytest.raises(VeriwardError, match=message):
        check_golden(Shown(_sound()))


def test_what_the_authors_tasks_raises_is_one_line_with_its_place() -> None:
    with pytest.raises(VeriwardError, match=r'env given: tasks\("dev"\) raised KeyError.*test_splits\.py'):
        check_tasks(Given({"train": _sound()["train"]}))


def test_only_the_splits_asked_for_are_checked() -> None:
    assert list(check_tasks(Given({"test": _sound()["test"]}), ["test"])) == ["test"]


@pytest.mark.parametrize(
    ("content", "kind"), [("Add  1 and 2.", "exact"), ("add 1\nAND 2.", "normalised"), ("Add 1 and 3.", None)]
)
def test_the_same_question_in_two_splits_is_found(content: str, kind: str | None) -> None:
    given = _sound()
    given["train"].append(Task("train-1", [{"role": "user", "content": "Add  1 and 2."}], 3, "train"))
    given["test"].append(Task("test-1", [{"role": "user", "content": content}], 3, "test"))
    found = find_overlaps(Given(given))
    assert [(overlap.kind, overlap.first.id, overlap.second.id) for overlap in found] == (
        [(kind, "train-1", "test-1")] if kind else []
    )


def test_a_held_out_task_that_is_in_both_others_is_reported_for_each() -> None:
    given = {split: [Task(split, ASK, 1, split)] for split in SPLITS}
    found = [(overlap.first.split, overlap.second.split) for overlap in find_overlaps(Given(given))]
    assert found == [("train", "dev"), ("train", "test"), ("dev", "test")]


def test_commuted_terms_and_factors_planted_in_train_are_found() -> None:
    env = Arithmetic()
    tasks: dict[Split, list[Task]] = {
        "train": [make_expression("a", "3*2+5-1", "train"), make_expression("b", "9-3+2", "train")],
        "test": [make_expression("c", "5+2*3-1", "test"), make_expression("d", "9-2+3", "test")],
    }
    (overlap,) = find_overlaps(env, tasks)
    assert str(overlap) == "canonical overlap of train task a and test task c"
    with pytest.raises(VeriwardError, match="splits overlap in 1 tasks, first the canonical overlap of train task a"):
        check_disjoint(env, tasks)


def test_a_program_planted_in_train_that_computes_a_held_out_function_is_found() -> None:
    tasks: dict[Split, list[Task]] = {
        "train": [make_program("a", (("add", 2), ("mul", 3)), "train"), make_program("b", (("mul", 4),), "train")],
        "dev": [make_program("c", (("mul", 3), ("add", 6)), "dev")],
    }
    (overlap,) = find_overlaps(ProgramEnv(), tasks)
    assert (overlap.kind, overlap.first.id, overlap.second.id) == ("canonical", "a", "c")
