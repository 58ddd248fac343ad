"""The shapes that tests of a program come in: calls, standard input and output, assertions.

They hold what decides a verdict, so they stay in the parent (calls, outputs) or go to a checker's
own job (assertions), never to the candidate. Plain dicts and lists in these shapes are accepted.
"""

from __future__ import annotations

import ast
import builtins
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
        """The functions that calls are relayed for."""
        called = _called_and_undefined(self.code, self.setup) if not self.entry_point else set()
        return sorted(called | {self.entry_point} - {""})


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


def _called_and_undefined(code: str, setup: str) -> set[str]:
    called: set[str] = set()
    defined: set[str] = set(dir(builtins))
    for node in [*ast.walk(ast.parse(code)), *ast.walk(ast.parse(setup))]:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.add(node.func.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            defined.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
    return called - defined
