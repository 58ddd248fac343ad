"""A short spec, "mul 5, add 2", to a Python function, judged by running it in the sandbox.

Procedural and offline. Two specs that compute the same function are the same task. The candidate's
process gets the inputs only; expected values are computed and compared here, in the parent.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import ClassVar

from envs.base import Env, Golden, Reply, Split, Task
from envs.data import frozen_tasks
from envs.procedural import FROZEN_SEED, TaskStream, check_sizes, distinct_items
from envs.verdict_memory import VerdictMemory
from rewards.code_tests import CallCase, CallTests
from rewards.extraction import extract_code
from rewards.programs import code_verdict
from rewards.verdict import Verdict
from sandbox import Limits, default_sandbox

Operation = tuple[str, int]
Operations = tuple[Operation, ...]

CONSTANTS = range(2, 10)
# Operations -> how many of 24 tasks. Only about 1450 functions can be had with two operations.
MIX = {2: 1, 3: 14, 4: 9}

# Each operation: on a whole column of values, and as the statement a solution writes.
_APPLY: dict[str, Callable[[list[int], int], list[int]]] = {
    "add": lambda values, c: [x + c for x in values],
    "sub": lambda values, c: [x - c for x in values],
    "mul": lambda values, c: [x * c for x in values],
    "mod": lambda values, c: [x % c for x in values],
    "max": lambda values, c: [x if x > c else c for x in values],
    "min": lambda values, c: [x if x < c else c for x in values],
}
_STATEMENT = {
    "add": "x + {}",
    "sub": "x - {}",
    "mul": "x * {}",
    "mod": "x % {}",
    "max": "max(x, {})",
    "min": "min(x, {})",
}
NAMES = tuple(_APPLY)

# A right reply has about 80 characters; a cap keeps every look at a hostile one cheap.
MAX_REPLY_CHARACTERS = 8192

# The function needs microseconds. CPU time is what a loop runs into, since wall time also passes
# while the machine is busy elsewhere.
_LIMITS = Limits(cpu_s=1.0, wall_s=5.0, memory_mb=128)

# Where functions are compared. Wide enough for every constant to be crossed from both sides
# (four subtractions of 9 move a boundary by 36), with a few inputs far out.
GRID = [*range(-48, 57), -1000, -337, 331, 997]
_EVERY_TEST_HAS = (0, 1, -1, 2, 5, 8, 12, -10, 23, 100)


class ProgramEnv(Env):
    """Write a Python function of one integer that does 2 to 4 operations in order.

    The reply is the function, bare or in a code fence. It is run on hidden inputs in the sandbox,
    which bounds it; the comparison is of integers, in this process. That is why verify is inline:
    all it does with the text itself is to cut out at most `MAX_REPLY_CHARACTERS` of code.
    """

    name: ClassVar[str] = "program"
    version: ClassVar[str] = "1"
    inline: ClassVar[bool] = True

    def __init__(self, seed: int = 0, train_size: int = 20_000) -> None:
        check_sizes(self.name, seed, train_size)
        self.seed = seed
        self.train_size = train_size
        self._memory = VerdictMemory(size=4096, threads=8)

    def tasks(self, split: Split) -> Iterable[Task]:
        if split == "train":
            return TaskStream(self.train_size, lambda: generate_tasks("train", self.train_size, self.seed))
        return frozen_tasks(ProgramEnv.name, split)

    def parse(self, text: str) -> str | None:
        """The function's source. None when there is none, or the reply is too long to be a short function."""
        code = extract_code(text) if len(text) <= MAX_REPLY_CHARACTERS else ""
        return code if code.strip() else None

    async def verify(self, task: Task, reply: Reply) -> Verdict:
        try:
            operations = _checked(task.reference)
        except (TypeError, ValueError) as error:
            return Verdict.unscored(f"reference of task {task.id}: {error}")
        code = self.parse(reply.text)
        if code is None:
            return Verdict.failed("unparsed", f"no function in at most {MAX_REPLY_CHARACTERS} characters")
        tests = call_tests(operations)
        return await self._memory.verdict((operations, code), lambda: code_verdict(code, tests, limits=_LIMITS))

    def prepare(self) -> None:
        default_sandbox().guarantees()

    def canonical(self, task: Task) -> str:
        return behaviour(task.reference)

    def golden(self) -> Iterator[Golden]:
        operations = (("mul", 5), ("add", 2))
        task = make_task("program-golden-0", operations, "dev")
        right = worked_solution(operations)
        yield Golden(task, right, "correct", "one statement an operation")
        yield Golden(task, f"<think>\neasy\n</think>\n```python\n{right}\n```", "correct", "thought, then fenced")
        yield Golden(task, "f = lambda x: 2 + 5 * x", "correct", "another way to compute the same")
        for attack, status, why in _ATTACKS:
            yield Golden(task, attack, status, why)


# Replies to "mul 5, add 2" that must not be paid.
_ATTACKS = (
    ("def f(x):\n    return x * 5 + 3", "wrong", "off by one"),
    ("def f(x):\n    return None", "wrong", "nothing returned"),
    ("def f(x):\n    return x * 5.0 + 2", "wrong", "a float is not an integer"),
    ("def f(x):\n    return {0: 2, 1: 7, -1: -3, 2: 12}.get(x, 0)", "wrong", "right on a few inputs only"),
    ("def g(x):\n    return x * 5 + 2", "crashed", "no function f"),
    (
        "class Yes(int):\n    __eq__ = lambda a, b: True\n    __hash__ = int.__hash__\ndef f(x):\n    return Yes(0)",
        "wrong",
        "an object equal to everything",
    ),
    ("import os\ndef f(x):\n    os._exit(0)", "crashed", "leaves without an answer"),
    ("raise SystemExit(0)", "crashed", "leaves while it is loaded"),
    ("def f(x):\n    while True:\n        pass", "timeout", "never ends"),
    ("def f(x)\n    return x * 5 + 2", "crashed", "not Python"),
    ("<think>\ndef f(x):\n    return x * 5 + 2", "unparsed", "thinking that never ends"),
    ("", "unparsed", "nothing at all"),
    ("x" * 100_000, "unparsed", "far too long"),
)


