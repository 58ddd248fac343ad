"""The tool-call verdict: did the policy make the right calls, all of them and no others?

Order does not matter and pairing is by best assignment. Nothing raises for what a reply holds: a
call that cannot be read is `unparsed`, an expectation that cannot be used `unscored`.
"""

from __future__ import annotations

import asyncio

from rewards.tool_expectations import (
    BFCL_RULES,
    ExpectedCall,
    ToolRules,
    UnusableExpectation,
    folded,
    read_expected,
)
from rewards.tool_json import Unreadable
from rewards.tool_matching import matched_pairs, overlaps, told_fault
from rewards.tool_parsing import Call, read_calls
from rewards.verdict import Verdict

__all__ = ["BFCL_RULES", "ToolRules", "tool_verdict", "tool_verdict_async"]


def tool_verdict(calls: object, expected: object, *, tools: object = None, rules: ToolRules | None = None) -> Verdict:
    """Judge a policy's calls. Blocking, pure, safe from any thread; raises for nothing they hold.

    calls     a list of {"name", "arguments"} (OpenAI's {"function": {...}} too; arguments may be
              JSON text), or a reply's text: `<tool_call>{...}</tool_call>` blocks amid prose, or
              nothing but JSON. Calls inside thoughts are not made.
    expected  a list of [{function: {parameter: [acceptable values]}}] as BFCL's possible_answer
              ("" among them: may be omitted; an object is written alike, one level deep), or of
              exact calls. Empty: no call is right, and an attempted one is no refusal.
    tools     function descriptions with JSON schemas, BFCL's or OpenAI's: what is required, known,
              and a float.
    Parts, each in [0, 1]: `matched` (calls paired over the larger number of calls), and ToolRL's
    `names`, `parameters`, `values` (see `overlaps`).
    """
    rules = rules or ToolRules()
    try:
        wanted = read_expected(expected, tools, rules)
    except UnusableExpectation as error:
        return Verdict.unscored(str(error))
    try:
        given = [Call(call.name, folded(call.arguments, rules)) for call in read_calls(calls)]
    except Unreadable as error:
        return Verdict.failed("unparsed", str(error))
    pairs = matched_pairs(given, wanted)
    matched, size = sum(index >= 0 for index in pairs), max(len(given), len(wanted))
    parts = {"matched": matched / size if size else 1.0, **overlaps(given, wanted, matched)}
    if matched == size:
        return Verdict.correct(parts=parts)
    return Verdict.wrong(_told(given, wanted, pairs), parts)


async def tool_verdict_async(
    calls: object, expected: object, *, tools: object = None, rules: ToolRules | None = None
) -> Verdict:
    """`tool_verdict` without blocking the running loop."""
    return await asyncio.to_thread(tool_verdict, calls, expected, tools=tools, rules=rules)


def _told(given: list[Call], wanted: list[ExpectedCall], pairs: list[int]) -> str:
    """The first thing that is wrong, for people."""
    if len(given) != len(wanted):
        return f"number of calls: {len(given)}, where {len(wanted)} are expected"
    index = pairs.index(-1)
    call, paired = given[index], set(pairs)
    for position, right in enumerate(wanted):
        if position not in paired and right.name == call.name:
            return f"call {index + 1}, {call.name!a:.80}: {told_fault(call, right)}"
    return f"call {index + 1}, {call.name!a:.80}: no such call is expected, or no further one"
