"""The instruction verdict: does a reply follow every checkable instruction of its prompt?

Strict reads the reply as it is. Loose, as IFEval defines it, also reads it without its first line,
its last, both, and each without asterisks; one reading that follows the rule is enough.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from rewards import instruction_rules, instruction_rules_ifbench
from rewards.verdict import Verdict

_RULES = {**instruction_rules.RULES, **instruction_rules_ifbench.RULES}
_MAX_CHARACTERS = 1 << 20
_RENAMED = {("ifbench:repeat:repeat_span", "text"): "span_of"}  # our first argument is called `text`


class _Unusable(ValueError):
    """An instruction that no reply could be judged by."""


def instruction_verdict(
    text: str, instructions: Sequence[Mapping[str, Any]], *, mode: Literal["strict", "loose"] = "strict"
) -> Verdict:
    """Judge a reply by instructions: mappings of an `id` (IFEval's, or `ifbench:...`) and its arguments.

    Correct means that all are followed; `parts["followed"]` is the share that is. An empty reply
    follows nothing. No instruction, an unknown id or an impossible argument is `unscored`. Blocking,
    pure, safe from any thread; raises ValueError for an unknown mode and for nothing a reply holds.
    """
    if mode not in ("strict", "loose"):
        raise ValueError(f"mode {mode!r}: strict or loose")
    if not isinstance(text, str):
        return Verdict.failed("unparsed", f"the reply is of type {type(text).__name__}, not text")
    if not instructions:
        return Verdict.unscored("there are no instructions to follow")
    readings = _readings(text[:_MAX_CHARACTERS], mode)
    broken: list[str] = []
    try:
        for instruction in instructions:
            if why := _broken(instruction, readings):
                broken.append(f"{instruction['id']}: {why}")
    except _Unusable as error:
        return Verdict.unscored(str(error))
    parts = {"followed": 1 - len(broken) / len(instructions)}
    return Verdict.wrong(broken[0], parts) if broken else Verdict.correct("every instruction is followed", parts)


async def instruction_verdict_async(
    text: str, instructions: Sequence[Mapping[str, Any]], *, mode: Literal["strict", "loose"] = "strict"
) -> Verdict:
    """`instruction_verdict` without blocking the running loop."""
    return await asyncio.to_thread(instruction_verdict, text, instructions, mode=mode)


def from_ifeval(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The instructions of a row of IFEval's data: ids and arguments side by side, some ids behind `en:`."""
    pairs = zip(row["instruction_id_list"], row["kwargs"], strict=True)
    return [{**(arguments or {}), "id": name.removeprefix("en:")} for name, arguments in pairs]


def _broken(instruction: Mapping[str, Any], readings: list[str]) -> str | None:
    """Why no reading follows it, as the first one has it; None where one does. Raises _Unusable."""
    name = str(instruction.get("id", ""))
    if name not in _RULES:
        raise _Unusable(f"instruction {name[:60]!r} is unknown")
    arguments = {_RENAMED.get((name, key), key): value for key, value in instruction.items() if key != "id"}
    check = partial(_RULES[name], **{key: value for key, value in arguments.items() if value is not None})
    try:
        inspect.signature(_RULES[name]).bind("", **check.keywords)
        found = [check(reading) if reading.strip() else "the reply is empty" for reading in readings]
        check("a")  # so that an argument no reply could meet is never told from an empty one
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise _Unusable(f"instruction {name!r}: {' '.join(str(error).split())[:200]}") from None
    return None if None in found else found[0]


def _readings(text: str, mode: str) -> list[str]:
    if mode == "strict":
        return [text]
    lines = text.split("\n")
    parts = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*parts, *(part.replace("*", "") for part in parts)]
