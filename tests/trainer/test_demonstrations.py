"""Demonstrations: right where the teacher is right, wrong exactly as named where not, train split only."""

from __future__ import annotations

import random
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs import arithmetic, program
from envs.base import Reply
from envs.procedural import split_of
from sandbox.errors import ConfigError
from trainer.demonstrations import (
    ENVS,
    ArithmeticNoise,
    Demonstration,
    Noise,
    ProgramNoise,
    arithmetic_reply,
    demonstrations,
    hasty_answer,
    program_reply,
)

MISLED = Noise(ArithmeticNoise(guess=0.5, slip=0.2), ProgramNoise(misconception=0.6, slip=0.2))


def first(env: str, noise: Noise, size: int, seed: int = 0) -> list[Demonstration]:
    return list(islice(demonstrations(env, noise, seed), size))


def expression_of(demonstration: Demonstration) -> str:
    return demonstration.prompt[-1]["content"].removeprefix("Compute ").removesuffix(".")


def operations_of(demonstration: Demonstration) -> list[tuple[str, int]]:
    spec = demonstration.prompt[-1]["content"].removeprefix("Write f: ").removesuffix(".")
    return [(name, int(constant)) for name, constant in (part.split() for part in spec.split(", "))]


@pytest.mark.parametrize("env", ENVS)
def test_the_same_seed_gives_the_same_demonstrations_and_another_seed_others(env: str) -> None:
    assert first(env, MISLED, 50, seed=3) == first(env, MISLED, 50, seed=3)
    assert first(env, MISLED, 50, seed=3) != first(env, MISLED, 50, seed=4)


def test_no_demonstration_shows_a_held_out_task() -> None:
    # Would fail if a teacher drew tasks itself instead of asking for the train split: 1 in 8 is held out.
    for demonstration in first("arithmetic", Noise(), 400):
        assert split_of(arithmetic.canonical_form(expression_of(demonstration))) == "train"
    for demonstration in first("program", Noise(), 400):
        assert split_of(program.behaviour(operations_of(demonstration))) == "train"


def test_a_clean_teacher_is_always_right() -> None:
    env = arithmetic.Arithmetic()
    for demonstration in first("arithmetic", Noise(), 200):
        expression = expression_of(demonstration)
        task = arithmetic.make_task("t", expression, "train")
        assert demonstration.reply == arithmetic.worked_solution(expression)
        assert env.verify(task, Reply(demonstration.reply)).status == "correct"
    for demonstration in first("program", Noise(), 200):
        assert demonstration.reply == program.worked_solution(operations_of(demonstration))


def test_demonstrations_go_on_when_a_train_split_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.demonstrations._TASKS_PER_SEED", 10)
    shown = [expression_of(demonstration) for demonstration in first("arithmetic", Noise(), 40)]
    assert len(set(shown)) > 30  # new tasks, not the first ten again


def test_guesses_are_bare_numbers_right_or_hasty_as_often_as_asked() -> None:
    replies = first("arithmetic", Noise(ArithmeticNoise(guess=0.7, right_guess=0.25)), 2000)
    guesses = [d for d in replies if "<think>" not in d.reply]
    hasty = [d for d in guesses if d.reply == hasty_answer(expression_of(d))]
    right = [d for d in guesses if int(d.reply) == arithmetic.evaluate(expression_of(d))]
    assert len(guesses) / len(replies) == pytest.approx(0.7, abs=0.04)
    assert len(hasty) / len(guesses) == pytest.approx(0.75, abs=0.06)
    assert 0.2 < len(right) / len(guesses) < 0.35  # a hasty answer is now and then right by chance
    assert all(d in hasty or d in right for d in guesses)


@pytest.mark.parametrize(
    ("expression", "hasty"),
    [("2+2*2*3", "4"), ("1*3+4", "3"), ("8-1+5", "7"), ("3+1*7", "7"), ("9-8+7", "1"), ("4*5*2-1", "20")],
)
def test_a_hasty_answer_is_the_result_of_the_first_operation(expression: str, hasty: str) -> None:
    assert hasty_answer(expression) == hasty


@given(st.integers(0, 10_000))
def test_a_slip_is_carried_on_consistently(seed: int) -> None:
    # A slipped line is followed by what really follows from it, so what is learnt is one mistake, not noise.
    expression = "2+2*2*3-4"
    reply = arithmetic_reply(expression, ArithmeticNoise(slip=0.5), random.Random(seed))
    working, answer = reply.removeprefix("<think>\n").split("\n</think>\n")
    lines = [expression, *working.split("\n")]
    assert answer == lines[-1]
    assert all(
        0 <= int(number) <= 99 for line in lines for number in line.replace("+", "-").replace("*", "-").split("-")
    )
    for line, following in pairwise(lines):
        expected = arithmetic.reductions(line)[0]
        differing = [a != b for a, b in zip(_numbers(expected), _numbers(following), strict=True)]
        assert sum(differing) <= 1


def _numbers(line: str) -> list[str]:
    return line.replace("+", " ").replace("-", " ").replace("*", " ").split()


def test_a_slip_share_of_one_makes_nearly_every_answer_wrong() -> None:
    replies = first("arithmetic", Noise(ArithmeticNoise(slip=1.0)), 300)
    wrong = [d for d in replies if d.reply.split("</think>\n")[1] != str(arithmetic.evaluate(expression_of(d)))]
    assert len(wrong) / len(replies) > 0.75


def test_a_misconception_replaces_only_what_it_names_and_always_the_same_way() -> None:
    operations = (("sub", 3), ("max", 4), ("mul", 5), ("min", 6))
    reply = program_reply(operations, ProgramNoise(misconception=1.0), random.Random(0))
    assert reply == program.worked_solution((("add", 3), ("min", 4), ("mul", 5), ("min", 6)))


def test_misconceptions_are_as_frequent_as_asked() -> None:
    rng, noise = random.Random(0), ProgramNoise(misconception=0.6)
    replies = [program_reply((("sub", 3), ("mul", 2)), noise, rng) for _ in range(2000)]
    assert sum("x + 3" in reply for reply in replies) / len(replies) == pytest.approx(0.6, abs=0.04)


def test_a_slip_changes_the_name_or_the_constant_of_an_operation() -> None:
    rng, noise = random.Random(0), ProgramNoise(slip=1.0)
    replies = {program_reply((("mul", 5), ("add", 2)), noise, rng) for _ in range(300)}
    assert program.worked_solution((("mul", 5), ("add", 2))) not in replies
    assert len(replies) > 20


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_outside_0_to_1_is_refused_by_name(share: float) -> None:
    with pytest.raises(ConfigError, match="guess"):
        ArithmeticNoise(guess=share)
    with pytest.raises(ConfigError, match="misconception"):
        ProgramNoise(misconception=share)


def test_an_env_without_a_teacher_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(ConfigError, match="arithmetic, program"):
        next(demonstrations("chess", Noise(), 0))
