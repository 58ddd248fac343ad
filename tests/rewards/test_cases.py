"""Labelled cases: the handed files agree, and a row that is none is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rewards.cases import judge, read_cases
from sandbox.errors import ConfigError


@pytest.mark.parametrize(("name", "least"), [("math", 74), ("code", 49), ("tool", 35)])
def test_every_undisputed_case_of_the_handed_files_agrees(
    shared_data: Callable[[str], Path], name: str, least: int
) -> None:
    cases = [case for case in read_cases(shared_data(f"cases/{name}.jsonl")) if not case.is_arguable]
    assert len(cases) >= least
    assert [judged for judged in map(judge, cases) if not judged.agrees] == []


GOOD = {"id": "a", "kind": "x", "mode": "answer", "prediction": "1/2", "gold": "0.5", "expected": True}


def written(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


@pytest.mark.parametrize(
    ("expected", "agrees"),
    [(True, True), (False, False), ("correct", True), ("accepted", True), ("wrong", False), ("unscored", False)],
)
def test_what_is_expected_may_be_credit_or_a_status(tmp_path: Path, expected: bool | str, agrees: bool) -> None:
    (case,) = read_cases(written(tmp_path, {**GOOD, "expected": expected}))
    assert judge(case).agrees is agrees


def test_unscored_agrees_with_no_other_verdict(tmp_path: Path) -> None:
    unusable = {**GOOD, "gold": "", "expected": False}
    no, yes = read_cases(written(tmp_path, unusable, {**unusable, "expected": "unscored"}))
    assert (judge(no).verdict.status, judge(no).agrees, judge(yes).agrees) == ("unscored", False, True)


def test_a_case_that_takes_longer_than_it_may_disagrees(tmp_path: Path) -> None:
    slow, quick = read_cases(written(tmp_path, {**GOOD, "max_seconds": 0}, {**GOOD, "max_seconds": 60}))
    assert (judge(slow).agrees, judge(quick).agrees) == (False, True)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: a case is an object"),
        ({**GOOD, "id": 7}, "text as its id"),
        ({"id": "b", "kind": "moon", "expected": True}, "case 'b': kind 'moon'"),
        ({**GOOD, "id": "b", "expected": "maybe"}, "case 'b': expected is 'maybe'"),
        ({**GOOD, "id": "b", "expected": 1}, "case 'b': expected is 1"),
    ],
)
def test_a_row_that_is_no_case_is_named(tmp_path: Path, row: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("[", r"\[")):
        read_cases(written(tmp_path, GOOD, row))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mode": "song"}, "mode 'song' is none of answer, response"),
        ({"kind": "tool", "rule": "luck"}, "rule 'luck' is none of bfcl_ast"),
        ({"kind": "tool"}, "no field 'rule'"),
        ({"program": "", "tests": [], "mode": "dance"}, "mode 'dance' is none of stdio"),
        ({"program": "", "tests": {"cases": []}, "mode": "call"}, "no field 'fn_name'"),
    ],
)
def test_a_case_that_asks_for_what_there_is_not_is_named(tmp_path: Path, change: dict, says: str) -> None:
    (case,) = read_cases(written(tmp_path, {**GOOD, "id": "odd", **change}))
    with pytest.raises(ConfigError, match=f"case 'odd': {says}"):
        judge(case)


def test_a_file_without_cases_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no case in it"):
        read_cases(written(tmp_path, ""))
