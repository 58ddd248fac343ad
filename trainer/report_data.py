"""What a run folder holds, read for its page: tolerant of a run that is going, was cut off, or was resumed.

A line that cannot be read is counted and said on the page. Of steps written twice (a resume
repeats those after its checkpoint) the later line counts.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from sandbox.errors import VeriwardError
from trainer.config import GroupSettings

Row = dict[str, Any]
SHOWN_STEPS = 8
SHOWN_ROLLOUTS_PER_STEP = 6
LOOKED_AT_PER_STEP = 256


@dataclass
class RunRecord:
    """`train` and `evals` in the order of their steps; `rollouts` are a few of each of a few steps."""

    run: Path
    config_text: str = ""
    summary: Row = field(default_factory=dict)
    train: list[Row] = field(default_factory=list)
    evals: list[Row] = field(default_factory=list)
    rollouts: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_run(run: Path) -> RunRecord:
    """Raises VeriwardError when the folder is missing, unreadable or not a run."""
    if not run.is_dir():
        raise VeriwardError(f"{run}: no such folder; give a run folder, for example runs/<name>-<time>")
    try:
        if not (run / "config.toml").is_file():
            raise VeriwardError(
                f"{run}: not a run folder, it has no config.toml; give the folder `veriward train` named"
            )
        record = RunRecord(run, (run / "config.toml").read_text("utf-8", errors="replace"))
        record.summary = _read_summary(record)
        rows = list(_lines(record, run / "metrics.jsonl"))
        record.train = _latest_by(("step",), [row for row in rows if row.get("kind") == "train"])
        record.evals = _latest_by(("step", "split"), [row for row in rows if row.get("kind") == "eval"])
        record.rollouts = _some_rollouts(record)
        record.notes += _why_stopped(record)
    except OSError as error:
        raise VeriwardError(f"{error.filename or run}: cannot be read ({error.strerror})") from None
    return record


def number(value: Any) -> float | None:
    """The value if it is a finite number, else None: undefined."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _read_summary(record: RunRecord) -> Row:
    path = record.run / "summary.json"
    if not path.is_file():
        record.notes.append("The run has no summary yet: it is still going, or was interrupted.")
        return {}
    try:
        summary = json.loads(path.read_bytes())
    except ValueError:
        summary = None
    if not isinstance(summary, dict):
        record.notes.append("summary.json could not be read.")
        return {}
    return summary


def _why_stopped(record: RunRecord) -> list[str]:
    """What the record of a run without a summary shows of its end."""
    if record.summary:
        return []
    if not record.train:
        undefined = any(row.get("split") == "test" and row.get("pass@1", 0) is None for row in record.evals)
        return ["Stopped before training: no reply to a test task could be scored."] if undefined else []
    quiet = 0
    for row in reversed(record.train):
        if "optimizer/loss" in row or "groups/zero_signal_share" not in row:
            break
        quiet += 1
    return [f"Stopped: no group gave a signal for {quiet} steps."] if quiet >= _steps_without_signal(record) else []


def _steps_without_signal(record: RunRecord) -> int:
    """How many of them end the run."""
    try:
        found = tomllib.loads(record.config_text)["groups"]["max_steps_without_signal"]
    except (ValueError, KeyError, TypeError):
        found = None
    return found if isinstance(found, int) and found > 0 else GroupSettings().max_steps_without_signal


def _lines(record: RunRecord, path: Path) -> Iterator[Row]:
    if not path.is_file():
        record.notes.append(f"{path.name} is missing.")
        return
    unread = 0
    with path.open("rb") as file:
        for line in file:
            row = _row(line)
            if row is not None:
                yield row
            else:
                unread += 1
    if unread:
        record.notes.append(f"{path.name}: {unread} line{'s' if unread > 1 else ''} could not be read.")


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _latest_by(keys: tuple[str, ...], rows: list[Row]) -> list[Row]:
    latest = {tuple(str(row.get(key)) for key in keys): row for row in rows if number(row.get("step")) is not None}
    return sorted(latest.values(), key=lambda row: row["step"])


def _some_rollouts(record: RunRecord) -> list[Row]:
    """A few rollouts of the first, the last and evenly spaced steps between, as different as they come."""
    files = sorted((record.run / "rollouts").glob("step-*.jsonl"), key=_step_of)
    count = min(SHOWN_STEPS, len(files))
    chosen = {round(i * (len(files) - 1) / max(count - 1, 1)) for i in range(count)}
    return [row for index in sorted(chosen) for row in _varied(files[index])]


def _step_of(path: Path) -> int:
    digits = re.search(r"\d+", path.stem)
    return int(digits.group()) if digits else 0


def _varied(path: Path) -> list[Row]:
    """At most `SHOWN_ROLLOUTS_PER_STEP`, the statuses in turns, so that the rare ones are seen."""
    by_status: dict[str, list[Row]] = {}
    with path.open("rb") as file:
        for line in islice(file, LOOKED_AT_PER_STEP):
            if (row := _row(line)) is not None:
                by_status.setdefault(str(verdict_of(row).get("status")), []).append(row)
    in_turns = (row for turn in zip_longest(*by_status.values()) for row in turn if row is not None)
    return [{**row, "step": _step_of(path)} for row in islice(in_turns, SHOWN_ROLLOUTS_PER_STEP)]


def verdict_of(row: Row) -> Row:
    verdict = row.get("verdict")
    return verdict if isinstance(verdict, dict) else {}
