"""Integer expressions with precedence, solved one reduction a line, then the answer.

Procedural and offline. Two expressions that differ only in the order of their terms and factors
are the same task. Only the answer is judged, never the working.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from envs.base import Env, Golden, Reply, Split, Task
from envs.data import frozen_tasks
from envs.procedural import FROZEN_SEED, TaskStream, check_sizes, distinct_items
from rewards.verdict import Verdict

MAX_VALUE = 99
# Operands -> how many of 24 tasks. Only 1505 canonical forms have three operands, so a bigger
# share of them could not hold in all splits at once.
MIX = {3: 1, 4: 12, 5: 11}

_EXPRESSION = re.compile(r"[0-9]{1,9}(?:[-+*][0-9]{1,9})*")
_PRODUCT = re.compile(r"([0-9]+)\*([0-9]+)")
_SUM = re.compile(r"([0-9]+)([-+])([0-9]+)")
# One spelling for every integer, so that equality of text is equality of value and no digit
# string, however long, is ever converted.
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")


class Arithmetic(Env):
    """Compute an expression of 3 to 5 operands from 1 to 9 with + - *, all values from 0 to 99.

    A reply's answer is the text after its last `</think>`, or all of it; it must be one integer.
    """

    version: ClassVar[str] = "1"
    inline: ClassVar[bool] = True  # a search for the last tag and one regular expression, both linear

    def __init__(self, seed: int = 0, train_size: int = 20_000) -> None:
        check_sizes(self.name, seed, train_size)
        self.seed = seed
        self.train_size = train_size

    def tasks(self, split: Split) -> Iterable[Task]:
        if split == "train":
            return TaskStream(self.train_size, lambda: generate_tasks("train", self.train_size, self.seed))
        return frozen_tasks(Arithmetic.name, split)

    def parse(self, text: str) -> str | None:
        answer = text.rpartition("</think>")[2].strip(" \t\r\n")
        return answer if _INTEGER.fullmatch(answer) else None

    def verify(self, task: Task, reply: Reply) -> Verdict:
        if type(task.reference) is not int:
            return Verdict.unscored(f"reference {task.reference!r} of task {task.id} is not an integer")
        answer = self.parse(reply.text)
        if answer is None:
            return Verdict.failed("unparsed", "the text after the last </think> is not one integer")
        if answer == str(task.reference):
            return Verdict.correct()
        return Verdict.wrong(f"answered {answer[:20]}, not {task.reference}")

    def canonical(self, task: Task) -> str:
        return canonical_form(task_expression(task))

    def golden(self) -> Iterator[Golden]:
        task = make_task("arithmetic-golden-0", "2+2*2*3", "dev")
        yield Golden(task, worked_solution("2+2*2*3"), "correct", "worked and right")
        yield Golden(task, "14", "correct", "a bare right guess is right")
        yield Golden(task, " 14\n", "correct", "surrounding white space is no part of the answer")
        yield Golden(task, "<think>\n2+2*2*3\n9\n</think>\n14", "correct", "the working is not judged")
        yield Golden(task, "24", "wrong", "left to right, without precedence")
        yield Golden(task, "-14", "wrong", "the sign counts")
        yield Golden(task, "9" * 100_000, "wrong", "a huge integer costs nothing to judge")
        yield Golden(task, "<think>\n2+4*3\n2+12\n14", "unparsed", "thinking that never ends is no answer")
        yield Golden(task, "<think>\n14\n</think>", "unparsed", "a draft inside the thinking is no answer")
        yield Golden(task, "<think></think>14<think>15", "unparsed", "thinking that starts again hides the answer")
        yield Golden(task, "5 or 14", "unparsed", "hedging")
        yield Golden(task, "14.0", "unparsed", "not an integer literal")
        yield Golden(task, "\u0661\u0664", "unparsed", "digits of another script")
        yield Golden(task, "", "unparsed", "nothing at all")


def generate_tasks(split: Split, size: int, seed: int = FROZEN_SEED) -> Iterator[Task]:
    """`size` tasks of a split from a seed; the frozen files are this with seed 0."""
    stream = distinct_items(draw_expression, name="arithmetic", split=split, seed=seed, size=size, mix=MIX)
    for index, (expression, _) in enumerate(stream):
        yield make_task(f"arithmetic-{split}-{seed}-{index:05d}", expression, split)


def make_task(task_id: str, expression: str, split: Split) -> Task:
    prompt = [{"role": "user", "content": f"Compute {expression}."}]
    operands = len(re.split(r"[-+*]", expression))
    return Task(task_id, prompt, evaluate(expression), split, {"difficulty": operands})


def task_expression(task: Task) -> str:
    return task.prompt[-1]["content"].removeprefix("Compute ").removesuffix(".")


def draw_expression(rng: random.Random, operands: int) -> tuple[str, str] | None:
    """A random expression and its canonical form, or None when a value leaves 0..99 on the way."""
    parts = [str(rng.randint(1, 9))]
    for _ in range(operands - 1):
        parts += [rng.choice("+-*"), str(rng.randint(1, 9))]
    expression = "".join(parts)
    total = 0
    for sign, factors in _terms(expression):
        product = math.prod(factors)
        total += sign * product
        if product > MAX_VALUE or not 0 <= total <= MAX_VALUE:
            return None
    return expression, canonical_form(expression)


def evaluate(expression: str) -> int:
    """The value under precedence. Raises ValueError for anything but integers joined by + - *."""
    if not _EXPRESSION.fullmatch(expression):
        raise ValueError(f"not an expression of integers, +, - and *: {expression[:80]!r}")
    return sum(sign * math.prod(factors) for sign, factors in _terms(expression))


def reductions(expression: str) -> list[str]:
    """The lines of the working: each does one operation, the leftmost of the highest precedence.

    The last line is the value. Values on the way must not be negative, as in every task here.
    """
    lines = []
    while not expression.isdigit():
        found = _PRODUCT.search(expression) or _SUM.match(expression)
        if found is None:
            raise ValueError(f"no operation to do in {expression!r}")
        expression = expression[: found.start()] + str(evaluate(found.group())) + expression[found.end() :]
        lines.append(expression)
    return lines


def worked_solution(expression: str) -> str:
    """The reply that shows its working and is right, exactly as a demonstration should spell it."""
    working = "\n".join(reductions(expression))
    return f"<think>\n{working}\n</think>\n{evaluate(expression)}"


def canonical_form(expression: str) -> str:
    """The signed multiset of terms, each a sorted multiset of factors: `3*2-1+5` is `+2*3+5-1`."""
    terms = [("-" if sign < 0 else "+") + "*".join(map(str, sorted(factors))) for sign, factors in _terms(expression)]
    return "".join(sorted(terms))


def _terms(expression: str) -> list[tuple[int, list[int]]]:
    """Sign and factors of each term, left to right."""
    terms = []
    for term in expression.replace("-", "+-").split("+"):
        sign = -1 if term.startswith("-") else 1
        terms.append((sign, [int(factor) for factor in term.removeprefix("-").split("*")]))
    return terms
