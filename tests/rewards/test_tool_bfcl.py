"""BFCL's own answers match themselves, and no perturbed answer does.

The counts are asserted, so that a perturbation that silently stops being made is seen.
"""

from __future__ import annotations

import ast
import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rewards.tool_calls import BFCL_RULES, tool_verdict

Calls = list[dict[str, Any]]
SETS = ("simple_python", "multiple", "parallel")
PERTURBED = {
    "wrong name": 1140,
    "one call too few": 1140,
    "one call too many": 1140,
    "unknown parameter": 1140,
    "missing required": 2432,
    "missing": 326,
    "text": 2812,
    "number": 1278,
    "flipped": 112,
    "list for text": 1406,
    "null": 1406,
    "text for number": 1279,
    "boolean for number": 1279,
    "float for integer": 1110,
    "number for boolean": 115,
    "text for boolean": 115,
    "longer list": 211,
    "shorter list": 210,
    "reversed list": 125,
    "larger object": 11,
    "smaller object": 28,
}
LEFT_OUT = {"reversed list": 40, "flipped": 3, "number": 1, "shorter list": 1}


@pytest.fixture
def bfcl(shared_data: Callable[[str], Path]) -> Callable[[str], list[dict[str, Any]]]:
    def rows(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in shared_data(f"data/bfcl/{name}.json").read_text().splitlines() if line]

    return rows


@pytest.fixture
def answered(bfcl: Callable[[str], list[dict[str, Any]]]) -> list[tuple[str, list[Any], list[Any]]]:
    """(id, functions, ground truth) of the sets with acceptable values."""
    found = []
    for name in SETS:
        functions = {row["id"]: row["function"] for row in bfcl(f"BFCL_v4_{name}")}
        for row in bfcl(f"possible_answer_BFCL_v4_{name}"):
            found.append((row["id"], functions[row["id"]], row["ground_truth"]))
    return found


def _judge(calls: object, truth: list[Any], functions: list[Any]) -> str:
    return tool_verdict(calls, truth, tools=functions, rules=BFCL_RULES).status


def _parameters(functions: list[Any], name: str) -> dict[str, Any]:
    return next(function["parameters"] for function in functions if function["name"] == name)


def _first(values: list[Any], is_required: bool) -> Any:
    """The first acceptable value, plain; "" where the key is left out."""
    chosen = next((value for value in values if value != ""), "") if is_required else values[0]
    return _plain(chosen)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: values[0] for key, values in value.items() if values[0] != ""}
    if isinstance(value, list):
        return [_plain(item) if isinstance(item, dict) else item for item in value]
    return value


def _canonical(truth: list[Any], functions: list[Any]) -> Calls:
    calls: Calls = []
    for call in truth:
        [(name, accepted)] = call.items()
        required = _parameters(functions, name)["required"]
        chosen = {key: _first(values, key in required) for key, values in accepted.items()}
        is_given = {key: key in required or chosen[key] != "" for key in chosen}
        calls.append({"name": name, "arguments": {key: chosen[key] for key in chosen if is_given[key]}})
    return calls


