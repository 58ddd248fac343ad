"""SandboxFusion's `/submit` for rows that come with the request: a completion in, accepted or not out.

Rows with inputs and outputs are judged in every language by what the program prints, rows with
assertions in Python by `code_verdict`. Expected outputs never enter the candidate's process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rewards.code_tests import AssertTests, StdioCase, StdioTests
from rewards.comparison import same_output
from rewards.extraction import extract_code
from rewards.programs import code_verdict_async
from sandbox import Execution, Limits, Program
from sandbox.fusion import LANGUAGES, RunCodeRequest, one_line, to_program, to_response

Run = Callable[[Program], Awaitable[Execution]]


class Config(BaseModel):
    model_config = ConfigDict(extra="ignore")

    language: str | None = None
    compile_timeout: Annotated[float, Field(gt=0, le=3600)] = 10
    run_timeout: Annotated[float, Field(gt=0, le=3600)] = 10
    provided_data: dict[str, Any] | None = None
    extra: dict[str, Any] = {}


class SubmitRequest(BaseModel):
    model_config = ConfigDict(extra="ignore")

    dataset: str
    id: int | str
    completion: str
    config: Config = Config()


class TestResult(BaseModel):
    passed: bool
    exec_info: dict[str, Any]
    test_info: dict[str, Any] | None = None


class SubmitResponse(BaseModel):
    id: int | str
    accepted: bool
    extracted_code: str
    full_code: str | None = None
    test_code: str | None = None
    tests: list[TestResult]
    extracted_type: str | None = None
    extra: dict[str, Any] | None = None


def submit_on(backend: Any, *, at_a_time: int) -> Callable[[bytes, Run], Awaitable[tuple[int, Any]]]:
    """The route's handler. Assertions are dialogues, so they run on `backend` itself, `at_a_time`."""
    turn = asyncio.Semaphore(at_a_time)

    async def submit(body: bytes, run: Run) -> tuple[int, Any]:
        """Judge one completion by its row's tests, as SandboxFusion would."""
        try:
            request = SubmitRequest.model_validate_json(body)
            code = extract_code(request.completion)
            cases, assertions = _tests_of(request)
            if cases is not None:
                tests = await _by_output(request, code, cases, run)
            else:
                async with turn:
                    tests = await _by_assertions(request, code, assertions, backend)
        except (ValidationError, ValueError) as error:
            return 400, {"error": one_line(error)}
        except _Unavailable as error:
            return 503, {"error": one_line(error)}
        accepted = bool(tests) and all(test.passed for test in tests)
        answer = SubmitResponse(
            id=request.id, accepted=accepted, extracted_code=code, full_code=code, test_code=assertions, tests=tests
        )
        return 200, answer.model_dump()

    return submit


class _Unavailable(Exception):
    """The sandbox failed, not the program."""


def _tests_of(request: SubmitRequest) -> tuple[list[StdioCase] | None, str | None]:
    """A row's cases or its assertions. Raises ValueError where it has neither in a shape that is known."""
    row = request.config.provided_data
    if row is None:
        raise ValueError("config.provided_data: give the row itself; no data set is stored here")
    tests = row.get("test", row.get("test_list"))
    if isinstance(tests, str) and tests.lstrip().startswith("["):
        tests = json.loads(tests)
    if isinstance(tests, list) and tests and all(isinstance(test, dict) for test in tests):
        return [
            StdioCase(input=_text(test, "input", "stdin"), output=_text(test, "output", "stdout")) for test in tests
        ], None
    if isinstance(tests, list) and tests and all(isinstance(test, str) for test in tests):
        setup = (row.get("labels") or {}).get("test_setup_code", "") if isinstance(row.get("labels"), dict) else ""
        return None, "\n".join([*filter(None, [setup]), *tests])
    if isinstance(tests, str) and "assert" in tests:
        return None, tests
    raise ValueError(
        f"config.provided_data: the tests of data set {request.dataset[:60]!r} have a shape that is not known"
    )


def _text(test: dict[str, Any], side: str, stream: str) -> str:
    found = test.get(side)
    text = found.get(stream) if isinstance(found, dict) else found
    if not isinstance(text, str):
        raise ValueError(f"config.provided_data.test: a case without {side}.{stream}")
    return text


async def _by_output(request: SubmitRequest, code: str, cases: list[StdioCase], run: Run) -> list[TestResult]:
    """Every case, up to the first that fails."""
    config = request.config
    language = config.language or "python"
    rules = StdioTests(cases=tuple(cases))
    results = []
    for case in cases:
        asked = RunCodeRequest(
            code=code,
            language=language,
            stdin=case.input,
            compile_timeout=config.compile_timeout,
            run_timeout=config.run_timeout,
        )
        execution = await run(to_program(asked))
        if execution.status == "unavailable":
            raise _Unavailable(execution.error)
        printed = execution.stdout.decode("utf-8", "replace")
        passed = execution.exit_code == 0 and same_output(printed, case.output, rules)
        info = to_response(execution).model_dump()
        results.append(TestResult(passed=passed, exec_info=info, test_info=case.model_dump()))
        if not passed:
            break
    return results


async def _by_assertions(request: SubmitRequest, code: str, assertions: str | None, backend: Any) -> list[TestResult]:
    language = request.config.language or "python"
    if LANGUAGES.get(language) != "python":
        raise ValueError(f"config.language: assertions are judged in python, not in {language[:40]!r}")
    seconds = request.config.run_timeout
    limits = Limits(wall_s=seconds, cpu_s=seconds)
    verdict = await code_verdict_async(code, AssertTests(code=assertions or ""), limits=limits, sandbox=backend)
    if verdict.status == "unscored":
        raise _Unavailable(verdict.detail)
    passed = verdict.status == "correct"
    info = {
        "status": "Success" if passed else "Failed",
        "message": "" if passed else verdict.status,
        "compile_result": None,
        "run_result": {
            "status": "TimeLimitExceeded" if verdict.status == "timeout" else "Finished",
            "execution_time": None,
            "return_code": None if verdict.status == "timeout" else int(not passed),
            "stdout": "",
            "stderr": verdict.detail,
        },
        "executor_pod_name": None,
        "files": {},
    }
    return [TestResult(passed=passed, exec_info=info)]
