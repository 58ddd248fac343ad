"""What a call must have to be right, and what pairing, types and hostile values do to a verdict."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.tool_calls import BFCL_RULES, ToolRules, tool_verdict, tool_verdict_async

SCHEMA = {
    "type": "object",
    "required": ["city"],
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string"},
        "days": {"type": "integer"},
        "alt": {"type": "number"},
        "is_now": {"type": "boolean"},
        "spots": {"type": "array", "items": {"type": "array", "items": {"type": "float"}}},
        "place": {"type": "dict", "properties": {"x": {"type": "float"}, "name": {"type": "string"}}},
    },
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}, {"name": "stop"}]


def weather(**arguments: Any) -> dict[str, Any]:
    return {"name": "weather", "arguments": arguments}


def status(calls: object, expected: object, tools: object = TOOLS, rules: ToolRules | None = None) -> str:
    return tool_verdict(calls, expected, tools=tools, rules=rules).status


@pytest.mark.parametrize(
    ("given", "acceptable", "is_right"),
    [
        (3, [3], True),
        (3.0, [3], False),
        (True, [1], False),
        (1, [True], False),
        ("3", [3], False),
        (3, ["3"], False),
        (3, [3.0], True),
        (2**53 + 1, [float(2**53)], False),
        (None, [None], True),
        (None, [0], False),
        (False, [None], False),
        ([1, True], [[1, 1]], False),
        ([2, 1], [[1, 2]], False),
        ([], [[], ""], True),
        ("", ["C", ""], False),
        ({"a": 1}, [{"a": [1, 2]}], True),
        ({"a": 3}, [{"a": [1, 2]}], False),
        ({}, [{"a": [1, ""]}], True),
        ({}, [{"a": [1]}], False),
        ({"a": 1, "b": 1}, [{"a": [1]}], False),
        ([{"a": 2}], [[{"a": [1, 2]}]], True),
        ([{"a": 1}, {"a": 1}], [[{"a": [1]}]], False),
        ({"a": {"b": 1}}, [{"a": [{"b": 1}]}], True),
    ],
)
def test_json_types_are_told_apart(given: Any, acceptable: list[Any], is_right: bool) -> None:
    """In Python True == 1 and 3.0 == 3, and BFCL's lists compare so."""
    verdict = tool_verdict([{"name": "f", "arguments": {"p": given}}], [{"f": {"p": acceptable}}])
    assert verdict.status == ("correct" if is_right else "wrong")


@pytest.mark.parametrize(
    ("arguments", "acceptable", "is_right"),
    [
        ({"alt": 3.0}, {"alt": [3]}, True),
        ({"alt": 3}, {"alt": [3.0]}, True),
        ({"days": 3.0}, {"days": [3]}, False),
        ({"spots": [[1.0, 2]]}, {"spots": [[[1, 2.0]]]}, True),
        ({"place": {"x": 1.0}}, {"place": [{"x": [1]}]}, True),
        ({"place": {"name": 1}}, {"place": [{"name": ["1"]}]}, False),
    ],
)
def test_the_schema_says_which_integers_stand_for_floats(
    arguments: dict[str, Any], acceptable: dict[str, Any], is_right: bool
) -> None:
    verdict = status([weather(city="Rome", **arguments)], [{"weather": {"city": ["Rome"], **acceptable}}])
    assert verdict == ("correct" if is_right else "wrong")


def test_a_parameter_is_given_when_needed_and_only_when_known() -> None:
    expected = [{"weather": {"city": ["Rome", ""], "unit": ["C", ""]}}]
    assert status([weather(city="Rome")], expected) == "correct"
    assert status([weather(city="Rome", unit="C")], expected) == "correct"
    assert status([weather(unit="C")], expected) == "wrong", "the tool requires the city, whatever the answer says"
    assert status([weather(unit="C")], expected, tools=None) == "correct"
    assert status([weather(city="Rome", days=1)], expected) == "wrong"


def test_an_empty_text_that_a_required_parameter_must_have_is_a_value() -> None:
    assert status([weather(city="")], [{"weather": {"city": [""]}}]) == "correct"
    assert status([weather()], [{"weather": {"city": [""]}}]) == "wrong"


def test_texts_are_exact_unless_the_rules_say_bfcl() -> None:
    given, expected = [weather(city="new york")], [{"weather": {"city": ["New York, "]}}]
    assert status(given, expected) == "wrong"
    assert status(given, expected, rules=BFCL_RULES) == "correct"
    nested = [{"f": {"p": [["A-b", {"k": "C d"}]]}}]
    assert status([{"name": "f", "arguments": {"p": ["ab", {"k": "CD"}]}}], nested, None, BFCL_RULES) == "unscored"
    listed = [{"f": {"p": [["A-b", {"k": ["C d"]}]]}}]
    assert status([{"name": "f", "arguments": {"p": ["ab", {"k": "CD"}]}}], listed, None, BFCL_RULES) == "correct"
    assert status([{"name": "f", "arguments": {"p": ["ab", {"K": "CD"}]}}], listed, None, BFCL_RULES) == "wrong"
    with pytest.raises(ValueError, match="bfcl"):
        ToolRules(strings="loose")  # type: ignore[arg-type]


