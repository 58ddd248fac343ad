"""Required actions are made, required phrases are said as words."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.tool_dialogue import actions_verdict, phrases_verdict

ANY_TEXT = st.lists(st.integers(0, 0x10FFFF).map(chr)).map("".join)  # lone surrogates too


def test_every_required_action_must_be_made() -> None:
    assert actions_verdict(["look", "hand_off"], ["hand_off"]).status == "correct"
    verdict = actions_verdict(["look"], ["hand_off", "look"])
    assert (verdict.status, verdict.parts["actions"]) == ("wrong", 0.5)
    assert "'hand_off' was not called" in verdict.detail
    assert actions_verdict(["hand_off_later"], ["hand_off"]).status == "wrong"
    assert actions_verdict([], ["hand_off"]).status == "wrong"


def test_an_action_required_twice_is_made_twice() -> None:
    assert actions_verdict(["cancel"], ["cancel", "cancel"]).status == "wrong"
    assert actions_verdict(["cancel", "look", "cancel"], ["cancel", "cancel"]).status == "correct"


def test_actions_may_be_whole_calls() -> None:
    calls = [{"name": "look", "arguments": {}}, {"function": {"name": "hand_off", "arguments": "{}"}}]
    assert actions_verdict(calls, ["hand_off", "look"]).status == "correct"
    assert actions_verdict([{"name": "look"}], ["look"]).status == "unparsed"
    assert actions_verdict("look", ["look"]).status == "unparsed"


@pytest.mark.parametrize("required", [None, [], "look", [1], [""]])
def test_nothing_required_is_no_verdict(required: object) -> None:
    """An empty list of conditions must not pay (tau2 gives 1.0 to a task without criteria)."""
    assert actions_verdict(["look"], required).status == "unscored"
    assert phrases_verdict("look", required).status == "unscored"


@pytest.mark.parametrize(
    ("text", "phrase", "is_said"),
    [
        ("It costs 10 dollars.", "10", True),
        ("It costs $10.", "10", True),
        ("(10%)", "10", True),
        ("It costs 10.00 dollars", "10", True),
        ("It costs 100 dollars", "10", False),
        ("It costs 10.5 dollars", "10", False),
        ("It costs 3.10 dollars", "10", False),
        ("It costs 10,500 dollars", "10", False),
        ("the 10th", "10", False),
        ("a balance of -10 dollars", "10", False),
        ("a balance of -$10", "10", False),
        ("a balance of -10 dollars", "-10", True),
        ("a balance of \N{MINUS SIGN}10 dollars", "-10", True),
        ("from 2-10 dollars", "10", True),
        ("$1,126.04 in all", "1126.04", True),
        ("$1126.04 in all", "1,126.04", True),
        ("$1,126.50 in all", "1126.5", True),
        ("$1,126.5 in all", "1126.50", True),
        ("$1,126.05 in all", "1126.5", False),
        ("$11,126.04 in all", "1126.04", False),
        ("1,126,04", "112604", False),
        ("version 1.2.30", "2.3", False),
        ("It is 481.5.", "481.50", True),
        ("Items: 10, 20 and 30", "20", True),
        ("Items: 10,20", "20", True),
        ("A Rocket", "rock", False),
        ("a ROCK!", "rock", True),
        ("943 maple\n  drive, Suite 356", "943 Maple Drive", True),
        ("order #W12", "#W1", False),
        ("order #W1.", "#W1", True),
        ("it isn\N{RIGHT SINGLE QUOTATION MARK}t", "isn't", True),
        ("C++ it is", "c++", True),
        ("10\u00b2 metres", "10", False),
        ("1\u00a0000 metres", "1 000", True),
        ("<think>10</think>Nothing.", "10", False),
        ("<think>10", "10", False),
        ("", "10", False),
        ("a+b", "a.b", False),
    ],
)
def test_a_phrase_is_said_as_words(text: str, phrase: str, is_said: bool) -> None:
    """tau-bench#89 counted "10" in "100"."""
    assert phrases_verdict(text, [phrase]).status == ("correct" if is_said else "wrong")


def test_each_phrase_is_said_within_one_message() -> None:
    messages = ["You get 20", "hours. It costs 5."]
    assert phrases_verdict(messages, ["5", "20"]).status == "correct"
    verdict = phrases_verdict(messages, ["5", "20 hours"])
    assert (verdict.status, verdict.parts["phrases"]) == ("wrong", 0.5)
    assert "'20 hours' was not said" in verdict.detail
    assert phrases_verdict([1], ["5"]).status == "unparsed"
    assert phrases_verdict(None, ["5"]).status == "unparsed"


def test_what_the_retail_tasks_require_is_found_and_neighbours_are_not(shared_data: Callable[[str], Path]) -> None:
    tasks: list[Any] = json.loads(shared_data("data/tau2/retail_tasks.json").read_text())
    phrases = [phrase for task in tasks for phrase in task["evaluation_criteria"]["communicate_info"] or []]
    for phrase in phrases:
        assert phrases_verdict(f"So it is {phrase}.", [phrase]).status == "correct"
        assert phrases_verdict(f"So it is **{phrase.upper()}**, as said", [phrase]).status == "correct"
        for longer in (f"1{phrase}", f"{phrase}1", f"x{phrase}", f"{phrase}s"):
            assert phrases_verdict(f"So it is {longer}.", [phrase]).status == "wrong", longer
    assert len(phrases) == 61


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_number_is_said_exactly_when_it_is_the_number(said: int, wanted: int) -> None:
    for text in (f"It is {said}.", f"It is {said:,}!", f"It is ${said:,}.00"):
        assert (phrases_verdict(text, [str(wanted)]).status == "correct") == (said == wanted)
        assert phrases_verdict(text, [str(said)]).status == "correct"


@given(ANY_TEXT, ANY_TEXT)
def test_any_text_gets_a_verdict(text: str, phrase: str) -> None:
    assert phrases_verdict(text, [phrase]).status in ("correct", "wrong", "unscored")


@pytest.mark.parametrize("unit", ["1", "1,", "1,000", "1.", "1.0", "0.", ".0", ",000", " ", "10 ", "\ud800", "\ufdfa"])
def test_a_long_reply_costs_little(unit: str) -> None:
    started = time.process_time()
    phrases_verdict(unit * (100_000 // len(unit)), ["10.5", "x"])
    assert time.process_time() - started < 1.0
