"""Where shipped data lies, how frozen rows are read, and the hash that records name them by.

The same call works in a clone, where the folders are `datasets/` and `models/`, and in an
installed wheel, where they are package data under `veriward/`. A folder called `datasets` beside
an installed `envs` is Hugging Face's package, so the wheel's place is looked at first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from envs.base import Env, Split, Task
from envs.splits import read_split
from sandbox.errors import VeriwardError

_SHELF = Path(__file__).resolve().parent.parent


def data_root(kind: Literal["datasets", "models"]) -> Path:
    """The folder of shipped data. Raises VeriwardError when neither a clone nor a wheel has it."""
    installed, cloned = _SHELF / "veriward" / f"_{kind}", _SHELF / kind
    for place in (installed, cloned):
        if place.is_dir():
            return place
    raise VeriwardError(f"the shipped {kind} are missing: neither {installed} nor {cloned} exists; reinstall veriward")


def read_tasks(path: Path) -> Iterator[Task]:
    """The tasks of a JSONL file, one JSON object a line with the fields of `Task`.

    Raises VeriwardError naming file and line for anything else.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise VeriwardError(f"cannot read tasks from {path}: {error.strerror}; check the path") from error
    for number, line in enumerate(lines, start=1):
        try:
            yield Task.from_json(json.loads(line))
        except (ValueError, TypeError) as error:
            raise VeriwardError(f"{path}, line {number}: not a task ({error}); one JSON object a line") from error


def task_line(task: Task) -> str:
    """One JSONL line, newline included: the form that is frozen and hashed."""
    return json.dumps(task.to_json(), separators=(",", ":")) + "\n"


def tasks_hash(tasks: Iterable[Task]) -> str:
    """sha256, in hex, of the tasks' JSONL lines."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(task_line(task).encode())
    return digest.hexdigest()


def data_hash(env: Env, splits: Iterable[Split] = ("dev", "test")) -> str:
    """sha256, in hex, of what the env asks in these splits, in order.

    For an env with frozen rows the default is `cat dev.jsonl test.jsonl | sha256sum`; it works for
    any env, so a record made with other held-out tasks never carries the same hash.
    """
    return tasks_hash(task for split in splits for task in read_split(env, split))


def frozen_tasks(name: str, split: Split) -> Iterator[Task]:
    """The frozen rows of a shipped env."""
    return read_tasks(data_root("datasets") / name / f"{split}.jsonl")
