"""Values cross between jobs without losing their type, and are compared without being rebuilt."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, namedtuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.code_tests import CallTests, StdioTests
from rewards.comparison import same_output, same_value
from rewards.in_sandbox import MAX_DEPTH, NotPlain, decode, encode

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(10**400, 10**401),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.complex_numbers(allow_nan=False),
)
HASHABLE = st.one_of(LEAVES, st.tuples(LEAVES, LEAVES), st.frozensets(LEAVES, max_size=3))
VALUES = st.recursive(
    st.one_of(HASHABLE, st.sets(HASHABLE, max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.tuples(inner), st.dictionaries(HASHABLE, inner, max_size=3)
    ),
    max_leaves=12,
)
EXACT = CallTests(function="f", cases=())


def typed(value: Any) -> Any:
    """A value with the types of everything in it made visible to ==."""
    if isinstance(value, (list, tuple)):
        return type(value), [typed(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(repr(typed(item)) for item in value)
    if isinstance(value, dict):
        return dict, sorted((repr(typed(key)), repr(typed(item))) for key, item in value.items())
    return type(value), repr(value)


@given(VALUES)
def test_a_value_survives_the_crossing_with_its_types(value: Any) -> None:
    assert typed(decode(json.loads(json.dumps(encode(value))))) == typed(value)


@given(VALUES)
def test_a_value_is_the_same_as_itself(value: Any) -> None:
    assert same_value(json.loads(json.dumps(encode(value))), value, EXACT)


@given(VALUES, VALUES)
def test_two_values_are_the_same_only_when_python_says_equal(one: Any, other: Any) -> None:
    if same_value(json.loads(json.dumps(encode(one))), other, EXACT):
        assert one == other
        assert type(one) is type(other)


def test_nan_keeps_its_type_and_equals_nothing() -> None:
    tree = json.loads(json.dumps(encode(float("nan"))))
    assert math.isnan(decode(tree))
    assert not same_value(tree, float("nan"), EXACT)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (True, 1),
        (1, 1.0),
        ((1, 2), [1, 2]),
        ({1}, frozenset({1})),
        ("1", 1),
        (b"a", "a"),
        ({1: 2}, {"1": 2}),
        (0, None),
    ],
)
def test_exact_comparison_tells_types_apart(one: Any, other: Any) -> None:
    """APPS-style graders take True for 1 and a tuple for a list; JSON makes every key a string."""
    assert not same_value(encode(one), other, EXACT)
    assert not same_value(encode(other), one, EXACT)


@pytest.mark.parametrize(
    ("given_value", "expected", "is_same"),
    [((1, 2), [1, 2], True), (2.0, 2, True), (True, 1, False), ([1, (2,)], [1, [2]], True), ("2", 2, False)],
)
def test_json_comparison_reads_what_json_can_say(given_value: Any, expected: Any, is_same: bool) -> None:
    tests = CallTests(function="f", cases=(), comparison="json")
    assert same_value(encode(given_value), expected, tests) == is_same


@pytest.mark.parametrize(
    ("given_value", "expected", "is_same"),
    [
        ([0.1 + 0.2], [0.3], True),
        (0.30001, 0.3, False),
        (5.0000004, 5, False),
        (10**17, 10**17 + 1, False),
        (float("nan"), 0.5, False),
        (float("inf"), 0.5, False),
        (10**400, 0.5, False),
    ],
)
def test_a_tolerance_is_for_floats_only(given_value: Any, expected: Any, is_same: bool) -> None:
    """evalplus: one float test's tolerance leaked to integers. SandboxFusion: 100000 for 100001."""
    tests = CallTests(function="f", cases=(), comparison="json", float_tolerance=1e-6)
    assert same_value(encode(given_value), expected, tests) == is_same


def test_subclasses_of_plain_types_count_as_these() -> None:
    point = namedtuple("point", "x y")
    assert encode([Counter("aab"), OrderedDict(a=1), point(1, 2)]) == encode([{"a": 2, "b": 1}, {"a": 1}, (1, 2)])


