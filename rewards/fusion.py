"""SandboxFusion's `/submit` for rows that come with the request: a completion in, accepted or not out.

Rows with inputs and outputs are judged in every language by what the program prints, rows with
assertions in Python by `code_verdict`. Expected outputs never enter the candidate's process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rewards.code_tests import AssertTests, StdioTests
from rewards.comparison import same_output
from rewards.fusion_rows import Judged, judged
from rewards.programs import code_verdict_async
from rewards.verdict import Verdict
from sandbox import Limits
from sandbox.fusion import LANGUAGES, RunCodeRequest, one_line, to_program, to_response

if TYPE_CHECKING:
    from sandbox.server import Turns


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


def submit_on(backend: Any) -> Callable[[bytes, Turns], Awaitable[tuple[int, Any]]]:
    """The route's handler. Assertions are dialogues, so they run on `backend` itself, in a turn of the queue."""

    async def submit(body: bytes, turns: Turns) -> tuple[int, Any]:
        """Judge one completion by its row's tests, as SandboxFusion would."""
        try:
            request = await asyncio.to_thread(SubmitRequest.model_validate_json, body)
            asked = await asyncio.to_thread(_asked, request)
            if isinstance(asked.tests, StdioTests):
                tests = await _by_output(request, asked.code, asked.tests, turns)
            else:
                tests = [await _by_assertions(request, asked.code, asked.tests, turns, backend)]
        except (ValidationError, ValueError) as error:
            return 400, {"error": one_line(error)}
        except (RecursionError, MemoryError):  # the parser of assertions gives up so
            return 400, {"error": "config.provided_data: its tests are nested deeper than any that are read"}
        except _Unavailable as error:
            return 503, {"error": one_line(error)}
        answer = SubmitResponse(
            id=request.id,
            accepted=all(test.passed for test in tests),
            extracted_code=asked.extracted_code,
            full_code=asked.code,
            test_code=asked.test_code,
            tests=tests,
        )
        return 200, answer.model_dump()

    return submit


class _Unavailable(Exception):
    """The sandbox failed, not the program."""


def _asked(request: SubmitRequest) -> Judged:
    """Raises ValueError for a language or row that can't be judged."""
    language = request.config.language or "python"
    if language not in LANGUAGES:
        raise ValueError(f"config.language: {language[:40]!r} is none of {', '.join(LANGUAGES)}")
    if (row := request.config.provided_data) is None:
        raise ValueError("config.provided_data: give the row itself; no data set is stored here")
    is_freeform = bool(request.config.extra.get("is_freeform"))
    return judged(request.completion, row, language=language, is_freeform=is_freeform)


async def _by_output(request: SubmitRequest, code: str, tests: StdioTests, turns: Turns) -> list[TestResult]:
    """Every case, up to the first that fails."""
    config = request.config
    results = []
    for case in tests.cases:
        asked = RunCodeRequest(
            code=code,
            language=config.language or "python",
            stdin=case.input,
            compile_timeout=config.compile_timeout,
            run_timeout=config.run_timeout,
        )
        execution = await turns(to_program(asked))
        if execution.status == "unavailable":
            raise _Unavailable(execution.error)
        printed = execution.stdout.decode("utf-8", "replace")
        passed = execution.exit_code == 0 and same_output(printed, case.output, tests)
        info = to_response(execution).model_dump()
        results.append(TestResult(passed=passed, exec_info=info, test_info=case.model_dump()))
        if not passed:
            break
    return results


async def _by_assertions(
    request: SubmitRequest, code: str, tests: AssertTests, turns: Turns, backend: Any
) -> TestResult:
    seconds = request.config.run_timeout
    limits = Limits(wall_s=seconds, cpu_s=seconds)
    verdict = await turns.hold(
        lambda: _to_its_end(code_verdict_async(code, tests, limits=limits, sandbox=backend)),
    )
    if verdict.status == "unscored":
        if "sandbox: " in verdict.detail:
            raise _Unavailable(verdict.detail)
        raise ValueError(f"config.provided_data: {verdict.detail}")
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
    return TestResult(passed=passed, exec_info=info)


async def _to_its_end(judging: Coroutine[Any, Any, Verdict]) -> Verdict:
    """It runs in a thread, which can't be cancelled: a slot stays taken for as long as it is used."""
    task = asyncio.ensure_future(judging)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
