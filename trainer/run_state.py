"""Everything one run holds while it runs, and how it goes through a checkpoint.

The state beside the weights is a step, a cursor and a few counts; randomness needs none, since every
draw has a name. A checkpoint under another env, other tasks or another base model is refused.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from envs.base import Env, Split, Task
from envs.data import tasks_hash
from sandbox.errors import ConfigError
from trainer.checkpoint import CheckpointError, latest_checkpoint, list_checkpoints, read_state, save_checkpoint
from trainer.config import RunConfig
from trainer.evaluation import Progress
from trainer.interrupts import Interrupts
from trainer.learner import Learner
from trainer.provenance import cpu_seconds, model_hash
from trainer.rollouts import Asker
from trainer.run_folder import RunFolder
from trainer.schedule import TaskSchedule


@dataclass
class Run:
    """One run. `metrics_mark` is how long metrics.jsonl was when the last step was recorded."""

    config: RunConfig
    folder: RunFolder
    learner: Learner
    asker: Asker
    schedule: TaskSchedule
    held_out: dict[Split, list[Task]]
    identity: dict[str, str]
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
        """Seconds since the run began, over its resumes."""
        return self.wall_before_s + time.monotonic() - self.started

    def cpu_s(self) -> float:
        return self.cpu_before_s + cpu_seconds() - self.cpu_started

    def clock(self) -> dict[str, float]:
        return {"wall_s": round(self.wall_s(), 3), "cpu_s": round(self.cpu_s(), 3)}

    def save(self) -> None:
        """A checkpoint of the step just finished, unless there is one already."""
        home = self.folder.checkpoints
        if any(path.name == f"step-{self.step:06d}" for path in list_checkpoints(home)):
            return
        state = {
            "step": self.step,
            "cursor": self.schedule.cursor,
            "steps_without_signal": self.steps_without_signal,
            "metrics_bytes": self.metrics_mark,
            "wall_s": self.wall_s(),
            "cpu_s": self.cpu_s(),
            **self.identity,
        }
        save_checkpoint(home, self.step, state, self.learner.save, self.config.checkpoint.keep_last)

    async def restore(self) -> None:
        """Go back to the last checkpoint, with the record on disk cut back to it; to the beginning when there
        was none yet.

        Raises CheckpointError when it is damaged or belongs to something else, ConfigError when the run
        is further than the config asks; nothing on disk has changed then.
        """
        if not list_checkpoints(self.folder.checkpoints):
            self.folder.restart(self.config.checkpoint.every_steps)
            return
        checkpoint = latest_checkpoint(self.folder.checkpoints)
        state = read_state(checkpoint)
        for key, now in self.identity.items():
            if state.get(key) != now:
                raise CheckpointError(
                    f"{checkpoint}: made with {key} {state.get(key)}, but it is {now} now; "
                    "resume with what it was made with"
                )
        if state["step"] > self.config.steps:
            raise ConfigError(f"{checkpoint}: the run is at step {state['step']} already; give --steps above that")
        self.learner.load(checkpoint)
        self.step, self.schedule.cursor, self.metrics_mark = state["step"], state["cursor"], state["metrics_bytes"]
        self.steps_without_signal = state["steps_without_signal"]
        self.wall_before_s, self.cpu_before_s = state["wall_s"], state["cpu_s"]
        await self.asker.policy.publish(self.learner.weights(), self.step)
        self.folder.rewind(self.step, self.metrics_mark)
        self.folder.write_config(self.config)


def identity_of(env: Env, model: Path, tasks: Mapping[Split, Sequence[Task]]) -> dict[str, str]:
    """What a checkpoint belongs to: a resume under another is refused. The cursor counts train tasks, so
    these must be the same ones too (NVIDIA-NeMo/RL#2519 went on with other data)."""
    return {
        "env": env.name,
        "env_version": env.version,
        "data_hash": tasks_hash([*tasks["dev"], *tasks["test"]]),
        "train_hash": tasks_hash(tasks["train"]),
        "model_hash": model_hash(model),
    }