def test_a_text_of_nothing_but_punctuation_is_no_mark_of_omission() -> None:
    """Folded before the marks are read, "-" would be "", and the parameter optional."""
    expected = [{"f": {"p": ["-"], "q": [{"k": ["."]}]}}]
    assert status([{"name": "f", "arguments": {}}], expected, None, BFCL_RULES) == "wrong"
    assert status([{"name": "f", "arguments": {"p": "-", "q": {}}}], expected, None, BFCL_RULES) == "wrong"
    assert status([{"name": "f", "arguments": {"p": "-", "q": {"k": "."}}}], expected, None, BFCL_RULES) == "correct"


def test_parallel_calls_are_paired_at_their_best() -> None:
    """The first expected call fits both; a greedy pairing gives it to the first and fails the second."""
    expected = [{"weather": {"city": ["Rome", "Paris"]}}, {"weather": {"city": ["Rome"]}}]
    calls = [weather(city="Rome"), weather(city="Paris")]
    assert status(calls, expected) == "correct"
    assert status(calls[::-1], expected) == "correct"
    assert status([weather(city="Paris")] * 2, expected) == "wrong"


def test_parts_say_how_far_the_calls_agree() -> None:
    expected = [weather(city="Rome", days=2), {"name": "stop", "arguments": {}}]
    verdict = tool_verdict([weather(city="Rome", days=3, unit="C")], expected, tools=TOOLS)
    assert verdict.status == "wrong"
    assert verdict.parts == {
        "matched": 0.0,
        "names": 0.5,
        "parameters": pytest.approx(2 / 3 / 2),
        "values": pytest.approx(1 / 3 / 2),
    }
    assert "number of calls: 1, where 2 are expected" in verdict.detail


def test_detail_names_the_first_fault() -> None:
    expected = [weather(city="Rome")]
    assert "'city' has no acceptable value: \"Paris\"" in tool_verdict([weather(city="Paris")], expected).detail
    assert "'city' is missing" in tool_verdict([weather()], expected).detail
    assert "'q' is not expected" in tool_verdict([weather(city="Rome", q=1)], expected).detail
    assert "no such call" in tool_verdict([{"name": "stop", "arguments": {}}], expected).detail


def test_no_call_is_right_when_none_is_expected() -> None:
    assert status([], []) == "correct"
    assert status("I cannot help with that using the given tools.", []) == "correct"
    assert status("The option(s) you name (see above) are none of mine.", []) == "correct"
    assert status([weather(city="Rome")], []) == "wrong"
    assert status([], [weather(city="Rome")]) == "wrong"
    assert tool_verdict([], []).parts == {"matched": 1.0, "names": 1.0, "parameters": 1.0, "values": 1.0}


@pytest.mark.parametrize(
    ("expected", "cause"),
    [
        (None, "of type NoneType"),
        ("weather", "of type str"),
        ([None], "an expected call of type NoneType"),
        ([{}], "names no function"),
        ([{"a": {}, "b": {}}], "names no function, or several"),
        ([{"weather": 1}], "are no object"),
        ([{"weather": {"city": "Rome"}}], "'city' are no list"),
        ([{"weather": {"city": []}}], "'city' are no list, or none"),
        ([{"weather": {"unit": ["C"]}}], "leaves out 'city'"),
        ([{"weather": {"city": ["Rome"], "q": [1]}}], "gives 'q'"),
        ([weather(unit="C")], "leaves out 'city'"),
        ([{"name": "weather"}], "without an object of arguments"),
        ([{"fly": {}}], "'fly' is not among the tools"),
        ([{"weather": {"city": [float("nan")]}}], "the number nan"),
        ([{"weather": {"city": [{"a"}]}}], "a set"),
    ],
)
def test_an_expectation_that_no_call_can_meet_is_unscored(expected: object, cause: str) -> None:
    """Never a zero: the policy is not at fault."""
    verdict = tool_verdict([weather(city="Rome")], expected, tools=TOOLS)
    assert verdict.status == "unscored"
    assert cause in verdict.detail


@pytest.mark.parametrize("tools", ["weather", [{}], [{"name": "f"}, {"name": "f"}], [{"function": None}]])
def test_tools_that_cannot_be_read_are_unscored(tools: object) -> None:
    assert status([], [], tools) == "unscored"


async def test_the_async_twin_agrees() -> None:
    verdict = await tool_verdict_async([weather(city="Rome")], [weather(city="Rome")], tools=TOOLS)
    assert verdict.status == "correct"


TEXT = st.text(alphabet="aB1é\u4e2d\ud800\x00 '\"\\-.,", max_size=4)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
CALL = st.builds(
    lambda name, arguments: {"name": name, "arguments": arguments},
    st.sampled_from(["f", "g"]),
    st.dictionaries(st.sampled_from(["p", "q"]), PLAIN, max_size=2),
)


