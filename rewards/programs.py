"""The code verdict: does a program pass its tests, when the program would do anything to seem to?

What decides never enters the candidate's process. Its job gets the program and inputs; values come
back as tagged JSON, one line for the one call outstanding, and are compared here; assertions run
in a checker's own job. Failures of the sandbox are `unscored`, failures of the program score 0.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rewards.code_tests import AssertTests, CallCase, CallTests, CodeTests, StdioCase, StdioTests, as_code_tests
from rewards.comparison import same_output, same_value
from rewards.in_sandbox import encode
from rewards.jobs import Candidate, Checker, Ended, Judge, candidate_job, checker_job, how_it_ended, judge_job, shown
from rewards.verdict import Status, Verdict
from sandbox import Execution, Limits, Program, Sandbox, default_sandbox
from sandbox.languages import LANGUAGES

# A conversation never waits for a slot, so without turns a burst of verdicts would share the CPUs
# and run into their limits (verifiers#831).
_turns = threading.BoundedSemaphore(os.cpu_count() or 1)
_KNOWN_GOOD = Program(code="pass")
_EMPTY_PROGRAMS = {"c": "int main() { return 0; }", "cpp": "int main() { return 0; }"}  # else nothing at all
_NOT_FOUND = 127
_MAX_CODE_CHARACTERS = 1 << 20


def code_verdict(
    code: str,
    tests: Any,
    *,
    language: str = "python",
    limits: Limits | None = None,
    total_s: float | None = None,
    sandbox: Sandbox | None = None,
) -> Verdict:
    """Judge a program (what `extract_code` finds in a reply) by CallTests, StdioTests or AssertTests
    (or their plain forms, see `as_code_tests`); in another of `sandbox.languages.LANGUAGES` than
    Python by StdioTests. `limits` hold for each job: one job for all calls or assertions, one for
    each case of standard input; `total_s` bounds the wall seconds of all cases together.

    Correct means all cases pass; `parts["passed"]` is the share that did, where cases are counted.
    `detail` tells the first failing case and quotes expected values: it is for people, never for
    the policy. Blocking; safe from any thread and inside a running loop. Never raises for what
    program or tests hold; VeriwardError where this machine cannot confine programs at all, and
    ValueError for an impossible `total_s`.
    """
    if total_s is not None and not 0 < total_s < math.inf:
        raise ValueError(f"total_s = {total_s}: a positive number of seconds, or None")
    if language not in LANGUAGES:
        return Verdict.unscored(f"language {language!r:.40} is none of {', '.join(LANGUAGES)}")
    try:
        suite = as_code_tests(tests)
        cause = _unusable(suite, language)
    except (ValueError, TypeError, SyntaxError) as error:
        cause = str(error)
    if cause:
        return Verdict.unscored(f"the tests cannot be used: {cause}")
    if not isinstance(code, str):
        return Verdict.failed("unparsed", f"the program is of type {type(code).__name__}, not text")
    if len(code) > _MAX_CODE_CHARACTERS or not _is_text(code):
        return Verdict.failed("unparsed", f"no program: over {_MAX_CODE_CHARACTERS} characters, or not Unicode text")
    limits = limits or Limits()
    if total_s is not None and not isinstance(suite, StdioTests):
        limits = limits.model_copy(update={"wall_s": min(limits.wall_s, total_s)})
    return _judged(_Jobs(code, language, limits, total_s or math.inf, sandbox or default_sandbox()), suite)


async def code_verdict_async(
    code: str,
    tests: Any,
    *,
    language: str = "python",
    limits: Limits | None = None,
    total_s: float | None = None,
    sandbox: Sandbox | None = None,
) -> Verdict:
    """`code_verdict` without blocking the running loop."""
    return await asyncio.to_thread(
        code_verdict, code, tests, language=language, limits=limits, total_s=total_s, sandbox=sandbox
    )


def _unusable(suite: CodeTests, language: str) -> str:
    """Why nothing can be judged by these tests, "" when something can. Raises ValueError, TypeError
    or SyntaxError for some causes. All are found before the program, which must not decide this, runs."""
    if language != "python" and not isinstance(suite, StdioTests):
        return f"calls and assertions are judged in Python only, a {language} program by what it prints"
    if isinstance(suite, AssertTests):
        return "the test code asserts nothing" if suite.is_empty() else ""
    if isinstance(suite, CallTests):
        for case in suite.cases:
            encode([list(case.args), case.kwargs, case.expected])
    elif not all(_is_text(case.input) for case in suite.cases):
        return "an input is not Unicode text"
    return "" if suite.cases else "there are none"


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Jobs:
    """The jobs that one verdict opens, all on one sandbox and under the same limits."""

    def __init__(self, code: str, language: str, limits: Limits, total_s: float, sandbox: Sandbox) -> None:
        self.code, self.language, self.limits, self.sandbox = code, language, limits, sandbox
        self.total_s = total_s  # wall clock for all cases of standard input

    def candidate(self) -> AbstractContextManager[Candidate]:
        return candidate_job(self.sandbox, self.limits, self.code)

    def checker(self, tests: AssertTests) -> AbstractContextManager[Checker]:
        return checker_job(self.sandbox, self.limits, tests)

    def judge(self, checker_code: str) -> AbstractContextManager[Judge | None]:
        return judge_job(self.sandbox, self.limits, checker_code) if checker_code else nullcontext()

    def run(self, stdin: str, left_s: float) -> Execution:
        limits = self.limits.model_copy(update={"wall_s": min(self.limits.wall_s, left_s)})
        return self.sandbox.run_sync(
            Program(language=self.language, code=self.code, stdin=stdin.encode(), limits=limits)
        )

    def lacks_its_tools(self, execution: Execution) -> bool:
        """Whether a command was not found that the sandbox should have: no fault of the program's."""
        ended = execution.compile if execution.status == "not_compiled" else execution
        if ended is None or ended.exit_code != _NOT_FOUND or self.language == "python":
            return False
        empty = Program(language=self.language, code=_EMPTY_PROGRAMS.get(self.language, ""))
        probe = self.sandbox.run_sync(empty)
        return probe.exit_code == _NOT_FOUND or (probe.compile is not None and probe.compile.exit_code == _NOT_FOUND)


