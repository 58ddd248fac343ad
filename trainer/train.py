"""One training run, from a config to a summary: sample, verify, filter, learn, publish, again.

The order of effects is the order on the page. A run stops only between steps, leaves a
checkpoint when it does, and goes on from one as if it had never stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envs.base import Env, Split, Task
from envs.data import data_hash
from envs.registry import load_env
from envs.splits import check_disjoint, check_tasks
from envs.verification import Verifier
from sandbox.errors import ConfigError, VeriwardError
from trainer.advantages import is_constant
from trainer.batch import build_batch
from trainer.blocking import run_blocking
from trainer.checkpoint import CheckpointError, latest_checkpoint, list_checkpoints, read_state, save_checkpoint
from trainer.codec import TextCodec
from trainer.config import RunConfig, config_from
from trainer.dynamic_sampling import StepGroups, collect_step
from trainer.evaluation import EvalResult, evaluate_policy, flat_metrics
from trainer.interrupts import Interrupts
from trainer.learner import Learner
from trainer.local_policy import LocalPolicy
from trainer.metrics import step_metrics
from trainer.model import resolve_model
from trainer.provenance import cpu_seconds, model_hash, software_versions, source_commit
from trainer.report import write_report
from trainer.rollouts import Asker
from trainer.run_folder import RunFolder, default_folder
from trainer.schedule import TaskSchedule
from trainer.threads import settle_threads

Progress = Callable[..., None]


@dataclass(frozen=True)
class RunSummary:
    """What a finished run reached. `fields` is what summary.json holds."""

    run: Path
    report: Path
    fields: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"run": str(self.run), "report": str(self.report), **self.fields}


@dataclass
class _Run:
    """Everything one run holds while it runs."""

    config: RunConfig
    folder: RunFolder
    env: Env
    policy: LocalPolicy
    learner: Learner
    asker: Asker
    schedule: TaskSchedule
    held_out: dict[Split, list[Task]]
    identity: dict[str, Any]
    interrupts: Interrupts
    progress: Progress
    step: int = 0
    steps_without_signal: int = 0
    metrics_mark: int = 0
    wall_before_s: float = 0.0
    cpu_before_s: float = 0.0
    started: float = field(default_factory=time.monotonic)
    cpu_started: float = field(default_factory=cpu_seconds)

    def wall_s(self) -> float:
        return self.wall_before_s + time.monotonic() - self.started

    def cpu_s(self) -> float:
        return self.cpu_before_s + cpu_seconds() - self.cpu_started


def train(config: RunConfig, out: Path | str | None = None, *, progress: Progress | None = None) -> RunSummary:
    """Train from the config's model in a new folder `out` (default runs/<name>-<time>); blocks.

    Raises ConfigError before anything starts, VeriwardError when the run cannot go on, RunInterrupted
    when it was asked to stop; the run is then resumable.
    """
    home = Path(out) if out is not None else default_folder(config)

    def open_folder() -> RunFolder:
        return RunFolder.create(home, config)

    return run_blocking(_train(config, open_folder, None, progress))


def resume(run: Path | str, *, steps: int | None = None, progress: Progress | None = None) -> RunSummary:
    """Go on from the run's last checkpoint, to `steps` in all (default: as configured); blocks.

    Raises CheckpointError when no checkpoint can be trusted or it belongs to another model or env.
    """
    folder, config = RunFolder.open(Path(run))
    if steps is not None:
        config = config_from({**config.model_dump(), "steps": steps}, f"resume {run} --steps {steps}")
    checkpoint = latest_checkpoint(folder.checkpoints)

    def open_folder() -> RunFolder:
        (folder.path / "config.toml").write_text(config.to_toml())
        return folder

    return run_blocking(_train(config, open_folder, checkpoint, progress))


async def _train(
    config: RunConfig, open_folder: Callable[[], RunFolder], checkpoint: Path | None, progress: Progress | None
) -> RunSummary:
    env = load_env(config.env.name, **config.env.options)
    tasks = check_tasks(env)
    check_disjoint(env, tasks)
    directory = resolve_model(config.policy.model)
    settle_threads(directory)
    policy = LocalPolicy(directory, max_batch_rows=config.policy.max_batch_rows)
    verifier = Verifier(env)
    asker = Asker(
        env,
        policy,
        verifier,
        TextCodec(policy.tokenizer, policy.stop_ids),
        config.rewards,
        config.seed,
        config.policy.max_tokens,
    )
    limits: dict[Split, int] = {"dev": config.evaluation.dev_tasks, "test": config.evaluation.test_tasks}
    try:
        learner = Learner(directory, config.algorithm, config.optimizer)
        with Interrupts() as interrupts:
            run = _Run(
                config=config,
                folder=open_folder(),
                env=env,
                policy=policy,
                learner=learner,
                asker=asker,
                schedule=TaskSchedule(tasks["train"], config.seed),
                held_out={split: tasks[split][:limit] for split, limit in limits.items()},
                identity=_identity(env, directory),
                interrupts=interrupts,
                progress=progress or (lambda *_args, **_kwargs: None),
            )
            if checkpoint is not None:
                await _restore(run, checkpoint)
            return await _run_to_the_end(run)
    finally:
        verifier.close()
        await policy.close()


def _identity(env: Env, directory: Path) -> dict[str, Any]:
    """What a checkpoint belongs to: a resume under another is refused."""
    return {
        "env": env.name,
        "env_version": env.version,
        "data_hash": data_hash(env),
        "model_hash": model_hash(directory),
    }


async def _run_to_the_end(run: _Run) -> RunSummary:
    config = run.config
    with run.interrupts.leaving_a_checkpoint(lambda: _save(run), run.folder.path):
        if run.step == 0:
            await _evaluate(run, "test")
        while run.step < config.steps:
            if run.step % config.evaluation.every_steps == 0:
                await _evaluate(run, "dev")
            await _train_one_step(run)
            if run.step % config.checkpoint.every_steps == 0 or run.step == config.steps:
                _save(run)
        await _evaluate(run, "dev")
        after = await _evaluate(run, "test")
    return _finish(run, after)


async def _train_one_step(run: _Run) -> None:
    config, cursor = run.config, run.schedule.cursor
    started = time.monotonic()
    try:
        groups = await collect_step(
            run.asker, run.schedule, config.groups, config.policy.temperature, run.interrupts.check
        )
    except BaseException:
        run.schedule.cursor = cursor
        raise
    learned: dict[str, float] = {}
    learn_started = time.monotonic()
    if any(not is_constant([rollout.reward for rollout in group.rollouts]) for group in groups.trained):
        batch = build_batch(groups.trained, config.algorithm, config.policy.temperature)
        learned = run.learner.step(batch)
        await run.policy.publish(run.learner.weights(), run.step + 1)
        run.steps_without_signal = 0
    else:
        run.steps_without_signal += 1
    run.step += 1
    now = time.monotonic()
    _record(run, groups, step_metrics(groups, learned, now - learn_started, now - started))
    if run.steps_without_signal >= config.groups.max_steps_without_signal:
        _save(run)
        raise VeriwardError(_no_signal(run, groups))


def _record(run: _Run, groups: StepGroups, metrics: dict[str, float]) -> None:
    line = {"kind": "train", "step": run.step, **_clock(run), **metrics}
    run.folder.append_metrics(line)
    run.metrics_mark = run.folder.metrics_bytes()
    prompts = {name: run.env.messages(task) for name, task in groups.tasks.items()}
    run.folder.write_rollouts(
        run.step, ({**rollout.to_json(), "prompt": prompts[rollout.task_id]} for rollout in groups.sampled)
    )
    run.progress("training", run.step, run.config.steps, f"reward {metrics['reward/mean']:.3f}")


def _no_signal(run: _Run, groups: StepGroups) -> str:
    scores = [r.verdict.score for r in groups.sampled if r.verdict and r.verdict.score is not None]
    if not scores:
        causes = "; ".join(cause for cause, _ in groups.discards.most_common(3))
        return f"{run.folder.path}: stopped, no rollout of the last step could be scored ({causes})"
    mean = sum(scores) / len(scores)
    remedy = "give harder tasks" if mean > 0.5 else "give easier tasks, a stronger model or a longer policy.max_tokens"
    return (
        f"{run.folder.path}: stopped, no group had both better and worse rollouts for {run.steps_without_signal} "
        f"steps (mean outcome {mean:.2f}), so there is nothing to learn from; {remedy}"
    )


async def _evaluate(run: _Run, split: Split) -> EvalResult:
    settings = run.config.evaluation
    result = await evaluate_policy(
        run.asker,
        run.held_out[split],
        split,
        settings.samples,
        settings.k,
        progress=run.progress,
        between=run.interrupts.check,
    )
    line = {"kind": "eval", "step": run.step, "split": split, **_clock(run), **flat_metrics(result)}
    run.folder.append_metrics(line)
    return result


def _clock(run: _Run) -> dict[str, float]:
    """Seconds since the run began, over its resumes."""
    return {"wall_s": round(run.wall_s(), 3), "cpu_s": round(run.cpu_s(), 3)}


def _save(run: _Run) -> None:
    if any(path.name == f"step-{run.step:06d}" for path in list_checkpoints(run.folder.checkpoints)):
        return
    state = {
        "step": run.step,
        "cursor": run.schedule.cursor,
        "steps_without_signal": run.steps_without_signal,
        "metrics_bytes": run.metrics_mark,
        "wall_s": run.wall_s(),
        "cpu_s": run.cpu_s(),
        **run.identity,
    }
    save_checkpoint(run.folder.checkpoints, run.step, state, run.learner.save, run.config.checkpoint.keep_last)


async def _restore(run: _Run, checkpoint: Path) -> None:
    state = read_state(checkpoint)
    for key, now in run.identity.items():
        if state[key] != now:
            raise CheckpointError(
                f"{checkpoint}: made with {key} {state[key]}, but it is {now} now; resume with what it was made with"
            )
    if state["step"] > run.config.steps:
        raise ConfigError(f"{checkpoint}: the run is at step {state['step']} already; give --steps above that")
    run.learner.load(checkpoint)
    run.step, run.schedule.cursor, run.metrics_mark = state["step"], state["cursor"], state["metrics_bytes"]
    run.steps_without_signal = state["steps_without_signal"]
    run.wall_before_s, run.cpu_before_s = state["wall_s"], state["cpu_s"]
    await run.policy.publish(run.learner.weights(), run.step)
    run.folder.rewind(run.step, state["metrics_bytes"])


def _finish(run: _Run, after: EvalResult) -> RunSummary:
    before = next(line for line in run.folder.read_metrics() if line["kind"] == "eval" and line["split"] == "test")
    names = list(after.estimates())
    fields = {
        **run.identity,
        "seed": run.config.seed,
        "steps": run.step,
        "split": "test",
        "before": {
            name: {"value": before[name], "low": before[f"{name}/low"], "high": before[f"{name}/high"]}
            for name in names
        },
        "after": {name: estimate.to_json() for name, estimate in after.estimates().items()},
        "test_tasks": len(run.held_out["test"]),
        "samples": run.config.evaluation.samples,
        "wall_s": round(run.wall_s(), 1),
        "cpu_s": round(run.cpu_s(), 1),
        "versions": software_versions(),
        "commit": source_commit(),
    }
    run.folder.write_summary(fields)
    return RunSummary(run.folder.path, write_report(run.folder.path), fields)
