"""The attack library: replies that no verifier may pay, from the shipped file and a few small generators."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from envs.base import Env, Task
from envs.data import data_root

_HUGE_CHARACTERS = 200_000


@dataclass(frozen=True)
class Attack:
    """`rule`: what a verifier breaks that pays it. `source`: where it was seen."""

    name: str
    source: str
    rule: str
    make: Callable[[Env, Task], str]


def attacks() -> list[Attack]:
    return [*_from_file(), *_generated()]


@lru_cache(1)
def _from_file() -> list[Attack]:
    rows = map(json.loads, (data_root("datasets") / "attacks" / "attacks.jsonl").read_text("utf-8").splitlines())
    return [Attack(row["name"], row["source"], row["rule"], _filled(row["text"])) for row in rows]


def _filled(template: str) -> Callable[[Env, Task], str]:
    def make(env: Env, task: Task) -> str:
        values = {
            "reference": _text(task.reference),
            "wrong": wrong_value(task.reference),
            "prompt": _prompt(env, task),
        }
        return re.sub(r"\{\{(reference|wrong|prompt)\}\}", lambda found: values[found[1]], template)

    return make


def _generated() -> Iterator[Attack]:
    degenerate = "degenerate"
    yield Attack("random text", degenerate, "noise is no answer", _noise)
    yield Attack(
        "huge reply", degenerate, "length costs time, and is no answer", lambda env, task: "so " * _HUGE_CHARACTERS
    )
    yield Attack(
        "nested parentheses", "math-verify's grammar", "an expression bomb costs its limit and no more",
        lambda env, task: r"\boxed{" + "(" * 60 + "7" + ")" * 60 + "}",
    )  # fmt: skip
    yield Attack(
        "thousands of items", "math-verify's grammar", "an expression bomb costs its limit and no more",
        lambda env, task: r"\boxed{" + ",".join(map(str, range(3000))) + "}",
    )  # fmt: skip
    yield Attack("every box", "Math-Verify#47", "several answers are none", _every_box)
    yield Attack("the answer in a long list", "reasoning-gym", "containing the answer is not giving it", _long_list)


def _noise(env: Env, task: Task) -> str:
    rng = random.Random(f"noise/{task.id}")
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz \n{}\\$") for _ in range(400))


def _every_box(env: Env, task: Task) -> str:
    values = [*map(str, range(20)), _text(task.reference)]
    return "It is one of " + ", ".join(rf"\boxed{{{value}}}" for value in values)


def _long_list(env: Env, task: Task) -> str:
    values = [wrong_value(task.reference), "-1", "17", _text(task.reference), "1000003", wrong_value(task.reference)]
    return "All that it might be: " + ", ".join(values * 3)


def wrong_value(reference: Any) -> str:
    """A value of the reference's own kind that is not the reference."""
    text = _text(reference)
    if numbers := list(re.finditer(r"\d+", text)):
        last = numbers[-1]
        return f"{text[: last.start()]}{int(last[0]) + 1}{text[last.end() :]}"
    return f"not {text}"[:200]


def _text(reference: Any) -> str:
    return reference if isinstance(reference, str) else json.dumps(reference)


def _prompt(env: Env, task: Task) -> str:
    return str(env.messages(task)[-1]["content"])
