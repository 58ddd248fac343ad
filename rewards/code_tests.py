"""The shapes that tests of a program come in: calls, standard input and output, assertions.

They hold what decides a verdict, so they stay in the parent (calls, outputs) or go to a checker's
own job (assertions), never to the candidate. Plain dicts and lists in these shapes are accepted.
"""

from __future__ import annotations

import ast
import builtins
import sys
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator


class _Tests(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class CallCase(_Tests):
    args: Any = ()
    kwargs: dict[str, Any] = {}
    expected: Any = None


class CallTests(_Tests):
    """Call `function` (or that method of a class `Solution`) and compare what it returns.

    comparison  exact: same plain types all the way down, bool is not int, tuple is not list.
                json: as expected values read from JSON want it; a tuple reads as a list, 2 == 2.0.
                set: json, top-level order and repetition aside.
                checker: `checker_code` defines `check(args, value, expected) -> bool`.
    float_tolerance  absolute or relative, for expected floats; expected integers stay exact.
    """

    function: str
    cases: tuple[CallCase, ...]
    comparison: Literal["exact", "json", "set", "checker"] = "exact"
    float_tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.0
    checker_code: str = ""

    @model_validator(mode="after")
    def _has_what_it_names(self) -> CallTests:
        return _with_checker(self, self.comparison)


class StdioCase(_Tests):
    input: str
    output: str


class StdioTests(_Tests):
    """Run the whole program once a case, on `input`; compare its standard output.

    checker  tokens: white-space separated, case matters. lines: per line, trailing blanks aside.
             float: tokens, where an expected non-integer (or 0) may differ by `float_tolerance`
             (absolute or relative) and nan is never right. yesno: tokens, case aside.
             checker: `checker_code` defines `check(input, output, expected) -> bool`.
    """

    cases: tuple[StdioCase, ...]
    checker: Literal["tokens", "lines", "float", "yesno", "checker"] = "tokens"
    float_tolerance: Annotated[float, Field(ge=0, lt=1)] = 1e-6
    checker_code: str = ""

    @model_validator(mode="after")
    def _has_what_it_names(self) -> StdioTests:
        return _with_checker(self, self.checker)


class AssertTests(_Tests):
    """Test code that asserts on calls; it runs in a checker's job, `setup` before it.

    With `entry_point`, `check(candidate)` is called after the code ran (HumanEval). Without, the
    code itself asserts, on the functions it calls but does not define (MBPP).
    """

    code: str
    entry_point: str = ""
    setup: str = ""

    def is_empty(self) -> bool:
        """No assertion to fail."""
        nodes = list(ast.walk(ast.parse(self.code)))
        return not any(isinstance(node, (ast.Assert, ast.Raise)) for node in nodes)

    def candidate_names(self) -> list[str]:
        """The functions that calls are relayed for.

        Where the tests call nothing but built-ins, the program's function has a built-in's name, and it
        is the one that every assertion calls (MBPP/126 has a `sum`).
        """
        if self.entry_point:
            return [self.entry_point]
        return sorted(_called_and_undefined(self.code, self.setup) or _builtins_of_every_assertion(self.code))

    def full_setup(self) -> str:
        """`setup`, and imports of the standard modules that the assertions use without (MBPP/596: `sys`)."""
        return "\n".join([self.setup, *(f"import {name}" for name in sorted(_modules_not_imported(self)))])


CodeTests = CallTests | StdioTests | AssertTests
_Counted = TypeVar("_Counted", CallTests, StdioTests)


def as_code_tests(tests: Any) -> CodeTests:
    """Tests from their plain forms: a dict with the fields of a model, a list of input/output
    cases, assertions as a text or a list of texts. Raises ValueError, in one line, for anything else."""
    if isinstance(tests, (CallTests, StdioTests, AssertTests)):
        return tests
    if isinstance(tests, str):
        return AssertTests(code=tests)
    if isinstance(tests, (list, tuple)):
        if all(isinstance(line, str) for line in tests):
            return AssertTests(code="\n".join(tests))
        return _made(StdioTests, {"cases": tuple(tests)})
    if isinstance(tests, dict):
        for key, model in _MODELS_BY_KEY.items():
            if key in tests:
                return _made(model, tests)
        keys = ", ".join(repr(key) for key in tests) or "none"
        raise ValueError(
            f"tests with the keys {keys:.80}; give function and cases, cases alone, or code with assertions"
        )
    raise ValueError(f"tests of type {type(tests).__name__}; give CallTests, StdioTests, AssertTests or their fields")


# The first key that is there decides: calls have cases as well.
_MODELS_BY_KEY: dict[str, type[CodeTests]] = {"function": CallTests, "cases": StdioTests, "code": AssertTests}


def _made(model: type[CodeTests], fields: dict[str, Any]) -> CodeTests:
    try:
        return model(**fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or model.__name__
        is_case = len(first["loc"]) > 1
        owner = (CallCase if model is CallTests else StdioCase) if is_case else model
        said = first["msg"].removeprefix("Value error, ")
        known = ", ".join(owner.model_fields)
        raise ValueError(f"{place}: {said[:1].lower()}{said[1:]}; {owner.__name__} has {known}") from None


def _with_checker(tests: _Counted, chosen: str) -> _Counted:
    if (chosen == "checker") != bool(tests.checker_code):
        raise ValueError('checker_code goes with the choice of comparison or checker "checker", and only with it')
    return tests


def _builtins_of_every_assertion(code: str) -> set[str]:
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Assert):
            calls = [call.func for call in ast.walk(node) if isinstance(call, ast.Call)]
            found.append({func.id for func in calls if isinstance(func, ast.Name)} & set(dir(builtins)))
    return set.intersection(*found) if found else set()


def _modules_not_imported(tests: AssertTests) -> set[str]:
    nodes = [*ast.walk(ast.parse(tests.code)), *ast.walk(ast.parse(tests.setup))]
    bases = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    return (bases & sys.stdlib_module_names) - _defined(nodes)


def _defined(nodes: list[ast.AST]) -> set[str]:
    defined: set[str] = set()
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            defined.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
    return defined


def _called_and_undefined(code: str, setup: str) -> set[str]:
    nodes = [*ast.walk(ast.parse(code)), *ast.walk(ast.parse(setup))]
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return called - _defined(nodes) - set(dir(builtins))
