"""`veriward cases`: its table, its JSON and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from veriward.cli import main

ROWS = [
    {"id": "m1", "kind": "equal", "mode": "answer", "prediction": "1/2", "gold": "0.5", "expected": True},
    {"id": "m2", "kind": "equal", "mode": "answer", "prediction": "3", "gold": "0.5", "expected": False},
    {"id": "c1", "kind": "sum", "mode": "stdio", "program": "print(int(input()) + 1)", "checker": "tokens",
     "tests": [{"input": "1\n", "output": "2\n"}], "expected": "accepted"},
    {"id": "t1", "kind": "tool", "rule": "bfcl_ast", "prediction": [{"name": "f", "arguments": {}}],
     "gold": [{"f": {}}], "expected": True},
    {"id": "i1", "kind": "if", "rule": "punctuation:no_comma", "prediction": "a, b", "gold": {}, "expected": False},
]  # fmt: skip
WRONG = {"id": "w\x1b[31m", "kind": "equal", "mode": "answer", "prediction": "3", "gold": "0.5", "expected": True}


@pytest.fixture
def file(tmp_path: Path):
    def write(*rows: dict) -> str:
        path = tmp_path / "cases.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        return str(path)

    return write


def test_agreement_is_a_table_by_kind_and_exit_0(file, capsys):
    assert main(["cases", file(*ROWS)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines]
    assert ["equal", "2", "2", "0"] in rows
    assert ["sum", "1", "1", "0"] in rows
    assert lines[-1] == "5 of 5 agree, 0 do not, arguable ones aside"


def test_a_disagreement_is_told_and_exits_with_1_unless_it_is_arguable(file, capsys):
    assert main(["cases", file(*ROWS, WRONG)]) == 1
    said = capsys.readouterr().out
    assert "expected True, found wrong" in said
    assert "\x1b" not in said
    assert main(["cases", file(*ROWS, {**WRONG, "arguable": True})]) == 0
    assert "(arguable): expected True, found wrong" in capsys.readouterr().out


def test_json_is_one_object_with_totals_and_a_result_for_every_row(file, capsys):
    assert main(["cases", file(*ROWS, WRONG), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["totals"] == {"cases": 6, "agree": 5, "disagree": 1, "arguable_disagree": 0, "unscored": 0}
    assert [row["id"] for row in found["results"]] == ["m1", "m2", "c1", "t1", "i1", "w\x1b[31m"]
    first = found["results"][0]
    assert first.pop("seconds") >= 0
    assert first == {
        "id": "m1", "kind": "equal", "family": "math", "expected": True, "arguable": False,
        "status": "correct", "score": 1.0, "detail": "1/2 is 0.5", "agrees": True,
    }  # fmt: skip


def test_a_bad_row_is_one_line_and_exit_1(file, capsys):
    assert main(["cases", file(*ROWS, {"id": "odd", "kind": "moon", "expected": True})]) == 1
    error = capsys.readouterr().err
    assert "line 6, case 'odd': kind 'moon'" in error
    assert error.count("\n") == 1
    assert main(["cases", "/no/such/file"]) == 1
    assert "No such file" in capsys.readouterr().err
