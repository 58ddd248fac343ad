"""Groups with a signal: some right, some wrong.

A group whose outcomes are all alike teaches nothing about right and wrong, so it is never
trained and is replaced by another task, within a bound (DAPO, arXiv 2503.14476, section 3.2).
The test looks at outcome scores, not at total rewards, since shaping makes all-right groups
differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from envs.base import Task
from trainer.advantages import is_zero_signal
from trainer.config import GroupSettings
from trainer.records import Group, Rollout
from trainer.rollouts import Asker, trainable
from trainer.schedule import TaskSchedule


@dataclass
class StepGroups:
    """What one step sampled. `sampled` is everything asked for, the basis of the step's metrics;
    `trained` is what the filter left; `discards` counts the difference in rollouts, by cause."""

    trained: list[Group] = field(default_factory=list)
    tasks: dict[str, Task] = field(default_factory=dict)
    sampled: list[Rollout] = field(default_factory=list)
    groups_sampled: int = 0
    groups_without_signal: int = 0
    discards: Counter[str] = field(default_factory=Counter)
    sample_s: float = 0.0
    verify_s: float = 0.0


async def collect_step(
    asker: Asker,
    schedule: TaskSchedule,
    settings: GroupSettings,
    temperature: float,
    mask_truncated: bool,
    between: Callable[[], None],
) -> StepGroups:
    """tasks_per_step groups, or fewer when max_rounds did not find as many with a signal.

    Each round asks exactly as many tasks as are missing, so no good group is thrown away. With
    mask_truncated a group's signal is looked for among the replies that will be trained.
    `between` is called before every round and may raise to stop.
    """
    step = StepGroups()
    rounds = settings.max_rounds if settings.dynamic_sampling else 1
    for _ in range(rounds):
        missing = settings.tasks_per_step - len(step.trained)
        if missing == 0:
            break
        between()
        draws = schedule.draw(missing)
        collected = await asker.collect(draws, settings.group_size, temperature)
        step.tasks.update({draw.task.id: draw.task for draw in draws})
        step.sample_s += collected.sample_s
        step.verify_s += collected.verify_s
        step.groups_sampled += len(collected.groups)
        step.sampled += [rollout for group in collected.groups for rollout in group.rollouts]
        groups, discards = trainable(collected.groups, mask_truncated)
        step.discards.update(discards)
        for group in groups:
            if is_zero_signal([_outcome(rollout) for rollout in group.rollouts]):
                step.groups_without_signal += 1
                if settings.dynamic_sampling:
                    step.discards["no_signal"] += len(group.rollouts)
                    continue
            step.trained.append(group)
    return step


def _outcome(rollout: Rollout) -> float:
    score = rollout.verdict.score if rollout.verdict else None
    assert score is not None, "unscored rollouts leave before"
    return score
