"""The calls in what a policy said: which tools, with which arguments.

Reading is strict and gives all calls or none. A call that was attempted and cannot be read is an
error, never "no call": otherwise a broken call would pass for a refusal (gorilla#443).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from rewards.extraction import outside_thoughts
from rewards.tool_json import Unreadable, json_fault, strict_json

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_BLANKS = re.compile(r"\s*")
_STARTS_JSON = re.compile(r"\s*(?:\{|\[\s*[\[{\]])")
# What other templates wrap calls in, and tags of ours that are misspelt.
_FOREIGN_TAG = re.compile(
    r"<[|\uff5c]?/?(?:tool|function)[_\u2581 ]?(?:call|use)|<function=|<invoke\b|<\|python_tag\|>|\[TOOL_CALLS\]",
    re.IGNORECASE,
)
_CALL_OBJECT = re.compile(r"""\{\s{0,20}["'](?:name|arguments|parameters|function|tool|tool_calls)["']\s{0,20}:""")
# A line that begins with f( as in `get_weather(city=`; "option(s)" is prose.
_CALL_LINE = re.compile(r"^[ \t\[`*>]{0,8}[A-Za-z_][\w.]{0,100}\((?!s\))", re.MULTILINE)


@dataclass(frozen=True)
class Call:
    """One call; the arguments are plain JSON."""

    name: str
    arguments: dict[str, Any]


def read_calls(calls: object) -> list[Call]:
    """The calls of a reply's text, of one mapping or of a list of mappings, in their order.

    A mapping is {"name", "arguments"} or OpenAI's {"function": {"name", "arguments"}}; arguments
    may be JSON text. Raises Unreadable.
    """
    if isinstance(calls, str):
        return _calls_in_text(calls)
    if not isinstance(calls, (list, tuple, dict)):
        raise Unreadable(f"calls of type {type(calls).__name__}; a list of calls or a reply's text is wanted")
    items = list(calls) if not isinstance(calls, dict) else [calls]
    if fault := json_fault(items):
        raise Unreadable(fault)
    return [as_call(item) for item in items]


def as_call(item: Any) -> Call:
    """The call that one plain JSON value describes. Raises Unreadable."""
    if not isinstance(item, dict):
        raise Unreadable(f"a call of type {type(item).__name__}; an object with name and arguments is wanted")
    if "function" in item:
        if "name" in item or "arguments" in item:
            raise Unreadable("a call with both a function and a name or arguments of its own")
        item = item["function"]
        if not isinstance(item, dict):
            raise Unreadable("a call whose function is no object")
    name, arguments = item.get("name"), item.get("arguments")
    if not isinstance(name, str) or not name:
        raise Unreadable("a call without a name")
    if isinstance(arguments, str):
        arguments = _whole_json(arguments)
    if not isinstance(arguments, dict):
        raise Unreadable("a call without an object of arguments")
    return Call(name, arguments)


def _calls_in_text(text: str) -> list[Call]:
    visible = outside_thoughts(text)
    if not visible.strip():
        raise Unreadable("nothing outside an unfinished think block" if text.strip() else "the reply is empty")
    if _OPEN in visible or _CLOSE in visible:
        return [as_call(item) for item in _blocks(visible)]
    if _STARTS_JSON.match(visible):
        return read_calls(_whole_json(visible))
    if _FOREIGN_TAG.search(visible) or _CALL_OBJECT.search(visible) or _CALL_LINE.search(visible):
        raise Unreadable(f"a call outside {_OPEN} blocks")
    return []


def _blocks(text: str) -> list[Any]:
    """The value of each block. The reader finds a block's end, so an argument may hold the tags."""
    values: list[Any] = []
    position = 0
    while (opened := text.find(_OPEN, position)) >= 0:
        _refuse_tags(text[position:opened])
        value, end = strict_json(text, opened + len(_OPEN))
        closed = _after_blanks(text, end)
        if not text.startswith(_CLOSE, closed):
            raise Unreadable(f"a {_OPEN} block that is not closed after its JSON")
        values.append(value)
        position = closed + len(_CLOSE)
    _refuse_tags(text[position:])
    return values


def _refuse_tags(prose: str) -> None:
    if _FOREIGN_TAG.search(prose):
        raise Unreadable(f"a tag outside {_OPEN} blocks")


def _whole_json(text: str) -> Any:
    value, end = strict_json(text)
    if _after_blanks(text, end) < len(text):
        raise Unreadable("text after the JSON")
    return value


def _after_blanks(text: str, start: int) -> int:
    blanks = _BLANKS.match(text, start)
    return blanks.end() if blanks else start
