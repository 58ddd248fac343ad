"""The verb `cases`: labelled cases against our own verdicts, or an author's golden ones."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veriward.output import say, say_json, say_table

if TYPE_CHECKING:
    from rewards.cases import Judged


def add_verbs(verbs: Any) -> None:
    cases = verbs.add_parser(
        "cases", help="judge a file of labelled cases and tell where we disagree", description=_cases.__doc__
    )
    cases.add_argument("file", type=Path, metavar="FILE.jsonl")
    cases.add_argument("--json", action="store_true", help="print one JSON object")
    cases.set_defaults(verb=_cases)


def _cases(args: argparse.Namespace) -> int:
    """Judge every case of a file and print a table by kind with every disagreement. Exits with 1 where one
    that is not arguable disagrees."""
    from rewards.cases import judge, read_cases

    judged = [judge(case) for case in read_cases(args.file)]
    if args.json:
        say_json({"totals": _totals(judged), "results": [_result(one) for one in judged]})
    else:
        _report(judged)
    return int(any(not one.agrees and not one.case.is_arguable for one in judged))


def _totals(judged: list[Judged]) -> dict[str, int]:
    return {
        "cases": len(judged),
        "agree": sum(one.agrees for one in judged),
        "disagree": sum(not one.agrees and not one.case.is_arguable for one in judged),
        "arguable_disagree": sum(not one.agrees and one.case.is_arguable for one in judged),
        "unscored": sum(one.verdict.status == "unscored" for one in judged),
    }


def _result(one: Judged) -> dict[str, Any]:
    return {
        "id": one.case.id,
        "kind": one.case.kind,
        "family": one.case.family,
        "expected": one.case.expected,
        "arguable": one.case.is_arguable,
        "status": one.verdict.status,
        "score": one.verdict.score,
        "detail": one.verdict.detail,
        "seconds": round(one.seconds, 4),
        "agrees": one.agrees,
    }


def _report(judged: list[Judged]) -> None:
    counts: dict[str, Counter[str]] = {}
    for one in judged:
        kind = counts.setdefault(one.case.kind, Counter())
        kind.update(cases=1, agree=int(one.agrees), arguable=int(one.case.is_arguable))
    columns = ("kind", "cases", "agree", "arguable")
    say_table("cases", columns, [(kind, *(str(n[key]) for key in columns[1:])) for kind, n in sorted(counts.items())])
    for one in judged:
        if not one.agrees:
            arguable = " (arguable)" if one.case.is_arguable else ""
            why = one.case.row.get("why", "")
            say(
                f"{one.case.id}{arguable}: expected {one.case.expected}, found {one.verdict.status} "
                f"after {one.seconds:.1f} s: {one.verdict.detail[:200]}{f' [{why}]' if why else ''}"
            )
    totals = _totals(judged)
    say(f"{totals['agree']} of {totals['cases']} agree, {totals['disagree']} do not, arguable ones aside")
