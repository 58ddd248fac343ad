"""Comparing what a program produced with what was expected, in the trusted parent.

Values are compared as tagged JSON trees and never rebuilt, so no class, hash or `__eq__` of the
candidate's making takes part, and crafted hash collisions cost nothing.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

from rewards.code_tests import CallTests, StdioTests
from rewards.in_sandbox import encode


def same_value(given: Any, expected: Any, tests: CallTests) -> bool:
    """Does the tagged tree `given` hold the value `expected`, by the comparison the tests chose?

    `given` is the candidate's and may be any JSON whatever. Raises NotPlain when `expected` cannot be encoded.
    """
    wanted = encode(expected)
    try:
        if tests.comparison == "set":
            given, wanted = _distinct(given), _distinct(wanted)
        return _same(given, wanted, tests.comparison == "exact", tests.float_tolerance)
    except (RecursionError, OverflowError, KeyError, TypeError):
        return False  # a tree that `encode` never makes


def same_output(given: str, expected: str, tests: StdioTests) -> bool:
    """Does the output `given` match, by the tests' checker (all but "checker")?"""
    if tests.checker == "lines":
        return _lines(given) == _lines(expected)
    given_tokens, wanted_tokens = given.split(), expected.split()
    if tests.checker == "yesno":
        return [token.lower() for token in given_tokens] == [token.lower() for token in wanted_tokens]
    if tests.checker == "tokens":
        return given_tokens == wanted_tokens
    return len(given_tokens) == len(wanted_tokens) and all(
        _same_token(token, wanted, tests.float_tolerance)
        for token, wanted in zip(given_tokens, wanted_tokens, strict=True)
    )


def _same(given: Any, wanted: Any, is_exact: bool, tolerance: float) -> bool:
    """Recursion is as deep as `wanted`, which is ours."""
    if isinstance(wanted, list):
        items = _items(given, "tuple") if not is_exact else given
        return isinstance(items, list) and _same_items(items, wanted, is_exact, tolerance)
    if isinstance(wanted, dict):
        return _same_tagged(given, wanted, is_exact, tolerance)
    if isinstance(wanted, bool) or wanted is None or isinstance(wanted, str):
        return type(given) is type(wanted) and bool(given == wanted)
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        return False
    if is_exact and type(given) is not type(wanted):
        return False
    if isinstance(wanted, float) and tolerance:
        return _is_close(float(given), wanted, tolerance)
    return bool(given == wanted)


def _same_tagged(given: Any, wanted: dict[str, Any], is_exact: bool, tolerance: float) -> bool:
    kind = wanted["~"]
    if kind == "tuple" and not is_exact:
        return _same(given, wanted["v"], is_exact, tolerance)
    if not isinstance(given, dict) or given.get("~") != kind:
        return False
    if kind in ("set", "frozenset", "dict"):
        given_items, wanted_items = _in_order(given.get("v")), _in_order(wanted["v"])
        return _same_items(given_items, wanted_items, is_exact, tolerance)
    if kind == "tuple" or kind == "complex":
        return isinstance(given["v"], list) and _same_items(given["v"], wanted["v"], is_exact, tolerance)
    if kind == "float" and wanted["v"] == "nan":
        return False  # nan is never a right answer
    return bool(given.get("v") == wanted["v"])


def _same_items(given: list[Any], wanted: list[Any], is_exact: bool, tolerance: float) -> bool:
    return len(given) == len(wanted) and all(
        _same(one, other, is_exact, tolerance) for one, other in zip(given, wanted, strict=True)
    )


def _items(tree: Any, kind: str) -> Any:
    return tree["v"] if isinstance(tree, dict) and tree.get("~") == kind else tree


def _in_order(items: Any) -> list[Any]:
    return sorted(items, key=json.dumps) if isinstance(items, list) else []


def _distinct(tree: Any) -> Any:
    for kind in ("tuple", "set", "frozenset"):
        tree = _items(tree, kind)
    if not isinstance(tree, list):
        return tree
    return [json.loads(text) for text in sorted({json.dumps(item) for item in tree})]


def _is_close(given: float, wanted: float, tolerance: float) -> bool:
    """Within `tolerance`, absolute or relative to the expected value; nan is close to nothing."""
    return math.isfinite(given) and abs(given - wanted) <= tolerance * max(1.0, abs(wanted))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _same_token(given: str, wanted: str, tolerance: float) -> bool:
    if given == wanted and wanted.lower() != "nan":
        return True
    try:
        wanted_number, given_number = Decimal(wanted), Decimal(given)
    except ArithmeticError:
        return False
    if not (wanted_number.is_finite() and given_number.is_finite()):
        return False  # also before a signalling nan meets any arithmetic, which would raise
    if wanted.lstrip("+-").isdigit() and wanted_number:
        # Integers stay exact: a relative tolerance takes 100000 for 100001 (SandboxFusion), and
        # beyond 2^53 floats cannot tell neighbours apart (LiveCodeBench).
        return bool(given_number == wanted_number)
    return _is_close(float(given_number), float(wanted_number), tolerance)
