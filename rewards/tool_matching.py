"""Does a call match an expected one, and how far do two lists of calls agree?

Types are JSON's: true is not 1, "3" is not 3, 3.0 is no integer; an integer may stand for a float,
as it may in Python. What the expectation says is right; the schema adds only which integers in it
stand for floats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rewards.tool_assignment import best_total, maximum_matching
from rewards.tool_expectations import ExpectedCall, Pattern
from rewards.tool_json import shown
from rewards.tool_parsing import Call

_FLOAT_TYPES = frozenset({"float", "number", "double"})
_MAX_CALLS_PAIRED = 256
_MAX_CALLS_OVERLAPPED = 32  # cubic


def matched_pairs(calls: list[Call], expected: list[ExpectedCall]) -> list[int]:
    """For each call the expected call it is paired with, or -1, by a largest possible matching.

    Far too many calls for any answer are paired with none, so their cost stays bounded.
    """
    if len(calls) > len(expected) + _MAX_CALLS_PAIRED:
        return [-1] * len(calls)
    fits = [sum(1 << index for index, wanted in enumerate(expected) if matches(call, wanted)) for call in calls]
    return maximum_matching(fits, len(expected))


def matches(call: Call, wanted: ExpectedCall) -> bool:
    return call.name == wanted.name and _first_fault(call.arguments, wanted.arguments, wanted.schema) is None


def told_fault(call: Call, wanted: ExpectedCall) -> str:
    """What the arguments have wrong first, for people."""
    fault = _first_fault(call.arguments, wanted.arguments, wanted.schema)
    if fault is None:
        return "matches"
    said, key = fault
    return f"{key!a:.80} {said}" + (f": {shown(call.arguments[key])}" if key in call.arguments else "")


def overlaps(calls: list[Call], expected: list[ExpectedCall], matched: int) -> dict[str, float]:
    """ToolRL's overlaps (arXiv 2504.13958), each in [0, 1].

    names       the multisets of names: size of the intersection over size of the union.
    parameters  shared parameter names over all parameter names, summed over pairs of equal name.
    values      parameters with an acceptable value over all parameter names, summed likewise.

    Sums are the best over all pairings, divided by the larger number of calls: an extra call costs
    what a missing one does (ToolRL divides by the expected only). Beyond 32 calls on a side only
    whole matches count.
    """
    size = max(len(calls), len(expected))
    if not size:
        return {"names": 1.0, "parameters": 1.0, "values": 1.0}
    given, wanted = Counter(call.name for call in calls), Counter(call.name for call in expected)
    names = (given & wanted).total() / (given | wanted).total()
    if matched == size or size > _MAX_CALLS_OVERLAPPED:
        return {"names": names, "parameters": matched / size, "values": matched / size}
    pairs = [[_pair_overlap(call, right) for right in expected] for call in calls]
    parameters = best_total([[pair[0] for pair in row] for row in pairs])
    values = best_total([[pair[1] for pair in row] for row in pairs])
    # Rounded, so that the order of a sum of floats cannot be told from the score.
    return {"names": names, "parameters": round(parameters / size, 9), "values": round(values / size, 9)}


def _pair_overlap(call: Call, wanted: ExpectedCall) -> tuple[float, float]:
    if call.name != wanted.name:
        return 0.0, 0.0
    pattern, given = wanted.arguments, call.arguments
    either = len(given.keys() | (pattern.acceptable.keys() - pattern.optional))
    if not either:
        return 1.0, 1.0
    shared = given.keys() & pattern.acceptable.keys()
    right = sum(_is_acceptable(given[key], pattern.acceptable[key], _property(wanted.schema, key)) for key in shared)
    return len(shared) / either, right / either


def _first_fault(given: Mapping[str, Any], pattern: Pattern, schema: Mapping[str, Any]) -> tuple[str, str] | None:
    """(what is wrong, with which key), or None. Told later: most pairs tried are not told."""
    for key, values in pattern.acceptable.items():
        if key not in given:
            if key not in pattern.optional:
                return "is missing", key
        elif not _is_acceptable(given[key], values, _property(schema, key)):
            return "has no acceptable value", key
    for key in given:
        if key not in pattern.acceptable:
            return "is not expected", key
    return None


def _is_acceptable(given: Any, values: tuple[Any, ...], schema: Any) -> bool:
    return any(_same(given, value, schema) for value in values)


def _same(given: Any, wanted: Any, schema: Any) -> bool:
    if isinstance(wanted, Pattern):
        return isinstance(given, dict) and _first_fault(given, wanted, _mapping(schema)) is None
    if isinstance(wanted, dict):
        return (
            isinstance(given, dict)
            and given.keys() == wanted.keys()
            and all(_same(given[key], value, _property(_mapping(schema), key)) for key, value in wanted.items())
        )
    if isinstance(wanted, list):
        items = _mapping(schema).get("items")
        return (
            isinstance(given, list)
            and len(given) == len(wanted)
            and all(_same(one, other, items) for one, other in zip(given, wanted, strict=True))
        )
    if type(given) is type(wanted):
        return bool(given == wanted)
    if isinstance(given, bool) or isinstance(wanted, bool):
        return False
    if isinstance(given, int) and isinstance(wanted, float):
        return given == wanted
    return isinstance(given, float) and isinstance(wanted, int) and _is_float(schema) and given == wanted


def _is_float(schema: Any) -> bool:
    kind = _mapping(schema).get("type")
    return bool(_FLOAT_TYPES & {one for one in (kind if isinstance(kind, list) else [kind]) if isinstance(one, str)})


def _property(schema: Mapping[str, Any], key: str) -> Any:
    return _mapping(schema.get("properties")).get(key)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
