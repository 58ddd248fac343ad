"""From drawn tasks to verified, rewarded groups.

Samples are verified as they finish, while the rest are still being sampled. Text is rendered to
ids once and sampled ids are kept as sampled. An `unscored` rollout carries no reward: it is
counted by cause and leaves the group, and is never a zero in a baseline.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from envs.base import Env, Task
from envs.verification import Verifier, build_reply
from rewards.composition import RewardTerms, compose_reward
from trainer.codec import TextCodec
from trainer.local_policy import LocalPolicy
from trainer.policy import Policy, Sample, SampleRequest
from trainer.randomness import sample_key
from trainer.records import Group, Rollout, Segment
from trainer.unscored import cause_key


@dataclass(frozen=True)
class Draw:
    """A task as drawn: `visit` counts how often the run (or the named `stream`) has asked it."""

    task: Task
    visit: int


@dataclass
class Collected:
    """Groups in the order of their draws, and what became of the rest."""

    groups: list[Group]
    discards: Counter[str] = field(default_factory=Counter)
    sample_s: float = 0.0
    verify_s: float = 0.0


@dataclass(frozen=True)
class Asker:
    """The parts that turn a draw into a rewarded group. `stream` sets its randomness apart from
    other uses of the same tasks."""

    env: Env
    policy: Policy
    verifier: Verifier
    codec: TextCodec
    terms: RewardTerms
    seed: int
    max_tokens: int
    stream: str = ""

    async def collect(self, draws: Sequence[Draw], group_size: int, temperature: float) -> Collected:
        """group_size rollouts of each draw, verified and rewarded, in the order of the draws."""
        prompts = [self.codec.render_prompt(self.env.messages(draw.task)) for draw in draws]
        attempts = {f"{index}/{sample}": (index, sample) for index in range(len(draws)) for sample in range(group_size)}
        requests = [
            self._request(name, draws[index], sample, prompts[index], temperature)
            for name, (index, sample) in attempts.items()
        ]
        finished: dict[str, Rollout] = {}
        started = time.monotonic()
        try:
            async with asyncio.TaskGroup() as verifications:
                async for sampled in self.policy.sample(requests):
                    index, sample = attempts[sampled.request_id]
                    rollout = self._rollout(draws[index], sample, prompts[index], sampled)
                    finished[sampled.request_id] = rollout
                    verifications.create_task(self._judge(draws[index].task, rollout))
                sampled_at = time.monotonic()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the first stopped the rest; a group is no line for a person
        collected = Collected([], sample_s=sampled_at - started, verify_s=time.monotonic() - sampled_at)
        for index, draw in enumerate(draws):
            rollouts = [finished[f"{index}/{sample}"] for sample in range(group_size)]
            collected.groups.append(Group(draw.task.id, draw.visit, rollouts))
        return collected

    def _request(self, name: str, draw: Draw, sample: int, prompt: list[int], temperature: float) -> SampleRequest:
        key = sample_key(self.seed, f"{self.stream}{draw.task.id}", draw.visit, sample)
        return SampleRequest(name, tuple(prompt), self.max_tokens, temperature, key)

    def _rollout(self, draw: Draw, sample: int, prompt: list[int], sampled: Sample) -> Rollout:
        completion = Segment(sampled.token_ids, sampled.logprobs, sampled.policy_versions)
        text = self.codec.decode_completion(sampled.token_ids)
        segments = [Segment(list(prompt)), completion]
        return Rollout(draw.task.id, draw.visit, sample, segments, sampled.finish_reason, text)

    async def _judge(self, task: Task, rollout: Rollout) -> None:
        is_truncated = rollout.finish_reason == "length"
        reply = build_reply(self.env, rollout.text, self.env.messages(task), is_truncated)
        verdict = await self.verifier.verdict(task, reply)
        reward, parts = compose_reward(
            verdict, self.terms, completion_tokens=rollout.completion_tokens, max_tokens=self.max_tokens
        )
        rollout.verdict, rollout.reward, rollout.reward_parts = verdict, reward, parts


@asynccontextmanager
async def asking(
    env: Env, model: Path, terms: RewardTerms, seed: int, max_tokens: int, max_batch_rows: int = 512
) -> AsyncIterator[Asker]:
    """An asker over the model's own local policy; both it and the verifier end with the block."""
    with Verifier(env) as verifier:
        policy = LocalPolicy(model, max_batch_rows=max_batch_rows)
        try:
            codec = TextCodec(policy.tokenizer, policy.stop_ids)
            yield Asker(env, policy, verifier, codec, terms, seed, max_tokens)
        finally:
            await policy.close()


def trainable(groups: Sequence[Group], mask_truncated: bool = False) -> tuple[list[Group], Counter[str]]:
    """The groups' members that may be trained, and how many left by cause: unscored, or truncated
    where those are masked. A group left with fewer than two has no baseline and is dropped whole."""
    kept, discards = [], Counter[str]()
    for group in groups:
        causes = [_why_not_trained(rollout, mask_truncated) for rollout in group.rollouts]
        discards.update(cause for cause in causes if cause)
        members = [rollout for rollout, cause in zip(group.rollouts, causes, strict=True) if not cause]
        if len(members) >= 2:
            kept.append(Group(group.task_id, group.visit, members))
        elif members:
            discards["group_too_small"] += 1
    return kept, discards


def _why_not_trained(rollout: Rollout, mask_truncated: bool) -> str:
    if rollout.reward is None:
        return f"unscored:{cause_key(rollout.verdict.detail if rollout.verdict else '')}"
    return "truncated" if mask_truncated and rollout.finish_reason == "length" else ""
