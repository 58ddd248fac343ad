"""The three kinds of sandbox job behind a code verdict, each a conversation of one line at a time.

candidate  holds the program; answers calls. Hostile: its lines are only ever read as the answer to
           the call outstanding, by an id drawn for that call.
checker    holds the assertions; asks for calls, and ends with a nonce that no candidate sees.
judge      holds a task's own checker function; answers yes or no.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rewards import in_sandbox
from rewards.code_tests import AssertTests
from rewards.verdict import Verdict
from sandbox import Execution, Job, Limits, Program, Sandbox, SlotLost

_SOURCE = Path(in_sandbox.__file__).read_text(encoding="utf-8")
_GRACE_S = 5.0  # a job's own limit comes first; this only bounds the wait for its end


class Ended(Exception):
    """A job ended instead of answering; `verdict` says what that means for the candidate.

    lost_slot  the sandbox lost the job's slot: the verdict is `unscored`, but the job may have done it.
    """

    def __init__(self, verdict: Verdict, lost_slot: bool = False) -> None:
        super().__init__(verdict.detail)
        self.verdict = verdict
        self.lost_slot = lost_slot


class _Conversation:
    def __init__(self, job: Job, limits: Limits) -> None:
        self._job = job
        self._patience_s = limits.wall_s + _GRACE_S

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        self._say(message)
        return self._hear()

    def _say(self, message: dict[str, Any]) -> None:
        try:
            line = json.dumps(message)
        except RecursionError:  # a candidate's value, on its way to a checker or judge
            raise Ended(Verdict.failed("tampered", "a value nested deeper than any that is encoded")) from None
        self._job.send(line.encode() + b"\n")

    def _hear(self) -> dict[str, Any]:
        """The next line, an object. Raises Ended when the job has none or sends anything else."""
        try:
            line = self._job.receive_line(self._patience_s)
        except TimeoutError:
            self._job.stop()
            line = None
        if line is None:
            execution = self._job.finish()
            raise Ended(how_it_ended(execution), lost_slot=execution.status == "unavailable")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise Ended(Verdict.failed("tampered", f"not an answer: {shown(line)}"))
        return message


class Candidate(_Conversation):
    def load(self, code: str) -> None:
        answer = self._ask({"code": code})
        if "raised" in answer:
            raise Ended(Verdict.failed("crashed", f"loading the program raised {shown(answer['raised'])}"))
        if answer != {"loaded": True}:
            raise Ended(Verdict.failed("tampered", f"not an answer: {shown(answer)}"))

    def call(self, function: str, args: Any, kwargs: Any) -> dict[str, Any]:
        """The answer to one call of tagged arguments: `value`, `raised` or `not_plain`."""
        call_id = secrets.token_hex(16)
        answer = self._ask({"id": call_id, "function": function, "args": args, "kwargs": kwargs})
        if answer.pop("id", None) != call_id:
            raise Ended(Verdict.failed("tampered", f"an answer to no call: {shown(answer)}"))
        return answer


class Checker(_Conversation):
    def __init__(self, job: Job, limits: Limits) -> None:
        super().__init__(job, limits)
        self._nonce = secrets.token_hex(16)

    def load(self, tests: AssertTests) -> None:
        message = {"nonce": self._nonce, "setup": tests.full_setup(), "tests": tests.code}
        try:
            answer = self._ask({**message, "names": tests.candidate_names(), "candidate": tests.entry_point})
        except Ended as ended:
            raise Ended(Verdict.unscored(f"the tests' setup: {ended.verdict.detail}"), ended.lost_slot) from None
        if answer != {"ready": True}:
            raise Ended(Verdict.unscored(f"the tests' setup raised {shown(answer.get('setup_raised'))}"))

    def next_message(self) -> dict[str, Any]:
        """A call to relay (`function`, `args`, `kwargs`) or the end (`failed`, or the right `passed`); nothing else."""
        message = self._hear()
        if not (message.get("function") or "failed" in message or message.get("passed") == self._nonce):
            raise Ended(Verdict.failed("tampered", "the checker ended without its nonce"))
        return message

    def answer(self, answer: dict[str, Any]) -> None:
        self._say(answer)


class Judge(_Conversation):
    def load(self, checker_code: str) -> None:
        try:
            answer = self._ask({"code": checker_code})
        except Ended as ended:
            raise Ended(Verdict.unscored(f"the checker program: {ended.verdict.detail}"), ended.lost_slot) from None
        if answer != {"ready": True}:
            raise Ended(Verdict.unscored(f"the checker program raised {shown(answer)}"))

    def accepts(self, *values: Any) -> bool:
        """One yes or no on (input, output, expected), tagged. A checker that raises has not said yes."""
        return self._ask({"args": list(values)}).get("accepts") is True


@contextmanager
def candidate_job(sandbox: Sandbox, limits: Limits, code: str) -> Iterator[Candidate]:
    """The program, loaded. Raises Ended when it does not load."""
    with _opened(sandbox, "serve_candidate()", limits) as job:
        candidate = Candidate(job, limits)
        candidate.load(code)
        yield candidate


@contextmanager
def checker_job(sandbox: Sandbox, limits: Limits, tests: AssertTests) -> Iterator[Checker]:
    """The assertions, ready to run. Raises Ended (unscored) when their setup does not run."""
    # Its clock also runs while the candidate's does.
    limits = limits.model_copy(update={"wall_s": 2 * limits.wall_s})
    with _opened(sandbox, "serve_checker()", limits) as job:
        checker = Checker(job, limits)
        checker.load(tests)
        yield checker


@contextmanager
def judge_job(sandbox: Sandbox, limits: Limits, checker_code: str) -> Iterator[Judge]:
    """A task's own checker, loaded. Raises Ended (unscored) when it does not load."""
    with _opened(sandbox, "serve_judge()", limits) as job:
        judge = Judge(job, limits)
        judge.load(checker_code)
        yield judge


def how_it_ended(execution: Execution) -> Verdict:
    """The verdict on a program whose job ended so, without the answer that was due."""
    if execution.status == "unavailable":
        return Verdict.unscored(f"sandbox: {execution.error}")
    if execution.status == "timeout":
        return Verdict.failed("timeout", f"over its {execution.limit or 'wall'} limit after {execution.wall_s:.2f} s")
    if execution.status == "killed":
        why = f"over its {execution.limit} limit" if execution.limit else execution.error or "stopped"
        return Verdict.failed("crashed", why)
    if execution.status == "not_compiled":
        said = execution.compile.stderr.decode(errors="replace").strip() if execution.compile else ""
        return Verdict.failed("crashed", f"it does not compile: {said[:300] or execution.error}")
    how = f"signal {execution.signal}" if execution.signal else f"exit code {execution.exit_code}"
    last_words = execution.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return Verdict.failed("crashed", ": ".join([f"ended with {how}", *(line[:300] for line in last_words)]))


def shown(value: Any) -> str:
    """A value for a verdict's detail, at most 200 characters of it. Never raises for plain values."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deep; an int beyond Python's limit of digits
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= 200 else text[:197] + "..."


def _opened(sandbox: Sandbox, entry: str, limits: Limits) -> Job:
    program = Program(code=f"{_SOURCE}\n\n{entry}\n", limits=limits, mode="fast")
    try:
        return sandbox.open(program)
    except SlotLost as lost:
        raise Ended(Verdict.unscored(f"sandbox: no slot: {lost}"), lost_slot=True) from lost
