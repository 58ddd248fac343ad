"""The task order: every task once an epoch, and a cursor that is the whole state."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from envs.base import Task
from trainer.schedule import TaskSchedule

TASKS = [Task(f"t{n}", [], n, "train") for n in range(7)]


def names(draws):
    return [(draw.task.id, draw.visit) for draw in draws]


@given(seed=st.integers(0, 2**40), first=st.integers(0, 30), rest=st.integers(0, 30))
def test_a_resumed_schedule_asks_exactly_what_an_unbroken_one_asks(seed, first, rest):
    """NVIDIA-NeMo/RL#3599: 675 of 736 prompts were skipped over resumes."""
    unbroken = names(TaskSchedule(TASKS, seed).draw(first + rest))
    schedule = TaskSchedule(TASKS, seed)
    head = names(schedule.draw(first))
    assert head + names(TaskSchedule(TASKS, seed, schedule.cursor).draw(rest)) == unbroken


def test_every_task_is_asked_once_an_epoch_and_the_epoch_is_the_visit():
    draws = names(TaskSchedule(TASKS, seed=3).draw(3 * len(TASKS)))
    assert Counter(draws) == Counter((task.id, visit) for task in TASKS for visit in range(3))


def test_epochs_and_seeds_have_their_own_order():
    one, two = (names(TaskSchedule(TASKS, seed).draw(14)) for seed in (0, 1))
    assert [name for name, _ in one[:7]] != [name for name, _ in one[7:]]
    assert one != two
