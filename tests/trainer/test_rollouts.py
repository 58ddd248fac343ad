"""From draws to rewarded groups: kept apart, named apart, and nothing left running behind a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from envs.registry import load_env
from envs.verification import Verifier
from rewards.composition import RewardTerms
from rewards.verdict import Verdict
from sandbox.errors import VeriwardError
from tests.trainer.tiny import save_tiny
from trainer.config import GroupSettings
from trainer.dynamic_sampling import collect_step
from trainer.policy import Sample, SampleRequest
from trainer.records import Group, Rollout, Segment
from trainer.rollouts import Asker, Collected, Draw, asking, trainable
from trainer.schedule import TaskSchedule

ENV = str(Path(__file__).with_name("coin_env.py"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny("qwen2", tmp_path_factory.mktemp("model"))


@pytest.fixture
async def asker(model):
    async with asking(load_env(ENV, train_size=3), model, RewardTerms(), seed=0, max_tokens=6) as asker:
        yield asker


def tasks(asker):
    return list(asker.env.tasks("train"))


def tokens(group):
    return [tuple(rollout.segments[-1].token_ids) for rollout in group.rollouts]


async def test_the_same_task_twice_in_one_step_is_two_groups_with_their_own_draws(asker):
    """A train split smaller than tasks_per_step wraps into the next visit within a step."""
    draws = TaskSchedule(tasks(asker), seed=0).draw(7)
    groups = (await asker.collect(draws, 4, 1.0)).groups
    assert [(group.task_id, group.visit) for group in groups] == [(draw.task.id, draw.visit) for draw in draws]
    names = [(r.task_id, r.visit, r.sample) for group in groups for r in group.rollouts]
    assert len(set(names)) == 7 * 4
    assert len({reply for group in groups for reply in tokens(group)}) == 7 * 4


async def test_a_group_is_the_same_alone_and_among_others_and_other_under_another_stream(asker):
    one, two, _ = tasks(asker)
    together = (await asker.collect([Draw(one, 0), Draw(two, 0)], 3, 1.0)).groups
    alone = (await asker.collect([Draw(two, 0)], 3, 1.0)).groups
    assert tokens(alone[0]) == tokens(together[1])
    for other in (replace(asker, stream="dev/"), replace(asker, seed=1)):
        assert not set(tokens((await other.collect([Draw(two, 0)], 3, 1.0)).groups[0])) & set(tokens(alone[0]))


async def test_rewards_are_the_verdicts_and_tokens_are_as_sampled(asker):
    even, odd, _ = tasks(asker)
    for group, task in zip(
        (await asker.collect([Draw(even, 0), Draw(odd, 0)], 4, 1.0)).groups, (even, odd), strict=True
    ):
        for rollout in group.rollouts:
            assert rollout.segments[0].token_ids == asker.codec.render_prompt(asker.env.messages(task))
            assert rollout.text == asker.codec.decode_completion(rollout.segments[1].token_ids)
            assert rollout.reward == float(len(rollout.text) % 2 == task.reference) == rollout.verdict.score


class Breaks:
    """A policy that fails after its first sample."""

    async def sample(self, requests: Sequence[SampleRequest]) -> AsyncIterator[Sample]:
        yield Sample(requests[0].request_id, [1], [-1.0], [0], "stop")
        await asyncio.sleep(0)
        raise VeriwardError("the engine is gone")


class Waits(Verifier):
    was_cancelled = False

    async def verdict(self, task, reply):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise


async def test_when_sampling_fails_its_error_arrives_and_no_verdict_is_left_running(asker):
    verifier = Waits(asker.env)
    broken = Asker(asker.env, Breaks(), verifier, asker.codec, RewardTerms(), 0, 6)
    with pytest.raises(VeriwardError, match="the engine is gone"):
        await broken.collect([Draw(tasks(asker)[0], 0)], 2, 1.0)
    assert verifier.was_cancelled
    assert asyncio.all_tasks() == {asyncio.current_task()}


def group(*members):
    """(score or None, finish reason) of each member."""
    rollouts = []
    for number, (score, reason) in enumerate(members):
        verdict = Verdict.unscored("judge down\nsecond line") if score is None else Verdict.of(score)
        rollouts.append(Rollout("t", 0, number, [Segment([1]), Segment([2], [-1.0], [0])], reason, "", verdict, score))
    return Group("t", 0, rollouts)


def test_members_that_cannot_be_trained_leave_their_group_counted_by_cause():
    kept, discards = trainable(
        [group((1.0, "stop"), (None, "stop"), (0.0, "length")), group((None, "length"), (1.0, "stop"))]
    )
    assert [[rollout.sample for rollout in kept_group.rollouts] for kept_group in kept] == [[0, 2]]
    assert discards == {"unscored:judge_down": 2, "group_too_small": 1}


def test_masked_truncated_members_leave_before_a_signal_is_looked_for():
    """Else a group whose only contrast is a masked reply is trained at advantage zero and never replaced."""
    kept, discards = trainable([group((1.0, "stop"), (1.0, "stop"), (0.0, "length"))], mask_truncated=True)
    assert [rollout.reward for rollout in kept[0].rollouts] == [1.0, 1.0]
    assert discards == {"truncated": 1}


class Scripted:
    """Groups by the rewards they get, round by round; notes how many tasks each round asked."""

    def __init__(self, *rounds):
        self.rounds = iter(rounds)
        self.asked: list[int] = []

    async def collect(self, draws, group_size, temperature):
        self.asked.append(len(draws))
        return Collected([group(*((score, "stop") for score in scores)) for scores in next(self.rounds)])


def settings(**changes):
    return GroupSettings(**{"tasks_per_step": 3, "group_size": 2, **changes})


async def step(asker, mask_truncated=False, **changes):
    return await collect_step(asker, TaskSchedule([DRAWN], 0), settings(**changes), 1.0, mask_truncated, lambda: None)


DRAWN = next(iter(load_env(ENV).tasks("train")))


async def test_groups_all_alike_are_replaced_and_only_as_many_as_are_missing():
    asker = Scripted([(1, 0), (1, 1), (0, 0)], [(0, 0), (0, 1)], [(1, 0)])
    found = await step(asker)
    assert asker.asked == [3, 2, 1]
    assert [[r.reward for r in g.rollouts] for g in found.trained] == [[1, 0], [0, 1], [1, 0]]
    assert (found.groups_sampled, found.groups_without_signal, len(found.sampled)) == (6, 3, 12)
    assert found.discards == {"no_signal": 6}


async def test_the_search_for_a_signal_ends_after_max_rounds():
    """PrimeIntellect-ai/prime-rl#2353: it went on for ever."""
    asker = Scripted(*[[(1, 1)] * 3] * 2)
    found = await step(asker, max_rounds=2)
    assert (asker.asked, found.trained) == ([3, 3], [])


async def test_without_dynamic_sampling_one_round_is_all_and_every_scored_group_stays():
    asker = Scripted([(1, 1), (0, 0), (1, None)])
    found = await step(asker, dynamic_sampling=False)
    assert (asker.asked, len(found.trained), found.groups_without_signal) == ([3], 2, 2)
    assert found.discards == {"unscored:judge_down": 1, "group_too_small": 1}