def _judged(jobs: _Jobs, suite: CodeTests) -> Verdict:
    """A slot lost under a program is retried on a new one; lost again where a known-good program
    runs, the program did it, and an `unscored` would teach it to."""
    for _ in range(2):
        try:
            return _judged_once(jobs, suite)
        except Ended as ended:
            verdict = ended.verdict
            if not ended.lost_slot:
                return verdict
    if jobs.sandbox.run_sync(_KNOWN_GOOD).exit_code == 0:
        return Verdict.failed("crashed", "its sandbox slot was lost under it, twice")
    return verdict


def _judged_once(jobs: _Jobs, suite: CodeTests) -> Verdict:
    if isinstance(suite, StdioTests):
        return _judged_by_output(jobs, suite)
    with _turns:
        if isinstance(suite, CallTests):
            return _judged_by_calls(jobs, suite)
        return _judged_by_assertions(jobs, suite)


class _Tally:
    """Cases in their order; the first that fails gives the verdict its status and detail."""

    def __init__(self, cases: int) -> None:
        self.cases, self.seen, self.passed = cases, 0, 0
        self.status: Status = "correct"
        self.detail = f"{cases} cases pass"

    def add(self, status: Status, detail: str) -> None:
        self.seen += 1
        self.passed += status == "correct"
        if status != "correct" and self.status == "correct":
            self.status, self.detail = status, f"case {self.seen} of {self.cases}: {detail}"

    def verdict(self) -> Verdict:
        return Verdict(self.status, float(self.status == "correct"), {"passed": self.passed / self.cases}, self.detail)


