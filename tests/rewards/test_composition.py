"""Shaping and composition: the published numbers, and an outcome that nothing outweighs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rewards.composition import RewardTerms, compose_reward
from rewards.shaping import overlong_punishment
from rewards.verdict import Verdict

DAPO = RewardTerms(correct=1.0, wrong=-1.0, overlong_weight=1.0, overlong_cache_tokens=4096)
KEY = "DAPO soft overlong L=16384,16385,18432,20480,20481(verl: unclipped)"


def test_overlong_punishment_is_daposs_up_to_the_limit(shared_data: Callable[[str], Path]) -> None:
    published = json.loads(shared_data("fixtures/trainer_math.json").read_text())[KEY]
    ours = [overlong_punishment(n, 20480, 4096) for n in (16384, 16385, 18432, 20480)]
    assert ours == published[:4]


def test_overlong_punishment_is_never_below_minus_one() -> None:
    """verl's goes on below -1 beyond the limit (fixture, fifth value)."""
    assert [overlong_punishment(n, 20480, 4096) for n in (20481, 10**6)] == [-1.0, -1.0]


def test_cache_and_limit_are_not_exchanged() -> None:
    """ms-swift#5557 punished from the first L_cache tokens on."""
    assert [overlong_punishment(n, 100, 10) for n in (10, 50, 90, 95, 100)] == [0.0, 0.0, 0.0, -0.5, -1.0]


@pytest.mark.parametrize("cache_tokens", [0, -1, 101])
def test_an_impossible_cache_is_refused(cache_tokens: int) -> None:
    with pytest.raises(ValueError, match="cache_tokens"):
        overlong_punishment(5, 100, cache_tokens)


def test_default_terms_are_one_and_zero() -> None:
    for verdict, reward in ((Verdict.correct(), 1.0), (Verdict.wrong(), 0.0), (Verdict.partial(0.25), 0.25)):
        assert compose_reward(verdict, RewardTerms(), completion_tokens=5, max_tokens=8) == (
            reward,
            {"outcome": reward},
        )


def test_dapo_terms_are_plus_and_minus_one_less_the_punishment() -> None:
    rewards = [
        compose_reward(verdict, DAPO, completion_tokens=n, max_tokens=20480)[0]
        for verdict in (Verdict.correct(), Verdict.wrong())
        for n in (100, 18432, 20480)
    ]
    assert rewards == [1.0, 0.5, 0.0, -1.0, -1.5, -2.0]


def test_every_part_is_kept_apart() -> None:
    verdict = Verdict.wrong("", {"passed": 0.5})
    _, parts = compose_reward(verdict, DAPO, completion_tokens=20480, max_tokens=20480)
    assert parts == {"outcome": -1.0, "overlong": -1.0, "verdict.passed": 0.5}


def test_an_unscored_verdict_has_no_reward() -> None:
    """Gym#3070, cap-evolve#307: a failure of the judge is missing data, not 0."""
    assert compose_reward(Verdict.unscored("gone"), DAPO, completion_tokens=9, max_tokens=20480) == (None, {})


@pytest.mark.parametrize(
    "terms",
    [
        {"correct": 1.0, "wrong": 1.0},
        {"correct": 0.0, "wrong": 1.0},
        {"overlong_weight": 1.0},
        {"correct": 1.0, "wrong": -1.0, "overlong_weight": 2.0},
    ],
)
def test_terms_that_let_a_wrong_reply_earn_as_much_are_refused(terms: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="a wrong one as much as"):
        RewardTerms(**terms)  # type: ignore[arg-type]


@pytest.mark.parametrize("terms", [{"correct": float("nan")}, {"overlong_weight": -0.5}, {"overlong_cache_tokens": 0}])
def test_impossible_terms_are_refused(terms: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        RewardTerms(**terms)  # type: ignore[arg-type]


@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(0, 5), st.integers(0, 300), st.integers(0, 300))
def test_accepted_terms_always_pay_right_more_than_wrong(
    correct: float, wrong: float, weight: float, right_tokens: int, wrong_tokens: int
) -> None:
    try:
        terms = RewardTerms(correct=correct, wrong=wrong, overlong_weight=weight, overlong_cache_tokens=40)
    except ValidationError:
        return
    right, _ = compose_reward(Verdict.correct(), terms, completion_tokens=right_tokens, max_tokens=200)
    other, _ = compose_reward(Verdict.wrong(), terms, completion_tokens=wrong_tokens, max_tokens=200)
    assert right is not None
    assert other is not None
    assert right > other
