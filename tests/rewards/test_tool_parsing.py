"""Which calls a reply's text makes: all of them or none, and a broken one is never a refusal."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.tool_calls import tool_verdict
from rewards.tool_json import Unreadable
from rewards.tool_parsing import Call, read_calls

ANY_TEXT = st.lists(st.integers(0, 0x10FFFF).map(chr)).map("".join)  # lone surrogates too
F = '{"name": "f", "arguments": {"a": 1}}'
BLOCK = f"<tool_call>{F}</tool_call>"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (BLOCK, 1),
        (f"Let me look.\n<tool_call>\n{F}\n</tool_call>\nDone.", 1),
        (BLOCK * 3, 3),
        (F, 1),
        (f"\n [{F}, {F}]\n", 2),
        ("[]", 0),
        ('{"function": {"name": "f", "arguments": "{\\"a\\": 1}"}}', 1),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', 1),
        (f"<think>{BLOCK} or not?</think>{BLOCK}", 1),
        (f"<think>{BLOCK}</think>No tool helps.", 0),
        ("[Note] I have no tool for that.", 0),
        ("", None),
        ("<think>Shall I", None),
        (f"<think>{BLOCK}", None),
        (f"<tool_call>{F}", None),
        (f"{F}</tool_call>", None),
        (f"<tool_call>{F} and so on</tool_call>", None),
        (f"<tool_call>{F}{F}</tool_call>", None),
        (f"<tool_call>[{F}]</tool_call>", None),
        ("<tool_call></tool_call>", None),
        (f"{BLOCK}<tool_call>", None),
        (f"{BLOCK}</tool_call>", None),
        (f"<tool_call>{BLOCK}</tool_call>", None),
        (f"<TOOL_CALL>{F}</TOOL_CALL>", None),
        (f"{BLOCK} <function=f>{{}}</function>", None),
        (f"{F} is my call", None),
        (f"My call: {F}", None),
        (f"```json\n{F}\n```", None),
        ("{'name': 'f', 'arguments': {}}", None),
        ('{"name": "f", "arguments": {"a": 1, "a": 2}}', None),
        ('{"name": "f", "name": "g", "arguments": {}}', None),
        ('{"name": "f", "arguments": {"a": NaN}}', None),
        ('{"name": "f", "arguments": {"a": -Infinity}}', None),
        ('{"name": "f", "arguments": {"a": 1e999}}', None),
        ('{"name": "f", "arguments": {"a": 01}}', None),
        ('{"name": "f", "arguments": {"a": "\n"}}', None),
        ('{"name": "f", "arguments": {"a": 1},}', None),
        ('{"name": "f", "arguments": "{\\"a\\": 1} x"}', None),
        ('{"name": "f", "arguments": "\\"{}\\""}', None),
        ('{"name": "f", "arguments": null}', None),
        ('{"name": "f", "arguments": [1]}', None),
        ('{"name": "f"}', None),
        ('{"name": "", "arguments": {}}', None),
        ('{"name": 1, "arguments": {}}', None),
        ('{"function": {"name": "f", "arguments": {}}, "name": "g"}', None),
        ('{"function": "f"}', None),
        ('{"answer": 5}', None),
        (f"[{F}, 1]", None),
        ("get_weather(city=", None),
        ("[get_weather(city='Paris')]", None),
        ("I will do it.\n`get_weather(city='Paris')`", None),
        ("<|tool_call_begin|>f", None),
        ("<\uff5ctool\u2581calls\u2581begin\uff5c>f", None),
        ("[TOOL_CALLS] f", None),
        ("<|python_tag|>f.call()", None),
    ],
)  # fmt: skip
def test_a_reply_makes_these_calls_or_cannot_be_read(text: str, count: int | None) -> None:
    if count is None:
        with pytest.raises(Unreadable):
            read_calls(text)
        assert tool_verdict(text, []).status == "unparsed", "an attempt is no refusal"
    else:
        assert read_calls(text) == [Call("f", {"a": 1})] * count


def test_an_argument_may_hold_the_tags() -> None:
    """The JSON reader finds the end, not a search for the tag."""
    arguments = {"text": "</tool_call><tool_call>"}
    text = '<tool_call>{"name": "f", "arguments": {"text": "</tool_call><tool_call>"}}</tool_call>'
    assert read_calls(text) == [Call("f", arguments)]


@pytest.mark.parametrize("calls", [None, 1, b"x", {"a"}, [None], ["f"], [[]], {}, [{}]])
def test_what_is_no_list_of_calls_is_unreadable(calls: object) -> None:
    with pytest.raises(Unreadable):
        read_calls(calls)


PIECES = [*'{}[]":,\\<>/ \n', "name", "f(", "1", "<tool_call>", "</tool_call>", "<think>", "</think>", F]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_gets_a_verdict(text: str) -> None:
    assert tool_verdict(text, []).status in ("correct", "wrong", "unparsed")
    assert tool_verdict(text, [{"g": {"p": [1]}}]).status in ("wrong", "unparsed")


@given(ANY_TEXT)
def test_any_unicode_gets_a_verdict(text: str) -> None:
    assert tool_verdict(text, [{"g": {"p": [1]}}]).status in ("wrong", "unparsed")
    assert tool_verdict(f"<tool_call>{text}</tool_call>", []).status == "unparsed"


@pytest.mark.parametrize(
    "unit",
    [
        "[", "{", '{"a":', '"', "\\", "<tool_call>", "</tool_call>", "<tool_call>{", BLOCK, "<think>", "</think>",
        " ", "\n", "[ ", "a(", "a.", "\na", "9", "'name'", "{ ", "<|tool", "\ud800", "`", "[`", '{"name" ',
    ],
)  # fmt: skip
@pytest.mark.parametrize("prefix", ["", "[", '{"name": "f", "arguments": {"a": ', "<tool_call>"])
def test_a_long_reply_costs_little(unit: str, prefix: str) -> None:
    """100 kB of what a backtracking pattern or a recursive reader would choke on."""
    text = prefix + unit * (100_000 // len(unit))
    started = time.process_time()
    verdict = tool_verdict(text, [{"f": {"a": [1]}}])
    assert verdict.status in ("wrong", "unparsed")
    assert len(verdict.detail) < 300
    assert time.process_time() - started < 0.5