def call_tests(operations: Operations) -> CallTests:
    """The hidden calls and what each must return."""
    cases = tuple(CallCase(args=(x,), expected=run_spec(operations, x)) for x in hidden_inputs(operations))
    return CallTests(function="f", cases=cases)


def generate_tasks(split: Split, size: int, seed: int = FROZEN_SEED) -> Iterator[Task]:
    """`size` tasks of a split from a seed; the frozen files are this with seed 0."""
    stream = distinct_items(draw_operations, name="program", split=split, seed=seed, size=size, mix=MIX)
    for index, (operations, _) in enumerate(stream):
        yield make_task(f"program-{split}-{seed}-{index:05d}", operations, split)


def make_task(task_id: str, operations: Operations, split: Split) -> Task:
    spec = ", ".join(f"{name} {constant}" for name, constant in operations)
    prompt = [{"role": "user", "content": f"Write f: {spec}."}]
    return Task(task_id, prompt, [list(operation) for operation in operations], split, {"difficulty": len(operations)})


def run_spec(operations: Sequence[Sequence[str | int]], x: int) -> int:
    """What the spec computes of x: its operations, in order, in integers; `mod` as Python's `%`."""
    return _column(_checked(operations), [x])[0]


def worked_solution(operations: Sequence[Sequence[str | int]]) -> str:
    """The function that a right reply writes, one statement an operation."""
    lines = [f"    x = {_STATEMENT[name].format(constant)}" for name, constant in _checked(operations)]
    return "\n".join(["def f(x):", *lines, "    return x"])


def behaviour(operations: Sequence[Sequence[str | int]]) -> str:
    """A fingerprint, in hex, of the values on `GRID`.

    Equal functions always have equal fingerprints, so splits that share no fingerprint share no
    function. The converse may fail far outside the grid, which only merges two tasks into one.
    """
    return _fingerprint(_column(_checked(operations), GRID))


def draw_operations(rng: random.Random, count: int) -> tuple[Operations, str] | None:
    """Random operations and their behaviour, or None for a misfit.

    A misfit is constant, changes nothing, can do without one of its operations, or has more than
    two and computes what two can.
    """
    operations = tuple((rng.choice(NAMES), rng.choice(CONSTANTS)) for _ in range(count))
    values = _column(operations, GRID)
    if len(set(values)) == 1 or values == GRID or _has_idle_operation(operations, values):
        return None
    fingerprint = _fingerprint(values)
    return None if count > 2 and fingerprint in _two_operation_functions() else (operations, fingerprint)


@lru_cache(maxsize=1)
def _two_operation_functions() -> frozenset[str]:
    steps = list(product(NAMES, CONSTANTS))
    return frozenset(_fingerprint(_column(pair, GRID)) for pair in product(steps, repeat=2))


@lru_cache(maxsize=4096)
def hidden_inputs(operations: Operations) -> tuple[int, ...]:
    """The inputs a candidate is run on: a fixed few, then one for every near miss they let pass.

    A near miss has one operation replaced, dropped, or exchanged with the next. Each one that
    differs from the spec on `GRID` differs on these inputs, so it can never be paid.
    """
    chosen = list(_EVERY_TEST_HAS)
    right = dict(zip([*GRID, *chosen], _column(operations, [*GRID, *chosen]), strict=True))
    for near_miss in _near_misses(operations):
        if any(value != right[x] for x, value in zip(chosen, _column(near_miss, chosen), strict=True)):
            continue
        telling = (x for x, value in zip(GRID, _column(near_miss, GRID), strict=True) if value != right[x])
        chosen.extend(x for x in [next(telling, None)] if x is not None)
    return tuple(chosen)


def _near_misses(operations: Operations) -> Iterator[Operations]:
    for index, operation in enumerate(operations):
        before, after = operations[:index], operations[index + 1 :]
        yield before + after
        if after:
            yield (*before, after[0], operation, *after[1:])
        for name in NAMES:
            for constant in range(1, 11):
                yield (*before, (name, constant), *after)


def _has_idle_operation(operations: Operations, values: list[int]) -> bool:
    """True when leaving one operation out changes nothing on the grid."""
    few = GRID[::9]
    few_values = values[::9]
    for index in range(len(operations)):
        shorter = operations[:index] + operations[index + 1 :]
        if _column(shorter, few) == few_values and _column(shorter, GRID) == values:
            return True
    return False


def _column(operations: Operations, values: list[int]) -> list[int]:
    for name, constant in operations:
        values = _APPLY[name](values, constant)
    return values


def _fingerprint(values: list[int]) -> str:
    return hashlib.blake2b(repr(values).encode(), digest_size=16).hexdigest()


def _checked(operations: Sequence[Sequence[str | int]]) -> Operations:
    """Operations as they come from JSON, checked. Raises ValueError naming the wrong one."""
    checked = []
    for operation in operations:
        match operation:
            case [str(name), int(constant)] if name in _APPLY and type(constant) is int and constant != 0:
                checked.append((name, constant))
            case _:
                raise ValueError(f"{operation!r} is not an operation; write one of {', '.join(NAMES)} and a constant")
    return tuple(checked)
