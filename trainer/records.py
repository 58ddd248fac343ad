"""A rollout as the trainer carries it: tokens as sampled, never re-tokenised.

A rollout is a list of segments, so that a tool's output (not sampled, not trained) can stand
between two sampled stretches. Every sampled token carries its log-prob and policy version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rewards.verdict import Verdict

FinishReason = Literal["stop", "length", "aborted"]


@dataclass
class Segment:
    """A stretch of token ids. `logprobs` and `policy_versions` have one entry a token when the
    stretch was sampled and are empty when it was given (prompt, tool output)."""

    token_ids: list[int]
    logprobs: list[float] = field(default_factory=list)
    policy_versions: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        lengths = {len(self.logprobs), len(self.policy_versions)}
        if lengths != {0} and lengths != {len(self.token_ids)}:
            raise ValueError(
                f"segment of {len(self.token_ids)} tokens has {len(self.logprobs)} log-probs and "
                f"{len(self.policy_versions)} policy versions; give one of each a token, or none"
            )

    @property
    def is_sampled(self) -> bool:
        return bool(self.logprobs)


@dataclass
class Rollout:
    """One attempt at a task. `visit` counts how often the run has drawn the task, `sample` is the
    index in its group; with the run seed they name the randomness of every token."""

    task_id: str
    visit: int
    sample: int
    segments: list[Segment]
    finish_reason: FinishReason
    text: str = ""
    verdict: Verdict | None = None
    reward: float | None = None
    reward_parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def completion_tokens(self) -> int:
        return sum(len(segment.token_ids) for segment in self.segments if segment.is_sampled)

    def to_json(self) -> dict[str, Any]:
        return {
            "task_id": self.task_id,
            "visit": self.visit,
            "sample": self.sample,
            "segments": [vars(segment) for segment in self.segments],
            "finish_reason": self.finish_reason,
            "text": self.text,
            "verdict": self.verdict.to_json() if self.verdict else None,
            "reward": self.reward,
            "reward_parts": dict(self.reward_parts),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Rollout:
        fields = dict(data)
        fields["segments"] = [Segment(**segment) for segment in fields["segments"]]
        fields["verdict"] = Verdict.from_json(fields["verdict"]) if fields["verdict"] else None
        return cls(**fields)


@dataclass
class Group:
    """The rollouts of one task, sampled together; the baseline is computed inside it."""

    task_id: str
    visit: int
    rollouts: list[Rollout]
