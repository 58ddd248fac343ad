"""pass@k against exact enumeration, and intervals that treat tasks as the unit."""

from __future__ import annotations

import json
import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.passk import estimate_pass_at_k, pass_at_k, wilson_interval


@given(st.data())
def test_pass_at_k_equals_the_share_of_k_subsets_with_a_correct_sample(data):
    scored = data.draw(st.integers(1, 8))
    correct = data.draw(st.integers(0, scored))
    k = data.draw(st.integers(1, scored))
    marks = [1] * correct + [0] * (scored - correct)
    subsets = list(combinations(marks, k))
    assert pass_at_k(scored, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_does_not_bootstrap_with_replacement():
    """volcengine/verl#7240: n = 4, c = 1 was reported as 0.684 at k = 4; the truth is 1."""
    assert [pass_at_k(4, 1, k) for k in (1, 2, 4)] == [0.25, 0.5, 1.0]


def test_fixture_figures_are_reproduced(shared_data):
    fixture = json.loads(shared_data("fixtures/trainer_math.json").read_text())
    assert [pass_at_k(4, 1, k) for k in (1, 2, 4)] == pytest.approx(fixture["pass@k n=4 c=1 k=1,2,4"], abs=1e-9)
    assert wilson_interval(15, 30) == pytest.approx(fixture["wilson 95% 15/30"], abs=1e-9)


def test_too_few_scored_samples_are_undefined_and_counted_not_guessed():
    assert math.isnan(pass_at_k(3, 1, 4))
    estimate = estimate_pass_at_k([(4, 4), (3, 0), (4, 0)], 4)
    assert (estimate.value, estimate.tasks, estimate.undefined) == (0.5, 2, 1)
    nothing = estimate_pass_at_k([(0, 0)], 1)
    assert nothing.to_json() == {"value": None, "low": None, "high": None, "tasks": 0, "undefined": 1}


def test_an_interval_of_a_perfect_score_is_not_a_point():
    estimate = estimate_pass_at_k([(8, 8)] * 100, 1)
    assert estimate.value == 1.0
    assert estimate.low == pytest.approx(0.963, abs=1e-3)
    assert estimate.high == 1.0


def test_more_samples_of_the_same_tasks_do_not_shrink_the_interval_to_nothing():
    """Tasks are the unit: 20 tasks, half always right, stay wide however often each is sampled."""
    estimate = estimate_pass_at_k([(1000, 900), (1000, 100)] * 10, 1)
    assert estimate.high - estimate.low > 0.3


def test_swapped_counts_are_refused():
    """paiml/aprender#2118: n and c swapped gave 100 %."""
    with pytest.raises(ValueError, match="correct <= scored"):
        pass_at_k(1, 4, 1)
