"""Group advantages reproduce published numbers and see equal rewards as equal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.advantages import dr_grpo, group_advantages, grpo, is_constant, is_zero_signal, rloo

_REWARD = st.floats(-10, 10, allow_nan=False)
_NAMES = st.sampled_from(["grpo", "dr_grpo", "rloo"])


@pytest.mark.parametrize(
    ("estimator", "rewards", "key"),
    [
        (grpo, [1, 0, 0, 0], "grpo_adv [1,0,0,0] unbiased std eps1e-6"),
        (grpo, [1, 1, 0, 0], "grpo_adv [1,1,0,0] unbiased std eps1e-6"),
        (dr_grpo, [1, 0, 0, 0], "drgrpo_adv [1,0,0,0]"),
        (rloo, [1, 0, 0, 0], "rloo_adv [1,0,0,0] r - (sum-r)/(n-1)"),
    ],
)
def test_estimators_reproduce_the_fixtures(shared_data, estimator, rewards, key):
    expected = json.loads(shared_data("fixtures/trainer_math.json").read_text())[key]
    assert estimator(rewards) == pytest.approx(expected, abs=1e-9)


@given(_NAMES, _REWARD, st.integers(1, 16))
def test_equal_rewards_have_exactly_zero_advantage(name, reward, size):
    """THUDM/slime#1674, NVIDIA-NeMo/RL#4161: the mean of eight 0.1 is not 0.1, and a tiny std blew that up."""
    assert group_advantages(name, [reward] * size) == [0.0] * size


@given(_NAMES, st.lists(_REWARD, min_size=2, max_size=16))
def test_advantages_sum_to_zero_and_keep_the_order_of_rewards(name, rewards):
    advantages = group_advantages(name, rewards)
    assert sum(advantages) == pytest.approx(0, abs=1e-6)
    by_reward = [advantage for _, advantage in sorted(zip(rewards, advantages, strict=True))]
    assert by_reward == sorted(by_reward)


def test_a_rollout_alone_in_its_group_has_no_advantage():
    """verl keeps the raw score of a group of one as its advantage."""
    for name in ("grpo", "dr_grpo", "rloo"):
        assert group_advantages(name, [1.0]) == [0.0]


def test_an_unscored_rollout_is_no_part_of_the_baseline():
    """verl#6452: a rejected reply moved its siblings."""
    assert group_advantages("dr_grpo", [1.0, None, 0.0]) == [0.5, None, -0.5]


def test_zero_signal_is_about_outcomes():
    assert is_zero_signal([1.0, 1.0, 1.0])
    assert is_zero_signal([0.0, 0.0])
    assert is_zero_signal([0.1] * 8)
    assert is_zero_signal([1.0])
    assert not is_zero_signal([1.0, 0.0, 0.0])


def test_constancy_is_exact():
    assert is_constant([0.1] * 8)
    assert not is_constant([0.1, 0.1 + 2**-55 * 2])
