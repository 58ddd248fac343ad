"""Plain JSON from hostile hands: read strictly, bounded in depth and size, shown briefly.

Whatever passes `json_fault` can be walked, compared and printed without a surprise: no cycle, no
NaN, no key that is not text, no number too long to print.
"""

from __future__ import annotations

import json
import math
from typing import Any

MAX_DEPTH = 64
MAX_VALUES = 100_000
_MAX_INTEGER_BITS = 14_000  # below the 4,300 digits that Python converts
_SHOWN_CHARACTERS = 80


class Unreadable(ValueError):
    """What was given holds no JSON that can be used; the message says why."""


def strict_json(text: str, start: int = 0) -> tuple[Any, int]:
    """The JSON value that begins at `start`, blanks aside, and where it ends. Raises Unreadable.

    The standard reader keeps the last of two equal keys and takes NaN, Infinity and 1e999.
    """
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    try:
        value, end = _DECODER.raw_decode(text, start)
    except RecursionError:
        raise Unreadable(f"JSON nested more than {MAX_DEPTH} deep") from None
    except Unreadable:
        raise
    except ValueError as error:
        raise Unreadable(f"not JSON: {error}") from None
    if fault := json_fault(value):
        raise Unreadable(fault)
    return value, end


def json_fault(value: object, max_values: int = MAX_VALUES, max_depth: int = MAX_DEPTH) -> str | None:
    """Why `value` is not plain, bounded JSON (dict, list, text, number, boolean, null), or None."""
    todo: list[tuple[object, int]] = [(value, 0)]
    seen = 0
    while todo:
        item, depth = todo.pop()
        seen += 1
        if seen > max_values:
            return f"JSON of more than {max_values:,} values"
        if depth > max_depth:
            return f"JSON nested more than {max_depth} deep"
        if isinstance(item, dict):
            if not all(isinstance(key, str) for key in item):
                return "an object with a key that is not text"
            todo.extend((child, depth + 1) for child in item.values())
        elif isinstance(item, list):
            todo.extend((child, depth + 1) for child in item)
        elif fault := _scalar_fault(item):
            return fault
    return None


def same_scalar(given: object, wanted: object) -> bool:
    """Equal texts, booleans, nulls or numbers; 1 and 1.0 are one number, 1 and true are not."""
    if _is_number(given) and _is_number(wanted):
        return given == wanted
    return type(given) is type(wanted) and given == wanted


def shown(value: object) -> str:
    """A value for people, in ASCII and one short line."""
    if isinstance(value, str):
        value = value[:_SHOWN_CHARACTERS]
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def _scalar_fault(item: object) -> str | None:
    if item is None or isinstance(item, (str, bool)):
        return None
    if isinstance(item, int):
        return "a number of more than 4,200 digits" if item.bit_length() > _MAX_INTEGER_BITS else None
    if isinstance(item, float):
        return None if math.isfinite(item) else f"the number {item}, which JSON has not"
    return f"a {type(item).__name__}, which JSON has not"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise Unreadable("an object with the same key twice")
    return fields


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Unreadable("a number beyond the range of floats")
    return value


def _refuse_constant(name: str) -> float:
    raise Unreadable(f"the number {name}, which JSON has not")


_DECODER = json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_float=_finite, parse_constant=_refuse_constant)