def _other_values(value: Any, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(kind, value) near `value` and unequal to it by construction."""
    is_float = schema.get("type") == "float"
    if isinstance(value, bool):
        yield from (
            ("flipped", not value),
            ("number for boolean", int(value)),
            ("text for boolean", str(value).lower()),
        )
    elif isinstance(value, (int, float)):
        yield from (("number", value + 1), ("text for number", str(value)), ("boolean for number", bool(value)))
        if not is_float:
            yield "float for integer", float(value)
    elif isinstance(value, str):
        yield from (("text", value + "q"), ("text", "q" + value), ("list for text", [value]), ("null", None))
    elif isinstance(value, list):
        yield from (("longer list", [*value, *value[-1:], "q"]), ("shorter list", value[:-1]))
        if value != value[::-1]:
            yield "reversed list", value[::-1]
    elif isinstance(value, dict):
        yield "larger object", {**value, "q": 1}
        yield from (("smaller object", {k: v for k, v in value.items() if k != key}) for key in value)


def _perturbed(calls: Calls, functions: list[Any], truth: list[Any]) -> Iterator[tuple[str, int, str, Any, Calls]]:
    """(kind, place of the call, parameter, value, calls)."""
    for index, call in enumerate(calls):
        parameters = _parameters(functions, call["name"])

        def changed(position: int = index, **fields: Any) -> Calls:
            copied = copy.deepcopy(calls)
            copied[position].update(fields)
            return copied

        arguments = call["arguments"]
        yield "wrong name", index, "", None, changed(name=call["name"] + "s")
        yield "unknown parameter", index, "", None, changed(arguments={**arguments, "q": 1})
        for key, value in arguments.items():
            fewer = {k: v for k, v in arguments.items() if k != key}
            if key in parameters["required"]:
                yield "missing required", index, key, None, changed(arguments=fewer)
            elif "" not in truth[index][call["name"]][key]:
                yield "missing", index, key, None, changed(arguments=fewer)
            for kind, other in _other_values(value, parameters["properties"][key]):
                yield kind, index, key, other, changed(arguments={**arguments, key: other})
        yield "one call too few", index, "", None, calls[:index] + calls[index + 1 :]
        yield "one call too many", index, "", None, [*calls, call]


def test_every_possible_answer_matches_itself(answered: list[Any]) -> None:
    for id, functions, truth in answered:
        calls = _canonical(truth, functions)
        text = "\n".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)
        assert _judge(calls, truth, functions) == "correct", id
        assert _judge(calls[::-1], truth, functions) == "correct", id
        assert _judge(text, truth, functions) == "correct", id
        assert _judge(json.dumps(calls), truth, functions) == "correct", id
        assert tool_verdict(calls, truth, tools=functions).status == "correct", id
        assert tool_verdict(calls, calls, tools=functions).status == "correct", id
    assert len(answered) == 800


def test_every_acceptable_value_is_accepted(answered: list[Any]) -> None:
    """Not only the first one, each in an otherwise canonical answer."""
    tried = 0
    for id, functions, truth in answered:
        calls = _canonical(truth, functions)
        for call, expected in zip(calls, truth, strict=True):
            kept = call["arguments"]
            for key, values in expected[call["name"]].items():
                for value in values:
                    if value == "":
                        continue
                    call["arguments"] = {**kept, key: _plain(value)}
                    assert _judge(calls, truth, functions) == "correct", (id, key, value)
                    tried += 1
            call["arguments"] = kept
    assert tried > 4000


def test_no_perturbed_answer_matches(answered: list[Any]) -> None:
    """A changed value that the data accept beside the first one is left out, and counted."""
    tried: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    paid: set[str] = set()
    for id, functions, truth in answered:
        calls = _canonical(truth, functions)
        for kind, index, key, value, others in _perturbed(calls, functions, truth):
            if (
                kind in ("flipped", "number", "shorter list", "reversed list")
                and value in truth[index][calls[index]["name"]][key]
            ):
                left_out[kind] += 1
                continue
            tried[kind] += 1
            if _judge(others, truth, functions) != "wrong":
                paid.add(f"{id}: {kind} {key} {value}")
    assert paid == set()
    assert left_out == LEFT_OUT
    assert tried == PERTURBED


def test_no_call_is_right_where_no_function_applies(bfcl: Callable[[str], list[dict[str, Any]]]) -> None:
    rows = bfcl("BFCL_v4_irrelevance")
    for row in rows:
        functions = row["function"]
        name = functions[0]["name"] if functions else "f"
        attempted = f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'
        assert _judge([], [], functions) == "correct"
        assert _judge("None of the functions can answer this.", [], functions) == "correct"
        assert _judge([{"name": name, "arguments": {}}], [], functions) == "wrong"
        assert _judge(attempted, [], functions) == "wrong"
        assert _judge(attempted[:-1], [], functions) == "unparsed"
        assert _judge(f"[{name}(x=1", [], functions) == "unparsed"
    assert len(rows) == 240


DOCS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}


def _call_of(source: str, functions: list[Any]) -> dict[str, Any]:
    call = ast.parse(source, mode="eval").body
    assert isinstance(call, ast.Call)
    name = ast.unparse(call.func)
    properties = list(_parameters(functions, name)["properties"])
    arguments = {properties[place]: ast.literal_eval(node) for place, node in enumerate(call.args)}
    arguments |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    return {"name": name, "arguments": arguments}


def test_exact_calls_of_the_multi_turn_answers_match_themselves_only(
    bfcl: Callable[[str], list[dict[str, Any]]],
) -> None:
    documents = {name: bfcl(f"func_doc_{file}") for name, file in DOCS.items()}
    classes = {row["id"]: row["involved_classes"] for row in bfcl("BFCL_v4_multi_turn_base")}
    turns = 0
    for row in bfcl("possible_answer_BFCL_v4_multi_turn_base"):
        functions = [function for name in classes[row["id"]] for function in documents[name]]
        for turn in row["ground_truth"]:
            calls = [_call_of(source, functions) for source in turn]
            turns += 1
            assert tool_verdict(calls, calls, tools=functions).status == "correct"
            assert tool_verdict([*calls, {"name": "q", "arguments": {}}], calls, tools=functions).status == "wrong"
            assert not calls or tool_verdict(calls[1:], calls, tools=functions).status == "wrong"
    assert turns == 734
