"""The state verdict: after replay, is the world as it should be?

For stateful tools many call sequences are right; what counts is the state they leave. The env
replays the policy's calls and the right ones, each on a fresh episode, and the two states are
compared here as plain JSON.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from rewards.tool_json import json_fault, same_scalar, shown
from rewards.verdict import Verdict

_MAX_VALUES = 5_000_000
_MAX_DEPTH = 128
_Path = tuple[str, ...]


def state_verdict(
    replayed: object, expected_state: object, *, unordered: Iterable[str] = (), is_cut_off: bool = False
) -> Verdict:
    """Is the state that the replayed calls left exactly the expected one?

    unordered   JSON pointers (RFC 6901, `*` for any key or index: "/users/*/orders") of lists whose
                order says nothing; how often an item occurs still counts. "" is the whole state.
    is_cut_off  the run was ended by a step limit instead of by itself: `wrong`, whatever it reached
                (tau2-bench).

    Numbers are compared by value (1 is 1.0, true is not 1), floats without tolerance. Never raises
    for what the states hold; an expected state that is not plain JSON is `unscored`.
    """
    if fault := json_fault(expected_state, _MAX_VALUES, _MAX_DEPTH):
        return Verdict.unscored(f"the expected state holds {fault}")
    if is_cut_off:
        return Verdict.wrong("the run was cut off by a step limit")
    if fault := json_fault(replayed, _MAX_VALUES, _MAX_DEPTH):
        return Verdict.wrong(f"the state holds {fault}")
    difference = _first_difference(replayed, expected_state, [_path(pointer) for pointer in unordered])
    return Verdict.correct() if difference is None else Verdict.wrong(difference)


def _first_difference(replayed: Any, expected: Any, unordered: list[_Path]) -> str | None:
    """In the expected state's order. A stack of its own, since states are large."""
    todo: list[tuple[_Path, Any, Any]] = [((), replayed, expected)]
    while todo:
        path, given, wanted = todo.pop()
        if isinstance(wanted, dict) and isinstance(given, dict):
            for key in [*wanted, *given]:
                if key not in given or key not in wanted:
                    return f"{_pointer((*path, key))} {'is missing' if key in wanted else 'should not be there'}"
            todo.extend(((*path, key), given[key], wanted[key]) for key in reversed(wanted))
        elif isinstance(wanted, list) and isinstance(given, list):
            if len(given) != len(wanted):
                return f"{_pointer(path)} has {len(given)} items, not {len(wanted)}"
            if not _is_unordered(path, unordered):
                pairs = list(enumerate(zip(given, wanted, strict=True)))
                todo.extend(((*path, str(index)), one, other) for index, (one, other) in reversed(pairs))
            elif lacking := _lacking(given, wanted, path, unordered):
                return f"{_pointer(path)} lacks {lacking}"
        elif not same_scalar(given, wanted):
            return f"{_pointer(path)} is {shown(given)}, not {shown(wanted)}"
    return None


def _lacking(given: list[Any], wanted: list[Any], path: _Path, unordered: list[_Path]) -> str | None:
    """The first item that lists of one length do not share, order aside."""
    had = Counter(_canonical_text(item, (*path, str(index)), unordered) for index, item in enumerate(given))
    for index, item in enumerate(wanted):
        text = _canonical_text(item, (*path, str(index)), unordered)
        if not had[text]:
            return shown(item)
        had[text] -= 1
    return None


def _canonical_text(value: Any, path: _Path, unordered: list[_Path]) -> str:
    """The same text for values that are the same state."""
    return json.dumps(_canonical(value, path, unordered), sort_keys=True)


def _canonical(value: Any, path: _Path, unordered: list[_Path]) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(item, (*path, key), unordered) for key, item in value.items()}
    if isinstance(value, list):
        items = [_canonical(item, (*path, str(index)), unordered) for index, item in enumerate(value)]
        is_sorted = _is_unordered(path, unordered)
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True)) if is_sorted else items
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_unordered(path: _Path, unordered: list[_Path]) -> bool:
    return any(
        len(path) == len(pattern) and all(said in ("*", key) for said, key in zip(pattern, path, strict=True))
        for pattern in unordered
    )


def _path(pointer: str) -> _Path:
    if pointer and not pointer.startswith("/"):
        raise ValueError(f'unordered = {pointer!r}: a JSON pointer is "" or starts with "/"')
    return tuple(key.replace("~1", "/").replace("~0", "~") for key in pointer.split("/")[1:])


def _pointer(path: _Path) -> str:
    """ASCII and short enough to show; the state itself has no name of its own."""
    text = "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in path)
    return ascii(text)[1:-1][:200] or "the state"
