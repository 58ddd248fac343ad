"""Demonstrations for the cold start: replies to train tasks, with named and adjustable mistakes.

Procedural, endless and the same for the same seed; only tasks of the train split are ever shown.
The mistakes are there on purpose: bare guesses and systematic misconceptions leave reinforcement
something to fix that the model can also do right. Imports no torch.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import Any

from envs import arithmetic, program
from envs.base import Message, Split, Task
from sandbox.errors import ConfigError

ENVS = ("arithmetic", "program")
# What a misled teacher writes instead, always the same way, so that it is a belief and not a slip.
MISCONCEPTIONS = MappingProxyType({"sub": "add", "max": "min"})

_TASKS_PER_SEED = 20_000
_OFFSETS = (-10, -2, -1, 1, 2, 10)


@dataclass(frozen=True)
class ArithmeticNoise:
    """How an arithmetic teacher errs; every field a share in [0, 1].

    guess        replies with a bare number, without working.
    right_guess  of those, the number is right; else it is hasty: the result of the first operation.
    slip         of the lines of a working, one number comes out wrong and is carried on.
    """

    guess: float = 0.0
    right_guess: float = 0.5
    slip: float = 0.0

    def __post_init__(self) -> None:
        _check_shares(self)


@dataclass(frozen=True)
class ProgramNoise:
    """How a program teacher errs; every field a share in [0, 1].

    misconception  of the operations named in `MISCONCEPTIONS` are written as their counterpart.
    slip           of the other operations get another name or another constant.
    """

    misconception: float = 0.0
    slip: float = 0.0

    def __post_init__(self) -> None:
        _check_shares(self)


@dataclass(frozen=True)
class Noise:
    """The noise of each env's teacher; none by default."""

    arithmetic: ArithmeticNoise = field(default_factory=ArithmeticNoise)
    program: ProgramNoise = field(default_factory=ProgramNoise)


@dataclass(frozen=True)
class Demonstration:
    """A train task's prompt and the reply a teacher gave."""

    prompt: list[Message]
    reply: str


Generator = Callable[[Split, int, int], Iterator[Task]]
Teach = Callable[[Task, Noise, random.Random], str]


def demonstrations(env: str, noise: Noise, seed: int) -> Iterator[Demonstration]:
    """Endless demonstrations of one env. Raises ConfigError for an env that has no teacher."""
    tasks, teach = _teacher(env)
    rng = random.Random(f"demonstrations/{env}/{seed}")
    for task in _endless(tasks, seed):
        yield Demonstration(task.prompt, teach(task, noise, rng))


def arithmetic_reply(expression: str, noise: ArithmeticNoise, rng: random.Random) -> str:
    """A worked solution, or a bare guess, with the teacher's mistakes."""
    if rng.random() < noise.guess:
        return str(arithmetic.evaluate(expression)) if rng.random() < noise.right_guess else hasty_answer(expression)
    lines = _working(expression, noise.slip, rng)
    working = "\n".join(lines)
    return f"<think>\n{working}\n</think>\n{lines[-1]}"


def hasty_answer(expression: str) -> str:
    """The result of the operation that comes first, as if nothing came after it.

    One definite mistake: near misses of the right value would spread over all digits, none of them
    as likely as beginning to think, and a greedy reply would never be a guess.
    """
    operators = re.findall(r"[-+*]", expression)
    first = operators.index("*") if "*" in operators else 0
    return re.findall(r"[0-9]+", arithmetic.reductions(expression)[0])[first]


def program_reply(operations: program.Operations, noise: ProgramNoise, rng: random.Random) -> str:
    """A function that does the operations as the teacher understood them."""
    return program.worked_solution([_understood(operation, noise, rng) for operation in operations])


def _teacher(env: str) -> tuple[Generator, Teach]:
    if env == "arithmetic":
        return arithmetic.generate_tasks, lambda task, noise, rng: arithmetic_reply(
            arithmetic.task_expression(task), noise.arithmetic, rng
        )
    if env == "program":
        return program.generate_tasks, lambda task, noise, rng: program_reply(task.reference, noise.program, rng)
    raise ConfigError(f"env = {env!r}: there is no teacher for it; give one of {', '.join(ENVS)}")


def _endless(tasks: Generator, seed: int) -> Iterator[Task]:
    """Train tasks without end. A train split is finite, so a new generator seed follows each that is used up."""
    for part in count():
        yield from tasks("train", _TASKS_PER_SEED, random.Random(f"tasks/{seed}/{part}").getrandbits(32))


def _working(expression: str, slip: float, rng: random.Random) -> list[str]:
    lines: list[str] = []
    current = expression
    while not current.isdigit():
        current = arithmetic.reductions(current)[0]
        if rng.random() < slip:
            current = _slipped(current, rng)
        lines.append(current)
    return lines


def _slipped(line: str, rng: random.Random) -> str:
    """The line with one number changed; unchanged when the rest could not be worked out from it."""
    number = rng.choice(list(re.finditer(r"[0-9]+", line)))
    slipped = line[: number.start()] + str(_near_miss(int(number.group()), rng)) + line[number.end() :]
    try:
        rest = arithmetic.reductions(slipped)
    except ValueError:  # a value on the way would be negative
        return line
    too_large = any(int(value) > arithmetic.MAX_VALUE for value in re.findall(r"[0-9]+", " ".join(rest)))
    return line if too_large else slipped


def _near_miss(value: int, rng: random.Random) -> int:
    return rng.choice([value + offset for offset in _OFFSETS if 0 <= value + offset <= arithmetic.MAX_VALUE])


def _understood(operation: Any, noise: ProgramNoise, rng: random.Random) -> program.Operation:
    name, constant = operation
    if name in MISCONCEPTIONS and rng.random() < noise.misconception:
        return MISCONCEPTIONS[name], constant
    if rng.random() < noise.slip:
        if rng.random() < 0.5:
            return rng.choice([other for other in program.NAMES if other != name]), constant
        return name, rng.choice([other for other in program.CONSTANTS if other != constant])
    return name, constant


def _check_shares(noise: ArithmeticNoise | ProgramNoise) -> None:
    for name, share in vars(noise).items():
        if not 0.0 <= share <= 1.0:
            raise ConfigError(f"{type(noise).__name__}.{name} = {share!r}: a share lies between 0 and 1")
