"""Are the tasks sound, and do the splits share none?

`check_tasks` is run before anything is trained or evaluated and stops at the first fault.
`find_overlaps` is the proof of held-out: exact prompts, normalised prompts, and canonical forms.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from envs.base import SPLITS, Env, Golden, Split, Task
from envs.loading import described
from sandbox.errors import VeriwardError

OverlapKind = Literal["exact", "normalised", "canonical"]


@dataclass(frozen=True)
class Overlap:
    """Two tasks of different splits that are the same; `kind` is the strictest sense in which they are."""

    kind: OverlapKind
    first: Task
    second: Task

    def __str__(self) -> str:
        pair = " and ".join(f"{task.split} task {task.id}" for task in (self.first, self.second))
        return f"{self.kind} overlap of {pair}"


def check_tasks(env: Env, splits: Iterable[Split] = SPLITS, *, at_most: int | None = None) -> dict[Split, list[Task]]:
    """All tasks of the splits, or the first `at_most` of each, each checked.

    Raises VeriwardError, naming the task and what to do, for an empty split, a prompt that is no
    list of messages, no reference, a reference or metadata that is not plain JSON, a wrong split,
    an id that is used twice, and for whatever the env's `tasks` raises.
    """
    seen: dict[str, Split] = {}
    checked: dict[Split, list[Task]] = {}
    for split in splits:
        tasks = read_split(env, split, at_most=at_most)
        if not tasks:
            raise VeriwardError(f'env {env.name}: the {split} split is empty; tasks("{split}") must yield tasks')
        for index, task in enumerate(tasks):
            fault = _fault(task, split)
            if fault:
                task_id = task.id if isinstance(task, Task) else f"number {index}"
                raise VeriwardError(f"env {env.name}: {split} task {task_id}: {fault}")
            if task.id in seen:
                hint = _split_hint(tasks, seen, split)
                raise VeriwardError(
                    f"env {env.name}: {split} task {task.id}: its id is used twice; make ids unique in all splits{hint}"
                )
            seen[task.id] = split
        checked[split] = tasks
    return checked


def read_split(env: Env, split: Split, *, at_most: int | None = None) -> list[Task]:
    """The tasks of a split, or the first `at_most`, unchecked. Raises VeriwardError for whatever the
    env's `tasks` raises, and when it returns nothing to go through."""
    return _read(env, f'tasks("{split}")', lambda: env.tasks(split), "Task", at_most)


def check_golden(env: Env) -> list[Golden]:
    """The env's golden cases, none when it has none. Raises VeriwardError for one that is no Golden or
    whose task is not sound, and for whatever the env's `golden` raises."""
    cases = _read(env, "golden()", env.golden, "Golden")
    for index, case in enumerate(cases):
        if not isinstance(case, Golden):
            raise VeriwardError(
                f"env {env.name}: golden case {index} is a {type(case).__name__}; golden must yield Golden objects"
            )
        if fault := _fault(case.task, getattr(case.task, "split", "dev")):
            raise VeriwardError(f"env {env.name}: task of golden case {index}: {fault}")
    return cases


def _read(env: Env, call: str, made: Callable[[], Iterable[Any]], kind: str, at_most: int | None = None) -> list[Any]:
    try:
        found = made()
        if isinstance(found, Iterable):
            return list(islice(found, at_most))
    except VeriwardError:
        raise
    except Exception as error:
        raise VeriwardError(f"env {env.name}: {call} raised {described(error)}") from error
    raise VeriwardError(f"env {env.name}: {call} returned {found!r:.80}; it must yield {kind} objects")


def _split_hint(tasks: Sequence[Task], seen: Mapping[str, Split], split: Split) -> str:
    """Where every id of a split was seen in another, its argument was probably not looked at."""
    ids = {task.id for task in tasks if isinstance(task, Task)}
    is_ignored = all(seen.get(task_id, split) != split for task_id in ids)
    return " (every id is an earlier split's: does tasks(split) use its argument?)" if is_ignored else ""


def find_overlaps(env: Env, tasks: Mapping[Split, Sequence[Task]] | None = None) -> list[Overlap]:
    """Every task that occurs in an earlier split too, once for each such split, with its double there.

    tasks  what `check_tasks` returned, to save making them again.
    """
    by_split = check_tasks(env) if tasks is None else tasks
    earlier: list[dict[tuple[OverlapKind, str], Task]] = []
    overlaps = []
    for split_tasks in by_split.values():
        here: dict[tuple[OverlapKind, str], Task] = {}
        for task in split_tasks:
            keys = _keys(env, task)
            for other in earlier:
                shared = next((key for key in keys if key in other), None)
                if shared:
                    overlaps.append(Overlap(shared[0], other[shared], task))
            for key in keys:
                here.setdefault(key, task)
        earlier.append(here)
    return overlaps


def check_disjoint(env: Env, tasks: Mapping[Split, Sequence[Task]] | None = None) -> None:
    """Raises VeriwardError, naming the first pair, when two splits share a task."""
    overlaps = find_overlaps(env, tasks)
    if overlaps:
        raise VeriwardError(
            f"env {env.name}: splits overlap in {len(overlaps)} tasks, first the {overlaps[0]}; keep each in one split"
        )


def _fault(task: Any, split: Split) -> str:
    """What is wrong with a task and what to do; empty when nothing is."""
    if not isinstance(task, Task):
        return f"a {type(task).__name__}; tasks must yield Task objects"
    if not isinstance(task.id, str) or not task.id:
        return f"id {task.id!r} is no text; give each task a unique string"
    if task.split != split:
        return f'split is {task.split!r}; a task from tasks("{split}") must say {split!r}'
    if not isinstance(task.prompt, list) or not task.prompt or not all(map(_is_message, task.prompt)):
        return 'prompt is no list of messages; give [{"role": "user", "content": "..."}]'
    if task.reference is None:
        return "a task without reference; give what verify compares with, or leave the task out"
    kept = [task.reference, dict(task.metadata)]
    try:
        crossed = json.loads(json.dumps(kept, allow_nan=False))
    except (TypeError, ValueError) as error:
        return f"reference and metadata must be plain JSON ({error})"
    # A tuple would reach a verifier in a worker as a list, and one in this process as a tuple.
    return "" if crossed == kept else "reference and metadata change on their way through JSON; use lists and text keys"


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str) and "content" in message


def _keys(env: Env, task: Task) -> list[tuple[OverlapKind, str]]:
    """The strictest first."""
    words = " ".join(str(message["content"]) for message in task.prompt).lower().split()
    try:
        canonical = env.canonical(task)
    except Exception as error:
        raise VeriwardError(f"env {env.name}: canonical of task {task.id} raised {described(error)}") from error
    return [
        ("exact", json.dumps(task.prompt, sort_keys=True)),
        ("normalised", " ".join(words)),
        ("canonical", canonical),
    ]
