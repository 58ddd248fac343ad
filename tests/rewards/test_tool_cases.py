"""Every labelled tool row that is not arguable gets the verdict its label says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rewards.tool_calls import BFCL_RULES, tool_verdict
from rewards.tool_dialogue import actions_verdict, phrases_verdict
from rewards.tool_states import state_verdict
from rewards.verdict import Verdict

ENDED_BY_ITSELF = {"agent_stop", "user_stop"}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _calls(row: dict[str, Any]) -> list[Verdict]:
    tools = _listed(row["func"]) if "func" in row else None
    return [tool_verdict(row["prediction"], row["gold"] or [], tools=tools, rules=BFCL_RULES)]


def _state(prediction: dict[str, Any], is_cut_off: bool = False) -> list[Verdict]:
    if "state_match" not in prediction:
        return []
    return [state_verdict({"matches": prediction["state_match"]}, {"matches": True}, is_cut_off=is_cut_off)]


def _required_action(row: dict[str, Any]) -> list[Verdict]:
    return [actions_verdict(row["prediction"]["actions"], row["gold"]), *_state(row["prediction"])]


def _termination(row: dict[str, Any]) -> list[Verdict]:
    return _state(row["prediction"], row["prediction"]["reason"] not in ENDED_BY_ITSELF)


JUDGES: dict[str, Callable[[dict[str, Any]], list[Verdict]]] = {
    "bfcl_ast": _calls,
    "bfcl_parallel": _calls,
    "irrelevance": _calls,
    "json_args": _calls,
    "required_action": _required_action,
    "termination": _termination,
    "communicate": lambda row: [phrases_verdict(row["prediction"], _listed(row["gold"]))],
}


def test_every_labelled_row_agrees(shared_data: Callable[[str], Path]) -> None:
    """The arguable ones are of our opinion as well; a change of that must be seen."""
    rows = [json.loads(line) for line in shared_data("cases/tool.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["kind"] == "tool"]
    found = {row["id"]: all(verdict.score == 1.0 for verdict in JUDGES[row["rule"]](row)) for row in rows}
    assert {id for id, row in ((row["id"], row) for row in rows) if found[id] != row["expected"]} == set()
    assert len(rows) >= 13