def _judged_by_calls(jobs: _Jobs, tests: CallTests) -> Verdict:
    answers = _answers(jobs, tests)
    tally = _Tally(len(tests.cases))
    with jobs.judge(tests.checker_code) as judge:
        for case, answer in zip(tests.cases, answers, strict=False):
            tally.add(*_judged_answer(answer, case, tests, judge))
    return tally.verdict()


def _answers(jobs: _Jobs, tests: CallTests) -> list[dict[str, Any] | Verdict]:
    """What each call gave, in order; a job that ended early leaves its verdict as the last."""
    answers: list[dict[str, Any] | Verdict] = []
    try:
        with jobs.candidate() as candidate:
            for case in tests.cases:
                answers.append(candidate.call(tests.function, encode(list(case.args)), encode(case.kwargs)))
    except Ended as ended:
        if ended.lost_slot:
            raise
        answers.append(ended.verdict)
    return answers


def _judged_answer(
    answer: dict[str, Any] | Verdict, case: CallCase, tests: CallTests, judge: Judge | None
) -> tuple[Status, str]:
    if isinstance(answer, Verdict):
        return answer.status, answer.detail
    if "value" not in answer:
        return ("crashed", f"raised {shown(answer['raised'])}") if "raised" in answer else ("wrong", shown(answer))
    value = answer["value"]
    if judge:
        is_right = judge.accepts(encode(case.args), value, encode(case.expected))
    else:
        is_right = same_value(value, case.expected, tests)
    detail = f"{tests.function} of {shown(case.args)} gave {shown(value)}, not {shown(case.expected)}"
    return ("correct" if is_right else "wrong"), detail


def _judged_by_output(jobs: _Jobs, tests: StdioTests) -> Verdict:
    executions: list[Execution] = []
    left_s = jobs.total_s
    for case in tests.cases:
        if left_s <= 0:
            executions.append(Execution(status="timeout", limit="wall", wall_s=jobs.total_s))
            break
        executions.append(jobs.run(case.input, left_s))
        left_s -= executions[-1].wall_s
        if executions[-1].status == "unavailable":
            return how_it_ended(executions[-1])
        if jobs.lacks_its_tools(executions[-1]):
            return Verdict.unscored(f"the sandbox has no tools for {jobs.language}")
        if executions[-1].status in ("timeout", "not_compiled"):
            break  # each further case could cost its whole limit again, or ends alike
    tally = _Tally(len(tests.cases))
    # Opened after the runs, so that their time does not count against it.
    with jobs.judge(tests.checker_code) as judge:
        for case, execution in zip(tests.cases, executions, strict=False):
            tally.add(*_judged_execution(execution, case, tests, judge))
    return tally.verdict()


def _judged_execution(
    execution: Execution, case: StdioCase, tests: StdioTests, judge: Judge | None
) -> tuple[Status, str]:
    if execution.status != "finished" or execution.exit_code != 0:
        ended = how_it_ended(execution)
        return ended.status, ended.detail
    output = execution.stdout.decode(errors="replace")
    is_right = judge.accepts(case.input, output, case.output) if judge else same_output(output, case.output, tests)
    detail = f"on input {shown(case.input)} printed {shown(output)}, not {shown(case.output)}"
    return ("correct" if is_right else "wrong"), detail


def _judged_by_assertions(jobs: _Jobs, tests: AssertTests) -> Verdict:
    """Relay the checker's calls to the candidate until the checker says how it ended."""
    calls = 0
    with jobs.checker(tests) as checker, jobs.candidate() as candidate:
        while (message := checker.next_message()).get("function"):
            calls += 1
            checker.answer(candidate.call(message["function"], message["args"], message["kwargs"]))
    if "failed" in message:
        return Verdict.wrong(f"after {calls} calls: {shown(message['failed'])}")
    if not calls:
        return Verdict.unscored("the test code passed without calling the program")
    return Verdict.correct(f"the assertions hold, over {calls} calls")
