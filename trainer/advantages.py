"""Group advantages: how much better a rollout did than its own group.

Each estimator is one pure function of a group's total rewards. A group whose rewards are all equal
gets exact zeros; equality is decided on the rewards themselves, since the float mean of eight 0.1
is not 0.1 and a tiny std then blows the rounding up (THUDM/slime#1674, NVIDIA-NeMo/RL#4161).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from trainer.algorithm import AdvantageName

STD_EPSILON = 1e-6


def is_constant(rewards: Sequence[float | None]) -> bool:
    """True when no reward differs from another, compared exactly; also for fewer than two."""
    return all(reward == rewards[0] for reward in rewards)


def is_zero_signal(outcome_scores: Sequence[float]) -> bool:
    """True when a group's outcomes teach nothing: nobody did better than anybody else.

    DAPO's dynamic sampling (arXiv 2503.14476, eq. 11) keeps a group only if some of it is right and
    some wrong. Pass outcome scores of the scored rollouts, not total rewards: shaping terms make an
    all-right group differ. For partial scores, any difference is a signal.
    """
    return is_constant(outcome_scores)


def grpo(rewards: Sequence[float]) -> list[float]:
    """(R - mean) / (std + 1e-6), std with n - 1 (arXiv 2402.03300; n - 1 and 1e-6 as in verl).

    Fixture: "grpo_adv [1,0,0,0] unbiased std eps1e-6".
    """
    centred = dr_grpo(rewards)
    if is_constant(rewards):
        return centred
    std = math.sqrt(math.fsum(value * value for value in centred) / (len(rewards) - 1))
    return [value / (std + STD_EPSILON) for value in centred]


def dr_grpo(rewards: Sequence[float]) -> list[float]:
    """R - mean, no division by std (arXiv 2503.20783). Fixture: "drgrpo_adv [1,0,0,0]"."""
    if is_constant(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def rloo(rewards: Sequence[float]) -> list[float]:
    """R - mean of the others (arXiv 2402.14740). Fixture: "rloo_adv [1,0,0,0] r - (sum-r)/(n-1)"."""
    if is_constant(rewards):
        return [0.0] * len(rewards)
    total = math.fsum(rewards)
    return [reward - (total - reward) / (len(rewards) - 1) for reward in rewards]


ESTIMATORS: Mapping[AdvantageName, Callable[[Sequence[float]], list[float]]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
}


def group_advantages(name: AdvantageName, rewards: Sequence[float | None]) -> list[float | None]:
    """One advantage for each rollout of a group; None stays None and is no part of the baseline.

    A rollout alone in its group has advantage 0: it was compared with nobody.
    """
    known = [reward for reward in rewards if reward is not None]
    advantages = iter(ESTIMATORS[name](known))
    return [None if reward is None else next(advantages) for reward in rewards]
