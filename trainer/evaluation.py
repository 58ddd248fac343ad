"""Held-out evaluation: pass@k with honest intervals, at temperature 1, and greedy beside it.

Greedy accuracy tells a real change from mere sharpening. Draws are named by (seed, task,
sample), so two models are asked with the same randomness on the same tasks.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from envs.base import Env, Split, Task
from envs.data import data_hash
from envs.registry import load_env
from envs.splits import check_tasks
from rewards.composition import RewardTerms
from sandbox.errors import ConfigError, VeriwardError
from trainer.blocking import run_blocking
from trainer.checkpoint import new_folder
from trainer.model import resolve_model
from trainer.passk import Estimate, estimate_pass_at_k
from trainer.provenance import cpu_seconds, model_hash, software_versions, source_commit
from trainer.records import Group, Rollout
from trainer.rollouts import Asker, Draw, asking
from trainer.threads import settle_threads
from trainer.unscored import Unscored

Progress = Callable[..., None]
TASKS_AT_ONCE = 64
ESTIMATE_PARTS = ("low", "high", "tasks", "undefined")


@dataclass
class EvalResult:
    """What an evaluation found. `pass_at_k` by k, `greedy` as a share of tasks, `unscored` by the causes'
    keys over both, with the full text of one each in `unscored_examples`. `rollouts` are the samples of pass@k."""

    env: str
    env_version: str
    split: str
    samples: int
    pass_at_k: dict[int, Estimate]
    greedy: Estimate
    unscored: dict[str, int]
    unscored_examples: dict[str, str] = field(default_factory=dict)
    rollouts: list[Rollout] = field(repr=False, default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)

    def estimates(self) -> dict[str, Estimate]:
        return {**{f"pass@{k}": estimate for k, estimate in self.pass_at_k.items()}, "greedy": self.greedy}

    def to_json(self) -> dict[str, Any]:
        return {
            "env": self.env,
            "env_version": self.env_version,
            "split": self.split,
            "samples": self.samples,
            **{name: estimate.to_json() for name, estimate in self.estimates().items()},
            "unscored": self.unscored,
            "unscored_examples": self.unscored_examples,
            **self.record,
        }


def evaluate(
    env: str | Env,
    model: str | Path,
    *,
    samples: int = 8,
    k: Sequence[int] | None = None,
    split: Split = "test",
    limit: int | None = None,
    temperature: float = 1.0,
    max_tokens: int = 64,
    seed: int = 0,
    env_options: dict[str, Any] | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> EvalResult:
    """Evaluate the model directory on a split; with `out`, write summary.json and results.jsonl there.

    samples: per task, at `temperature` (> 0). k: of pass@k, default 1 and `samples`. limit: the first
    so many tasks. Raises ConfigError for impossible settings, VeriwardError for a missing model or env,
    or when `out` cannot be written. Safe inside a running event loop.
    """
    k = sorted({1, samples}) if k is None else k
    _refuse_impossible(samples, k, limit, temperature)
    home = None if out is None else Path(out)
    if home is not None:
        _make_empty(home)
    loaded_env = load_env(env, **(env_options or {})) if isinstance(env, str) else env
    directory = resolve_model(str(model))
    tasks = check_tasks(loaded_env, [split])[split][:limit]
    settle_threads(directory)
    started, cpu_started = time.monotonic(), cpu_seconds()

    async def run() -> EvalResult:
        async with asking(loaded_env, directory, RewardTerms(), seed, max_tokens) as asker:
            return await evaluate_policy(asker, tasks, split, samples, k, temperature, progress)

    result = run_blocking(run())
    result.record = {
        "sampling": {"temperature": temperature, "max_tokens": max_tokens, "seed": seed},
        "env_options": env_options or {},
        "model": str(model),
        "model_hash": model_hash(directory),
        "data_hash": data_hash(loaded_env),
        "versions": software_versions(),
        "commit": source_commit(),
        "wall_s": round(time.monotonic() - started, 3),
        "cpu_s": round(cpu_seconds() - cpu_started, 3),
    }
    if home is not None:
        _write(result, home)
    return result


def _refuse_impossible(samples: int, k: Sequence[int], limit: int | None, temperature: float) -> None:
    if not k or max(k) > samples or min(k) < 1:
        raise ConfigError(f"k = {','.join(map(str, k))}: each k must be from 1 to samples = {samples}")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit = {limit}: must be 1 or more")
    if not 0 < temperature < math.inf:
        raise ConfigError(
            f"temperature = {temperature}: must be above 0 and finite; greedy accuracy is always reported beside pass@k"
        )


def _make_empty(out: Path) -> None:
    """The folder of the results, before any work is spent on them."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise ConfigError(f"{out}: not empty; give another folder")
    except OSError as error:
        raise ConfigError(f"{out}: no folder can be made there ({error.strerror}); give another") from None


