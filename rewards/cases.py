"""Labelled cases: rows that say what a verdict should be, and whether it is.

One JSON object a line, of one of four families, told by its fields:

    math         prediction, gold, mode "answer" (the prediction is the answer) or "response"
    code         program, tests, mode "stdio", "call", "assert" or "response", checker
    tool         kind "tool": prediction, gold, rule, and `func` for the functions offered
    instruction  kind "if": prediction, gold (its arguments), rule (an instruction's id)

Every row has an `id`, a `kind` and what is `expected`: true (credit), false (none), or a verdict's
status. Optional: `arguable` (reported, never held against anybody), `why`, `max_seconds`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewards.case_judges import JUDGES, Family
from rewards.verdict import STATUSES, Verdict
from sandbox.errors import ConfigError

# What judges of programs call it, and the status that we give it.
_STATUS_OF = {"accepted": "correct", "wrong_answer": "wrong", "runtime_error": "crashed", "time_limit": "timeout"}


@dataclass(frozen=True)
class Case:
    id: str
    kind: str
    family: Family
    expected: bool | str
    is_arguable: bool
    row: dict[str, Any]


@dataclass(frozen=True)
class Judged:
    """A case and what became of it; `seconds` is wall clock."""

    case: Case
    verdict: Verdict
    seconds: float

    @property
    def agrees(self) -> bool:
        limit = self.case.row.get("max_seconds")
        return (limit is None or self.seconds <= limit) and _is_as_expected(self.case, self.verdict)


def read_cases(path: Path) -> list[Case]:
    """All cases of a file. Raises ConfigError, naming the row, for one that is no case, and OSError."""
    cases = [_case(number, line, path) for number, line in _lines(path)]
    if not cases:
        raise ConfigError(f"{path}: no case in it; give a file with one JSON object a line")
    return cases


def judge(case: Case) -> Judged:
    """Raises ConfigError, naming the row, where its fields can't be judged by what it asks for."""
    began = time.monotonic()
    try:
        verdict = JUDGES[case.family](case.row)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"no field {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise ConfigError(f"case {case.id!r}: {what:.300}") from None
    return Judged(case, verdict, time.monotonic() - began)


def _is_as_expected(case: Case, verdict: Verdict) -> bool:
    if isinstance(case.expected, str):
        return verdict.status == case.expected
    if verdict.status == "unscored":
        # To follow a rule that does not exist is what no reply can be credited for.
        return case.expected is False and case.family == "instruction" and "unknown" in verdict.detail
    return (verdict.status == "correct") == case.expected


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text at byte {error.start}") from None
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line


def _case(number: int, line: str, path: Path) -> Case:
    place = f"{path}, line {number}"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: not JSON: {error}") from None
    if not isinstance(row, dict) or not isinstance(row.get("id"), str):
        raise ConfigError(f"{place}: a case is an object with a text as its id")
    place = f"{place}, case {row['id'][:60]!r}"
    family = _family(row)
    if family is None:
        raise ConfigError(
            f"{place}: kind {str(row.get('kind'))[:40]!r} is of no known family; "
            "give prediction and gold, program and tests, or kind tool or if with a rule"
        )
    expected = row.get("expected")
    expected = _STATUS_OF.get(expected, expected) if isinstance(expected, str) else expected
    if not isinstance(expected, bool) and expected not in STATUSES:
        raise ConfigError(f"{place}: expected is {expected!r:.60}; give true, false or one of {', '.join(STATUSES)}")
    return Case(row["id"], str(row.get("kind", "")), family, expected, bool(row.get("arguable")), row)


def _family(row: dict[str, Any]) -> Family | None:
    if row.get("kind") in ("tool", "if", "instruction"):
        return "tool" if row["kind"] == "tool" else "instruction"
    if "program" in row and "tests" in row:
        return "code"
    return "math" if "prediction" in row and "gold" in row and "rule" not in row else None
