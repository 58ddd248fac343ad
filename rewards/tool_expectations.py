"""Which calls are right: expected calls in BFCL's form or exact, checked against the tools once.

An expectation that no call can meet (a function the tools lack, a required parameter it leaves
out) is refused here rather than scored as the policy's failure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rewards.tool_json import Unreadable, json_fault
from rewards.tool_parsing import Call, as_call

_BFCL_IGNORED = re.compile(r"[ ,./\-_*^]")
_MAY_BE_OMITTED = ""


class UnusableExpectation(ValueError):
    """No call can be judged by this expectation; the message says why."""


@dataclass(frozen=True)
class ToolRules:
    """How texts in arguments are compared.

    strings  exact: character by character.
             bfcl: blanks and , . / - _ * ^ aside, case aside, ' as " (BFCL's standardize_string,
             whose data are labelled for it). It also makes "1.5" and "15" one text.
    """

    strings: Literal["exact", "bfcl"] = "exact"

    def __post_init__(self) -> None:
        if self.strings not in ("exact", "bfcl"):
            raise ValueError(f'ToolRules(strings={self.strings!r}): use "exact" or "bfcl"')


BFCL_RULES = ToolRules(strings="bfcl")


@dataclass(frozen=True)
class Pattern:
    """An object described by the acceptable values of each key; keys outside it are not acceptable."""

    acceptable: Mapping[str, tuple[Any, ...]]
    optional: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ExpectedCall:
    """A right call. `schema` describes the parameters ({} without tools)."""

    name: str
    arguments: Pattern
    schema: Mapping[str, Any]


def read_expected(expected: object, tools: object, rules: ToolRules) -> list[ExpectedCall]:
    """The right calls; none when no call is right. Raises UnusableExpectation."""
    schemas = None if tools is None else _read_tools(tools)
    items = [expected] if isinstance(expected, dict) else expected
    if not isinstance(items, (list, tuple)):
        raise UnusableExpectation(f"expected calls of type {type(expected).__name__}; give a list")
    if fault := json_fault(list(items)):
        raise UnusableExpectation(f"the expected calls hold {fault}")
    return [_read_call(item, schemas, rules) for item in items]


def folded(value: Any, rules: ToolRules) -> Any:
    """`value` with its texts, not its keys, as the rules compare them."""
    if rules.strings == "exact":
        return value
    if isinstance(value, str):
        return _BFCL_IGNORED.sub("", value).lower().replace("'", '"')
    if isinstance(value, list):
        return [folded(item, rules) for item in value]
    if isinstance(value, dict):
        return {key: folded(item, rules) for key, item in value.items()}
    return value


def _read_call(item: Any, schemas: dict[str, Any] | None, rules: ToolRules) -> ExpectedCall:
    if not isinstance(item, dict):
        raise UnusableExpectation(f"an expected call of type {type(item).__name__}; give an object")
    is_exact = isinstance((item if "name" in item else _mapping(item.get("function"))).get("name"), str)
    name, form = _exact_form(item) if is_exact else _acceptable_form(item)
    if schemas is not None and name not in schemas:
        raise UnusableExpectation(f"the expected function {name!a} is not among the tools")
    schema = schemas[name] if schemas is not None else {}
    required = _required(schema)
    if is_exact:
        pattern = Pattern({key: (folded(value, rules),) for key, value in form.items()})
    else:
        pattern = _pattern(form, required, rules, is_outermost=True)
    _refuse_unmeetable(name, pattern, schema, required)
    return ExpectedCall(name, pattern, schema)


def _exact_form(item: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    try:
        call: Call = as_call(item)
    except Unreadable as error:
        raise UnusableExpectation(f"an expected call cannot be read: {error}") from None
    return call.name, call.arguments


def _acceptable_form(item: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if len(item) != 1:
        raise UnusableExpectation("an expected call names no function, or several; give {function: {parameter: [...]}}")
    [(name, form)] = item.items()
    if not isinstance(form, dict):
        raise UnusableExpectation(f"the expected parameters of {name!a} are no object")
    return name, form


def _pattern(form: dict[str, Any], required: frozenset[str], rules: ToolRules, is_outermost: bool) -> Pattern:
    """An empty text among the values lets a key be omitted; alone, for a required key, it is the value."""
    acceptable, optional = {}, set()
    for key, values in form.items():
        if not isinstance(values, list) or not values:
            raise UnusableExpectation(f"the acceptable values of {key!a} are no list, or none")
        kept = [value for value in values if value != _MAY_BE_OMITTED]
        if len(kept) < len(values) and key not in required:
            optional.add(key)
        elif not kept:
            kept = values
        acceptable[key] = tuple(_acceptable(value, rules, is_outermost) for value in kept)
    return Pattern(acceptable, frozenset(optional))


def _acceptable(value: Any, rules: ToolRules, is_outermost: bool) -> Any:
    """BFCL writes patterns one level down: an object, or objects in a list. Deeper ones are plain values."""
    if is_outermost and isinstance(value, dict):
        return _pattern(value, frozenset(), rules, is_outermost=False)
    if is_outermost and isinstance(value, list):
        return [_acceptable(item, rules, isinstance(item, dict)) for item in value]
    return folded(value, rules)


def _refuse_unmeetable(name: str, pattern: Pattern, schema: Mapping[str, Any], required: frozenset[str]) -> None:
    known = _mapping(schema.get("properties"))
    for key in sorted(required - pattern.acceptable.keys()):
        raise UnusableExpectation(f"the expected call of {name!a} leaves out {key!a}, which the tool requires")
    if known and not schema.get("additionalProperties"):
        for key in sorted(pattern.acceptable.keys() - known.keys()):
            raise UnusableExpectation(f"the expected call of {name!a} gives {key!a}, which the tool does not know")


def _read_tools(tools: object) -> dict[str, dict[str, Any]]:
    """The parameters' schema of each function."""
    if not isinstance(tools, (list, tuple)):
        raise UnusableExpectation(f"tools of type {type(tools).__name__}; give a list of function descriptions")
    if fault := json_fault(list(tools)):
        raise UnusableExpectation(f"the tools hold {fault}")
    schemas: dict[str, dict[str, Any]] = {}
    for tool in tools:
        described = _mapping(_mapping(tool).get("function", tool))
        name = described.get("name")
        if not isinstance(name, str) or not name:
            raise UnusableExpectation("a tool without a name")
        if name in schemas:
            raise UnusableExpectation(f"two tools are named {name!a}")
        schemas[name] = _mapping(described.get("parameters"))
    return schemas


def _required(schema: Mapping[str, Any]) -> frozenset[str]:
    required = schema.get("required")
    return frozenset(key for key in required if isinstance(key, str)) if isinstance(required, list) else frozenset()


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
