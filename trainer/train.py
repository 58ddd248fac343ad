"""One training run, from a config to a summary: sample, verify, filter, learn, publish, again.

The order of effects is the order on the page. A run stops only between steps, leaves a
checkpoint when it does, and goes on from one as if it had never stopped.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.base import Env, Split
from envs.data import data_root
from envs.registry import load_env
from envs.splits import check_disjoint, check_tasks
from sandbox.errors import VeriwardError
from trainer.batch import build_batch
from trainer.blocking import run_blocking
from trainer.config import RunConfig, config_from, load_config
from trainer.dynamic_sampling import StepGroups, collect_step
from trainer.evaluation import ESTIMATE_PARTS, EvalResult, Progress, evaluate_policy, flat_metrics
from trainer.interrupts import Interrupts
from trainer.learner import Learner
from trainer.metrics import step_metrics
from trainer.model import resolve_model
from trainer.provenance import software_versions, source_commit
from trainer.report import write_report
from trainer.rollouts import asking
from trainer.run_folder import RunFolder, default_folder
from trainer.run_state import Run, identity_of
from trainer.schedule import TaskSchedule
from trainer.threads import settle_threads
from trainer.unscored import Unscored, told


@dataclass(frozen=True)
class RunSummary:
    """What a finished run reached. `fields` is what summary.json holds."""

    run: Path
    report: Path
    fields: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"run": str(self.run), "report": str(self.report), **self.fields}


def train(
    source: RunConfig | str | Path,
    out: Path | str | None = None,
    *,
    overrides: Sequence[str] = (),
    progress: Progress | None = None,
) -> RunSummary:
    """Train as `source` says, in a new folder `out` (default runs/<name>-<time>); blocks.

    source: what `veriward train` takes: a preset, a .toml file, or an env (name, package.module:Class,
    path); or a RunConfig. overrides: `section.key=value`, as `--set` takes them.

    Raises ConfigError before anything starts, VeriwardError when the run cannot go on, RunInterrupted
    when it was asked to stop; the run is then resumable.
    """
    config = load_config(source, overrides)
    home = Path(out) if out is not None else default_folder(config)

    @contextmanager
    def new_run(lasting: RunConfig) -> Iterator[RunFolder]:
        folder = RunFolder.create(home, lasting)
        with folder.held():
            yield folder

    return run_blocking(_train(config, new_run, progress))


def resume(run: Path | str, *, steps: int | None = None, progress: Progress | None = None) -> RunSummary:
    """Go on from the run's last checkpoint, to `steps` in all (default: as configured); blocks. A run that
    was stopped before its first checkpoint begins again.

    Raises CheckpointError when no checkpoint can be trusted or it belongs to another model or env,
    VeriwardError when the run is finished, or another process works on it.
    """
    folder, config = RunFolder.open(Path(run))
    if steps is not None:
        config = config_from({**config.model_dump(), "steps": steps}, f"resume {run} --steps {steps}")
    if config.steps <= (done := folder.finished_steps()):
        raise VeriwardError(f"{run}: finished, it is at step {done} already; give --steps above that to go on")

    @contextmanager
    def same_run(lasting: RunConfig) -> Iterator[RunFolder]:
        with folder.held():
            yield folder

    return run_blocking(_train(config, same_run, progress))


async def _train(
    config: RunConfig,
    open_run: Callable[[RunConfig], AbstractContextManager[RunFolder]],
    progress: Progress | None,
) -> RunSummary:
    env = load_env(config.env.name, **config.env.options)
    tasks = check_tasks(env)
    check_disjoint(env, tasks)
    directory = resolve_model(config.policy.model)
    settle_threads(directory)
    limits: dict[Split, int] = {"dev": config.evaluation.dev_tasks, "test": config.evaluation.test_tasks}
    sampling = config.policy
    async with asking(
        env, directory, config.rewards, config.seed, sampling.max_tokens, sampling.max_batch_rows
    ) as asker:
        learner = Learner(directory, config.algorithm, config.optimizer)
        lasting = _lasting(config, env, directory)
        with Interrupts() as interrupts, open_run(lasting) as folder:
            run = Run(
                config=lasting,
                folder=folder,
                learner=learner,
                asker=asker,
                schedule=TaskSchedule(tasks["train"], config.seed),
                held_out={split: tasks[split][:limit] for split, limit in limits.items()},
                identity=identity_of(env, directory, tasks),
                interrupts=interrupts,
                progress=progress or (lambda *_args, **_kwargs: None),
            )
            interrupts.run = folder.path
            await run.restore()
            return await _run_to_the_end(run)


def _lasting(config: RunConfig, env: Env, directory: Path) -> RunConfig:
    """The config with its paths absolute, so that the run can be resumed from any folder."""
    assert env.spec is not None, "load_env says what it loaded"
    model = config.policy.model if directory == data_root("models") / config.policy.model else str(directory.resolve())
    return config.model_copy(
        update={
            "env": config.env.model_copy(update={"name": env.spec.name}),
            "policy": config.policy.model_copy(update={"model": model}),
        }
    )


async def _run_to_the_end(run: Run) -> RunSummary:
    config = run.config
    with run.interrupts.leaving_a_checkpoint(run.save, run.folder.path):
        if run.step == 0:
            _refuse_unscored(run, await _evaluate(run, "test"))
        while run.step < config.steps:
            if run.step % config.evaluation.every_steps == 0:
                await _evaluate(run, "dev")
            await _train_one_step(run)
            if run.step % config.checkpoint.every_steps == 0 or run.step == config.steps:
                run.save()
        await _evaluate(run, "dev")
        after = await _evaluate(run, "test")
    return _finish(run, after)


def _refuse_unscored(run: Run, result: EvalResult) -> None:
    """A verifier that could score nothing before the first step will not do so after it."""
    if any(found.tasks for found in result.estimates().values()):
        return
    causes = Unscored(Counter(result.unscored), result.unscored_examples)
    raise VeriwardError(
        f"{run.folder.path}: stopped before training, no reply to a test task could be scored "
        f"({told(causes, run.asker.env)})"
    )


async def _train_one_step(run: Run) -> None:
    config, cursor = run.config, run.schedule.cursor
    started = time.monotonic()
    try:
        groups = await collect_step(
            run.asker,
            run.schedule,
            config.groups,
            config.policy.temperature,
            config.algorithm.mask_truncated,
            run.interrupts.check,
        )
    except BaseException:
        run.schedule.cursor = cursor
        raise
    learned: dict[str, float] = {}
    learn_started = time.monotonic()
    batch = build_batch(groups.trained, config.algorithm, config.policy.temperature)
    if batch.has_signal:
        learned = run.learner.step(batch)
        run.steps_without_signal = 0
    else:
        run.steps_without_signal += 1
    run.step += 1
    # Unchanged weights too: the version is then the step, and a resumed run labels its tokens alike.
    await run.asker.policy.publish(run.learner.weights(), run.step)
    now = time.monotonic()
    _record(run, groups, step_metrics(groups, learned, now - learn_started, now - started))
    if run.steps_without_signal >= config.groups.max_steps_without_signal:
        run.save()
        raise VeriwardError(_no_signal(run, groups))


def _record(run: Run, groups: StepGroups, metrics: dict[str, float]) -> None:
    line = {"kind": "train", "step": run.step, **run.clock(), **metrics}
    run.folder.append_metrics(line)
    run.metrics_mark = run.folder.metrics_bytes()
    prompts = {name: run.asker.env.messages(task) for name, task in groups.tasks.items()}
    run.folder.write_rollouts(
        run.step, ({**rollout.to_json(), "prompt": prompts[rollout.task_id]} for rollout in groups.sampled)
    )
    run.progress("training", run.step, run.config.steps, f"reward {metrics['reward/mean']:.3f}")


def _no_signal(run: Run, groups: StepGroups) -> str:
    page = f"see `veriward report {shlex.quote(str(run.folder.path))}`"
    scores = [r.verdict.score for r in groups.sampled if r.verdict and r.verdict.score is not None]
    if not scores:
        causes = told(Unscored.of(groups.sampled), run.asker.env)
        return f"{run.folder.path}: stopped, no rollout of the last step could be scored ({causes}); {page}"
    mean = sum(scores) / len(scores)
    remedy = "give harder tasks" if mean > 0.5 else "give easier tasks, a stronger model or a longer policy.max_tokens"
    if groups.discards["truncated"] > len(groups.sampled) / 2:
        remedy = "most replies are truncated and masked, so give a longer policy.max_tokens"
    return (
        f"{run.folder.path}: stopped, no group had both better and worse rollouts for {run.steps_without_signal} "
        f"steps (mean outcome {mean:.2f}), so there is nothing to learn from; {remedy}; {page}"
    )


async def _evaluate(run: Run, split: Split) -> EvalResult:
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
    line = {"kind": "eval", "step": run.step, "split": split, **run.clock(), **flat_metrics(result)}
    run.folder.append_metrics(line)
    return result


def _unscored(lines: Sequence[Mapping[str, Any]], after: EvalResult) -> dict[str, int]:
    """Replies without a score by cause, over all steps and the last evaluation."""
    counts = Counter(after.unscored)
    for line in lines:
        for name, count in line.items():
            if name.startswith("discards/unscored:"):
                counts[name.removeprefix("discards/unscored:")] += count
    return dict(counts.most_common())


def _finish(run: Run, after: EvalResult) -> RunSummary:
    lines = run.folder.read_metrics()
    before = next(line for line in lines if line["kind"] == "eval" and line["split"] == "test")
    names = list(after.estimates())
    fields = {
        **run.identity,
        "env_options": dict(run.config.env.options),
        "model": run.config.policy.model,
        "seed": run.config.seed,
        "steps": run.step,
        "split": "test",
        "before": {
            name: {"value": before[name], **{part: before.get(f"{name}/{part}") for part in ESTIMATE_PARTS}}
            for name in names
            if name in before  # evaluation.k may have been edited between two parts of a run
        },
        "after": {name: estimate.to_json() for name, estimate in after.estimates().items()},
        "test_tasks": len(run.held_out["test"]),
        "samples": run.config.evaluation.samples,
        "unscored": _unscored(lines, after),
        "wall_s": round(run.wall_s(), 1),
        "cpu_s": round(run.cpu_s(), 1),
        "versions": software_versions(),
        "commit": source_commit(),
    }
    run.folder.write_summary(fields)
    return RunSummary(run.folder.path, write_report(run.folder.path), fields)
