"""How a case's row becomes a call of the verdict that it is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from rewards.code_tests import CallTests, StdioTests
from rewards.extraction import extract_code
from rewards.instructions import instruction_verdict
from rewards.mathematics import MathRules, math_verdict
from rewards.programs import code_verdict
from rewards.tool_calls import BFCL_RULES, tool_verdict
from rewards.tool_dialogue import actions_verdict, phrases_verdict
from rewards.tool_states import state_verdict
from rewards.verdict import Verdict
from sandbox import Limits

Family = Literal["math", "code", "tool", "instruction"]

_ENDED_BY_ITSELF = ("agent_stop", "user_stop")


def _math(row: dict[str, Any]) -> Verdict:
    mode = _one_of(row, "mode", ("answer", "response"))
    rules = MathRules(is_whole_text=mode == "answer")
    return math_verdict(row["prediction"], row["gold"], rules=rules)


def _code(row: dict[str, Any]) -> Verdict:
    mode = _one_of(row, "mode", ("stdio", "call", "assert", "response"))
    seconds = row.get("time_limit", 10)
    limits = Limits(wall_s=seconds, cpu_s=seconds, memory_mb=row.get("memory_mb", 512))
    language = row.get("language", "python")
    code = extract_code(row["program"], language) if mode == "response" else row["program"]
    return code_verdict(code, _tests(row, mode), language=language, limits=limits)


def _tests(row: dict[str, Any], mode: str) -> Any:
    if mode == "assert":
        return row["tests"]
    name, _, tolerance = str(row.get("checker", "tokens")).partition(":")
    options: dict[str, Any] = {"float_tolerance": float(tolerance)} if tolerance else {}
    if name == "python":
        name, options["checker_code"] = "checker", row["checker_code"]
    if mode != "call":
        return StdioTests(cases=row["tests"], checker=name, **options)  # type: ignore[arg-type]
    comparison = name if name in ("exact", "set", "checker") else "json"
    tests = row["tests"]
    return CallTests(function=tests["fn_name"], cases=tests["cases"], comparison=comparison, **options)  # type: ignore[arg-type]


def _tool(row: dict[str, Any]) -> Verdict:
    rule = _one_of(row, "rule", tuple(_TOOL_RULES))
    verdicts = _TOOL_RULES[rule](row)
    return next((verdict for verdict in verdicts if verdict.status != "correct"), verdicts[0])


def _calls(row: dict[str, Any]) -> list[Verdict]:
    tools = _listed(row["func"]) if "func" in row else None
    return [tool_verdict(row["prediction"], row["gold"] or [], tools=tools, rules=BFCL_RULES)]


def _actions(row: dict[str, Any]) -> list[Verdict]:
    return [actions_verdict(row["prediction"]["actions"], row["gold"]), *_state(row["prediction"], is_cut_off=False)]


def _termination(row: dict[str, Any]) -> list[Verdict]:
    found = row["prediction"]
    return _state({"state_match": True, **found}, is_cut_off=found["reason"] not in _ENDED_BY_ITSELF)


def _state(prediction: dict[str, Any], *, is_cut_off: bool) -> list[Verdict]:
    if "state_match" not in prediction:
        return []
    return [state_verdict({"matches": prediction["state_match"]}, {"matches": True}, is_cut_off=is_cut_off)]


def _communicate(row: dict[str, Any]) -> list[Verdict]:
    return [phrases_verdict(row["prediction"], _listed(row["gold"]))]


_TOOL_RULES: dict[str, Callable[[dict[str, Any]], list[Verdict]]] = {
    **dict.fromkeys(("bfcl_ast", "bfcl_parallel", "irrelevance", "json_args"), _calls),
    "required_action": _actions,
    "termination": _termination,
    "communicate": _communicate,
}


def _instruction(row: dict[str, Any]) -> Verdict:
    mode = _one_of({"mode": "strict", **row}, "mode", ("strict", "loose"))
    return instruction_verdict(row["prediction"], [{**(row["gold"] or {}), "id": row["rule"]}], mode=mode)  # type: ignore[arg-type]


JUDGES: dict[Family, Callable[[dict[str, Any]], Verdict]] = {
    "math": _math,
    "code": _code,
    "tool": _tool,
    "instruction": _instruction,
}


def _one_of(row: dict[str, Any], field: str, known: tuple[str, ...]) -> str:
    if (value := row[field]) not in known:
        raise ValueError(f"{field} {str(value)[:40]!r} is none of {', '.join(known)}")
    return str(value)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