async def evaluate_policy(
    asker: Asker,
    tasks: Sequence[Task],
    split: str,
    samples: int,
    k: Sequence[int],
    temperature: float = 1.0,
    progress: Progress | None = None,
    between: Callable[[], None] = lambda: None,
) -> EvalResult:
    """pass@k and greedy accuracy of the asker's policy on the tasks. `between` may raise to stop."""
    if not tasks:
        raise VeriwardError(f"env {asker.env.name}: split {split!r} has no tasks to evaluate")
    sampling, greedy_asker = replace(asker, stream=f"{split}/"), replace(asker, stream=f"{split}/greedy/")
    drawn: list[Group] = []
    greedy: list[Group] = []
    for start in range(0, len(tasks), TASKS_AT_ONCE):
        between()
        draws = [Draw(task, 0) for task in tasks[start : start + TASKS_AT_ONCE]]
        drawn += (await sampling.collect(draws, samples, temperature)).groups
        greedy += (await greedy_asker.collect(draws, 1, 0.0)).groups
        if progress:
            progress(f"evaluating {split}", min(start + TASKS_AT_ONCE, len(tasks)), len(tasks))
    rollouts, greedy_rollouts = (
        [rollout for group in groups for rollout in group.rollouts] for groups in (drawn, greedy)
    )
    unscored = Unscored.of((*rollouts, *greedy_rollouts))
    counts = [_counts(group) for group in drawn]
    return EvalResult(
        asker.env.name,
        asker.env.version,
        split,
        samples,
        {size: estimate_pass_at_k(counts, size, asker.seed) for size in k},
        estimate_pass_at_k([_counts(group) for group in greedy], 1, asker.seed),
        dict(unscored.counts),
        unscored.examples,
        rollouts,
    )


def _counts(group: Group) -> tuple[int, int]:
    """(scored, correct) of a group; a partial score is not correct."""
    scored = [rollout.verdict for rollout in group.rollouts if rollout.verdict and rollout.verdict.score is not None]
    return len(scored), sum(verdict.status == "correct" for verdict in scored)


def _write(result: EvalResult, out: Path) -> None:
    try:
        with new_folder(out) as folder:
            (folder / "summary.json").write_text(json.dumps(result.to_json(), indent=1))
            with (folder / "results.jsonl").open("w") as file:
                for rollout in result.rollouts:
                    file.write(json.dumps(rollout.to_json()) + "\n")
    except OSError as error:
        found = ", ".join(f"{name} {estimate.value:.3f}" for name, estimate in result.estimates().items())
        raise VeriwardError(f"{out}: the results ({found}) were not written ({error.strerror})") from error


def flat_metrics(result: EvalResult) -> dict[str, float | None]:
    """The estimates as metric lines carry them: pass@1, pass@1/low, pass@1/high, pass@1/tasks, ..., greedy, ..."""
    flat: dict[str, float | None] = {}
    for name, estimate in result.estimates().items():
        fields = estimate.to_json()
        flat |= {name: fields["value"], **{f"{name}/{part}": fields[part] for part in ESTIMATE_PARTS}}
    return flat