class AlwaysEqual:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def _nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [AlwaysEqual(), [AlwaysEqual()], iter([1]), len, _nested(MAX_DEPTH + 1), [0] * 300_000],
    ids=["an object", "an object inside", "an iterator", "a function", "too deep", "too long"],
)
def test_what_is_not_plain_or_too_large_does_not_cross(value: Any) -> None:
    with pytest.raises(NotPlain):
        encode(value)


@pytest.mark.parametrize(
    "tree",
    [{"~": "object", "v": 1}, {"~": "set", "v": [[1]]}, {"v": 1}, {"~": "int", "v": 5}, {"~": "dict", "v": [[1]]}, {}],
)
def test_a_tree_that_encode_never_makes_is_refused(tree: Any) -> None:
    with pytest.raises(NotPlain):
        decode(tree)


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["~", "v", "x"]), inner, max_size=3),
            st.fixed_dictionaries({"~": st.sampled_from(["set", "dict", "tuple", "complex", "int"]), "v": inner}),
        ),
    ),
    VALUES,
)
def test_no_forged_tree_makes_the_comparison_raise(tree: Any, expected: Any) -> None:
    for comparison in ("exact", "json", "set"):
        same_value(tree, expected, CallTests(function="f", cases=(), comparison=comparison, float_tolerance=0.5))  # type: ignore[arg-type]


def test_crafted_hash_collisions_cost_the_comparison_nothing() -> None:
    """50,000 integers of one hash take minutes to put into a set; here they are never put into one."""
    colliding = [n * (2**61 - 1) for n in range(1, 50_001)]
    assert not same_value({"~": "set", "v": colliding}, {1, 2, 3}, EXACT)


NUMBER_WORDS = st.one_of(
    st.sampled_from(
        ["nan", "sNaN", "-snan1", "inf", "-Infinity", "1e999999999", "-0", "0", "3", "3.5", "1_0", "\u00b3"]
    ),
    st.text(max_size=4),
    st.floats().map(repr),
)


@given(NUMBER_WORDS, NUMBER_WORDS)
def test_no_printed_word_makes_the_float_checker_raise(word: str, expected: str) -> None:
    """A signalling nan raised out of code_verdict."""
    assert same_output(word, expected, StdioTests(cases=(), checker="float")) in (True, False)


@pytest.mark.parametrize(
    ("checker", "given_output", "expected", "is_same"),
    [
        ("tokens", "1 2 3   \n\n", "1 2 3\n", True),
        ("tokens", "1\n", "1\n2\n", False),
        ("tokens", "2 1", "1 2", False),
        ("tokens", "Yes", "YES", False),
        ("yesno", "Yes", "YES", True),
        ("lines", "1\n2\n", "1 2\n", False),
        ("lines", "1 \n2\n\n", "1\n2\n", True),
        ("float", "1e-3", "0.001", True),
        ("float", "nan", "0.5", False),
        ("float", "nan", "nan", False),
        ("float", "50000000000000001", "50000000000000000", False),
        ("float", "100000", "100001", False),
        ("float", "3.0", "3", True),
        ("float", "0.0000001", "0", True),
        ("float", "0.0005", "0", False),
        ("float", "1000003.5", "1000000.5", False),
        ("float", "sNaN", "0.5", False),
        ("float", "-snan7", "5", False),
        ("float", "sNaN", "nan", False),
        ("float", "1e999999999", "0.5", False),
        ("float", "Infinity", "inf", False),
    ],
)
def test_outputs_are_compared_by_the_tasks_checker(
    checker: str, given_output: str, expected: str, is_same: bool
) -> None:
    """open-r1#504: zip() let a prefix pass. verl: numpy's default tolerance, and sets for lists."""
    assert same_output(given_output, expected, StdioTests(cases=(), checker=checker)) == is_same  # type: ignore[arg-type]