@given(st.lists(CALL, max_size=4), st.randoms(use_true_random=False))
def test_exact_calls_match_themselves_in_any_order_and_form(calls: list[dict[str, Any]], random: Any) -> None:
    shuffled = random.sample(calls, len(calls))
    wrapped = [{"id": "1", "type": "function", "function": {**call, "arguments": json.dumps(call["arguments"])}}
               for call in shuffled]  # fmt: skip
    blocks = "I call:\n" + "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in shuffled)
    for form in (shuffled, wrapped, json.dumps(shuffled), blocks):
        verdict = tool_verdict(form, calls)
        assert verdict.status == "correct"
        assert set(verdict.parts.values()) == {1.0}


SMALL_CALL = st.builds(
    lambda name, arguments: {"name": name, "arguments": arguments},
    st.sampled_from(["f", "g"]),
    st.dictionaries(st.sampled_from(["p", "q"]), st.integers(0, 2), max_size=2),
)


@given(st.lists(SMALL_CALL, max_size=4), st.lists(SMALL_CALL, max_size=4))
def test_the_verdict_is_symmetric_and_blind_to_order(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """Of exact calls without floats, where nothing tells given from expected."""
    verdict = tool_verdict(one, other)
    canonical = [sorted(json.dumps(call, sort_keys=True) for call in calls) for calls in (one, other)]
    assert (verdict.status == "correct") == (canonical[0] == canonical[1])
    assert tool_verdict(other, one).parts == verdict.parts
    assert tool_verdict(one[::-1], other).parts == verdict.parts
    assert all(0.0 <= part <= 1.0 for part in verdict.parts.values())
    assert (verdict.parts["matched"] == 1.0) == (verdict.parts["values"] == 1.0) == (verdict.status == "correct")


@given(
    st.lists(st.integers(0, 3), max_size=4),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=4),
)
def test_parallel_calls_match_exactly_when_some_pairing_does(given: list[int], acceptable: list[list[int]]) -> None:
    calls = [{"name": "f", "arguments": {"p": value}} for value in given]
    verdict = tool_verdict(calls, [{"f": {"p": values}} for values in acceptable])
    is_right = len(given) == len(acceptable) and any(
        all(value in values for value, values in zip(order, acceptable, strict=True))
        for order in itertools.permutations(given)
    )
    assert verdict.status == ("correct" if is_right else "wrong")


@given(PLAIN, PLAIN, PLAIN)
def test_any_json_gets_a_verdict(calls: Any, expected: Any, tools: Any) -> None:
    for rules in (None, BFCL_RULES):
        assert tool_verdict(calls, expected, tools=tools, rules=rules).status in (
            "correct", "wrong", "unparsed", "unscored",
        )  # fmt: skip
    assert tool_verdict(calls, [weather(city="Rome")], tools=TOOLS).status in ("wrong", "unparsed")


def _deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _cyclic() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def _exploding() -> Any:
    """2^50 values in 50 lists."""
    value: Any = [1]
    for _ in range(50):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "value",
    [_deep(65), _deep(5000), _cyclic(), _exploding(), float("nan"), float("inf"), {1: 2}, {"a": {3}}, b"x", 10**5000],
    ids=range(10),
)
def test_values_that_are_not_plain_json_are_unparsed_or_unscored(value: Any) -> None:
    call = {"name": "f", "arguments": {"p": value}}
    assert tool_verdict([call], [{"f": {"p": [1]}}]).status == "unparsed"
    assert tool_verdict([{"name": "f", "arguments": {"p": 1}}], [call]).status == "unscored"
    assert tool_verdict([], [], tools=[{"name": "f", "parameters": {"p": value}}]).status == "unscored"


@pytest.mark.parametrize("value", ["\ud800", "\x00", 10**4000, -(10**300), 1e308, "é" * 5000, _deep(50)], ids=range(7))
def test_odd_but_plain_values_are_judged_and_told(value: Any) -> None:
    call = {"name": "f", "arguments": {"p": value}}
    assert tool_verdict([call], [call]).status == "correct"
    verdict = tool_verdict([call], [{"f": {"p": [1]}}])
    assert verdict.status == "wrong"
    assert verdict.detail.isascii()
    assert len(verdict.detail) < 300


def test_two_hundred_calls_are_judged_in_well_under_a_second() -> None:
    """The dearest case: all of one name, most of them alike."""
    expected = [{"f": {"p": [index, index + 1], "q": ["x", ""]}} for index in range(200)]
    calls = [{"name": "f", "arguments": {"p": index + 1, "q": "x"}} for index in range(200)]
    started = time.process_time()
    assert tool_verdict(calls, expected).status == "correct"
    assert tool_verdict(calls[::-1], expected).status == "correct"
    assert tool_verdict([*calls[1:], calls[5]], expected).status == "wrong"
    assert time.process_time() - started < 1.5


def test_a_flood_of_calls_is_wrong_and_cheap() -> None:
    expected = [{"f": {"p": [index]}} for index in range(200)]
    flood = [{"name": "f", "arguments": {"p": index}} for index in range(20_000)]
    started = time.process_time()
    verdict = tool_verdict(flood, expected)
    assert (verdict.status, verdict.parts["matched"]) == ("wrong", 0.0)
    assert time.process_time() - started < 1.0
