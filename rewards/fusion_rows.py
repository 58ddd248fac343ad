"""The rows that SandboxFusion's data sets hold, as tests of a program: what to run, and what decides.

A row's shape decides, not the data set's name: inputs and outputs, assertions (MBPP, MHPP),
`check(candidate)` with an entry point (HumanEval), or a `check` that feeds standard input to a function.
"""

from __future__ import annotations

import ast
import re
from typing import Any, NamedTuple

from pydantic_core import from_json

from rewards.code_tests import AssertTests, StdioCase, StdioTests
from rewards.extraction import extract_code

_UNINDENTED = re.compile(r"\n(?=\S)")


class Judged(NamedTuple):
    """`code`: what runs as the candidate. `test_code`: the row's assertions as text, if it has any."""

    extracted_code: str
    code: str
    tests: AssertTests | StdioTests
    test_code: str | None = None


def judged(completion: str, row: dict[str, Any], *, language: str, is_freeform: bool) -> Judged:
    """A completion beside its row's tests. Raises ValueError for a row in no shape that is known."""
    code = extract_code(completion)
    tests = row.get("test", row.get("tests", row.get("test_list")))
    if isinstance(tests, str) and tests.lstrip().startswith("["):
        tests = from_json(tests)
    if isinstance(tests, list) and tests and all(isinstance(test, dict) for test in tests):
        return Judged(code, code, StdioTests(cases=tuple(map(_case, tests))))
    if isinstance(tests, list) and tests and all(isinstance(test, str) for test in tests):
        tests = "\n".join(tests)
    if not isinstance(tests, str) or "assert" not in tests:
        raise ValueError("config.provided_data: its tests are in no shape that is known")
    if language != "python":
        raise ValueError(f"config.language: assertions are judged in python, not in {language[:40]!r}")
    if isinstance(entry_point := row.get("entry_point"), str) and entry_point:
        return _by_entry_point(completion, row, entry_point, tests, is_freeform=is_freeform)
    if (fed := _fed_by_stdin(tests)) is not None:
        function, cases = fed
        return Judged(code, f"{code}\n\n{function}()\n", StdioTests(cases=cases, checker="lines"), tests)
    setup = _text(_labels(row).get("test_setup_code"))
    return Judged(code, _after(setup, code), AssertTests(code=tests, setup=setup), tests)


def _case(test: dict[str, Any]) -> StdioCase:
    return StdioCase(input=_side(test, "input", "stdin"), output=_side(test, "output", "stdout"))


def _side(test: dict[str, Any], side: str, stream: str) -> str:
    found = test.get(side)
    text = found.get(stream) if isinstance(found, dict) else found
    if not isinstance(text, str):
        raise ValueError(f"config.provided_data.test: a case without {side}.{stream}")
    return text


def _by_entry_point(completion: str, row: dict[str, Any], entry_point: str, tests: str, *, is_freeform: bool) -> Judged:
    """A completion that defines the function is a whole program, else the prompt's continuation,
    which ends where the function does."""
    prompt = _text(row.get("prompt"))
    code = extract_code(completion)
    if is_freeform or re.search(rf"^def\s+{re.escape(entry_point)}\b", code, re.MULTILINE):
        full_code = _after(prompt, code)
    else:
        code = _UNINDENTED.split(completion.rstrip())[0]
        full_code = prompt + ("" if prompt.endswith("\n") else "\n") + code
    setup = prompt if _is_python(prompt) else ""
    return Judged(code, full_code, AssertTests(code=tests, entry_point=entry_point, setup=setup), tests)


def _after(context: str, code: str) -> str:
    """With the imports and helpers that the task shows, unless the program must come first."""
    is_first = "from __future__" in code
    return code if is_first or not context or not _is_python(context) else f"{context}\n{code}"


def _fed_by_stdin(tests: str) -> tuple[str, tuple[StdioCase, ...]] | None:
    """The function and its cases, where `check(text)` calls it with `text` as standard input and every
    assertion is `check("...") == "..."`. Run in the checker's process, it would read another's input."""
    try:
        body = ast.parse(tests).body
    except SyntaxError:
        return None
    checks = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    asserted = [node.test for node in body if isinstance(node, ast.Assert)]
    cases = []
    for test in asserted:
        match test:
            case ast.Compare(
                left=ast.Call(func=ast.Name(id="check"), args=[ast.Constant(value=str(given))], keywords=[]),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value=str(expected))],
            ):
                cases.append(StdioCase(input=given, output=expected))
            case _:
                return None
    if "check" not in checks or "sys.stdin" not in ast.unparse(checks["check"]):
        return None
    called = [
        node.value.func.id
        for node in checks["check"].body
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and not node.value.args
    ]
    return (called[0], tuple(cases)) if len(called) == 1 and cases else None


def _labels(row: dict[str, Any]) -> dict[str, Any]:
    labels = row.get("labels")
    if isinstance(labels, str):
        labels = from_json(labels)
    return labels if isinstance(labels, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True
