"""What a step is watched by: one flat dictionary a step, named room/figure with units at the end.

Rewards, lengths and truncation are over everything sampled, before the zero-signal filter, so
that the filter cannot make a run look better than it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from trainer.dynamic_sampling import StepGroups
from trainer.records import Rollout

_LEARNED = {
    "entropy": "policy/entropy",
    "clip_fraction": "policy/clip_share",
    "ratio_mean": "policy/ratio_mean",
    "sampler_kl": "policy/sampler_kl",
    "mismatch_k3_mean": "policy/mismatch_k3_mean",
    "mismatch_k3_max": "policy/mismatch_k3_max",
    "mismatch_probability_error": "policy/mismatch_probability_error",
    "loss": "optimizer/loss",
    "grad_norm": "optimizer/grad_norm",
    "lr": "optimizer/lr",
    "trained_tokens": "optimizer/trained_tokens",
    "optimizer_steps": "optimizer/steps",
}


def step_metrics(groups: StepGroups, learned: Mapping[str, float], learn_s: float, step_s: float) -> dict[str, float]:
    """Figures of one step; `learned` is what the learner measured, empty when it did not move."""
    sampled = groups.sampled
    scored = [rollout for rollout in sampled if rollout.reward is not None]
    lengths = [rollout.completion_tokens for rollout in sampled]
    return {
        "reward/mean": _mean(rollout.reward for rollout in scored if rollout.reward is not None),
        **_reward_parts(scored),
        **_verdict_shares(sampled),
        "groups/sampled": groups.groups_sampled,
        "groups/trained": len(groups.trained),
        "groups/zero_signal_share": groups.groups_without_signal / max(groups.groups_sampled, 1),
        "completion/length_mean": _mean(lengths),
        "completion/length_max": max(lengths, default=0),
        "completion/truncated_share": _mean(rollout.finish_reason == "length" for rollout in sampled),
        **{f"discards/{cause}": count for cause, count in sorted(groups.discards.items())},
        **{_LEARNED[name]: value for name, value in learned.items()},
        "time/sample_s": groups.sample_s,
        "time/verify_s": groups.verify_s,
        "time/learn_s": learn_s,
        "time/step_s": step_s,
        "throughput/tokens_per_s": sum(lengths) / step_s if step_s > 0 else math.nan,
    }


def _reward_parts(scored: Sequence[Rollout]) -> dict[str, float]:
    names = sorted({name for rollout in scored for name in rollout.reward_parts})
    return {f"reward/{name}": _mean(rollout.reward_parts.get(name, 0.0) for rollout in scored) for name in names}


def _verdict_shares(sampled: Sequence[Rollout]) -> dict[str, float]:
    counts = Counter(rollout.verdict.status for rollout in sampled if rollout.verdict)
    return {f"verdict/{status}_share": count / len(sampled) for status, count in sorted(counts.items())}


def _mean(values: Iterable[float]) -> float:
    numbers = [float(value) for value in values]
    return math.fsum(numbers) / len(numbers) if numbers else math.nan
