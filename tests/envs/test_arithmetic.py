"""Arithmetic: its expressions, their working, their canonical form, and what is ever paid."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.arithmetic import (
    Arithmetic,
    canonical_form,
    draw_expression,
    evaluate,
    generate_tasks,
    make_task,
    reductions,
    task_expression,
    worked_solution,
)
from envs.base import Reply

ENV = Arithmetic()


def _drawn(seed: int, operands: int) -> str:
    rng = random.Random(seed)
    while (found := draw_expression(rng, operands)) is None:
        pass
    return found[0]


expressions = st.builds(_drawn, st.integers(0, 2**32), st.integers(3, 5))


def _status(expression: str, text: str) -> str:
    return ENV.verify(make_task("t", expression, "train"), Reply(text)).status


def test_the_prompt_and_the_worked_solution_are_spelled_exactly() -> None:
    task = make_task("t", "2+2*2*3", "train")
    assert task.prompt == [{"role": "user", "content": "Compute 2+2*2*3."}]
    assert task.reference == 14
    assert worked_solution("2+2*2*3") == "<think>\n2+4*3\n2+12\n14\n</think>\n14"


def test_reductions_do_the_leftmost_operation_of_the_highest_precedence() -> None:
    assert reductions("9-3-2*2") == ["9-3-4", "6-4", "2"]
    assert reductions("8-5+6*1") == ["8-5+6", "3+6", "9"]


@given(expressions)
def test_the_value_is_what_python_says(expression: str) -> None:
    assert evaluate(expression) == eval(expression)


@given(expressions)
def test_every_value_on_the_way_is_within_0_and_99(expression: str) -> None:
    for line in reductions(expression):
        assert all(0 <= int(number) <= 99 for number in re.findall(r"-?\d+", re.sub(r"(?<=\d)-", "- ", line)))


@given(expressions)
def test_every_line_of_the_working_has_the_value_and_one_operation_less(expression: str) -> None:
    lines = [expression, *reductions(expression)]
    assert {evaluate(line) for line in lines} == {evaluate(expression)}
    operations = [len(re.findall(r"[-+*]", line)) for line in lines]
    assert operations == list(range(operations[0], -1, -1))


@given(expressions)
def test_a_worked_solution_is_correct(expression: str) -> None:
    assert _status(expression, worked_solution(expression)) == "correct"
    assert _status(expression, str(evaluate(expression))) == "correct"


@given(expressions, st.integers(-(10**9), 10**9).filter(bool))
def test_a_changed_answer_is_wrong(expression: str, change: int) -> None:
    working = worked_solution(expression).rpartition("\n")[0]
    assert _status(expression, f"{working}\n{evaluate(expression) + change}") == "wrong"


@given(expressions, st.randoms(use_true_random=False))
def test_commuted_terms_and_factors_are_the_same_task(expression: str, rng: random.Random) -> None:
    terms = re.findall(r"[-+][0-9*]+", "+" + expression)
    rng.shuffle(terms)
    terms.sort(key=lambda term: term[0] != "+")  # an expression starts with a positive term; stable otherwise
    commuted = ""
    for term in terms:
        factors = term[1:].split("*")
        rng.shuffle(factors)
        commuted += term[0] + "*".join(factors)
    assert canonical_form(commuted.removeprefix("+")) == canonical_form(expression)


@given(expressions, expressions)
def test_expressions_of_different_value_have_different_canonical_forms(first: str, second: str) -> None:
    if evaluate(first) != evaluate(second):
        assert canonical_form(first) != canonical_form(second)


def test_terms_do_not_commute_across_their_sign() -> None:
    assert canonical_form("3*2-1+5") == "+2*3+5-1" == canonical_form("5+2*3-1")
    assert canonical_form("9-3+2") != canonical_form("9-2+3")
    assert canonical_form("2+2*2") != canonical_form("2*2*2")


@pytest.mark.parametrize(
    "text",
    [
        "5 or 14",
        "14 15",
        "14.0",
        "1.4e1",
        "+14",
        "014",
        "1_4",
        "0xe",
        "\u0661\u0664",  # Arabic-Indic digits, which int() takes
        "\uff11\uff14",  # full-width digits, which int() takes
        "\u00a014",  # int() strips a no-break space
        "14\x00",
        "7*2",
        "14<think>",
        "<think>14",
        "<think>\n14\n</think>",
        "<think></think><think>14",
        "<think>a</think>14<think>b</think>",
        "</think>14</think>",
        "\\boxed{14}",
        "{}",
        "",
        "   ",
        "9" * 1_000_000,  # past int()'s digit limit
        "1" + "0" * 999_999 + "4",
        "-" * 100_000 + "14",
    ],
)
def test_a_hostile_or_hedging_reply_is_never_paid(text: str) -> None:
    assert _status("2+2*2*3", text) in ("unparsed", "wrong")


def test_a_draft_before_an_unfinished_second_thought_is_not_an_answer() -> None:
    """verifiers#2072, verifiers#213: a verdict read from inside the thinking."""
    assert _status("2+2*2*3", "<think>\n14") == "unparsed"
    assert _status("2+2*2*3", "<think>x</think>\n<think>\n14") == "unparsed"


def test_a_template_that_opened_the_thinking_itself_costs_nothing() -> None:
    """trl#6966: with `<think>` in the prompt the reply holds only the closing tag."""
    assert _status("2+2*2*3", "2+4*3\n2+12\n14\n</think>\n14") == "correct"


@given(st.text(max_size=60))
def test_only_the_exact_integer_is_ever_paid(text: str) -> None:
    paid = _status("2+2*2*3", text) == "correct"
    assert paid == (text.rpartition("</think>")[2].strip(" \t\r\n") == "14")


def test_a_reference_that_is_no_integer_is_unscored() -> None:
    task = make_task("t", "1+1+1", "train")
    broken = type(task)(task.id, task.prompt, "3", "train")
    verdict = ENV.verify(broken, Reply("3"))
    assert verdict.status == "unscored"
    assert verdict.score is None


def test_golden_cases_get_the_verdicts_they_declare() -> None:
    for case in ENV.golden():
        assert ENV.verify(case.task, Reply(case.text)).status == case.status, case.why


@pytest.mark.parametrize("text", ["", "2+", "2**3", "2/1", "x", "1+\u0661", "2+2\n", "(1)"])
def test_evaluate_refuses_what_is_no_expression(text: str) -> None:
    with pytest.raises(ValueError, match="not an expression"):
        evaluate(text)


def test_train_tasks_are_distinct_have_the_declared_mix_and_depend_only_on_the_seed() -> None:
    tasks = list(generate_tasks("train", 480, seed=3))
    assert tasks == list(generate_tasks("train", 480, seed=3))
    assert tasks != list(generate_tasks("train", 480, seed=4))
    assert len({ENV.canonical(task) for task in tasks}) == len({task.id for task in tasks}) == 480
    counts = [sum(task.metadata["difficulty"] == operands for task in tasks) for operands in (3, 4, 5)]
    assert counts == [20, 240, 220]
    assert all(str(eval(task_expression(task))) == str(task.reference) for task in tasks)
