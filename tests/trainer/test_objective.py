"""The loss reproduces published numbers, and its denominators are global."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainer.algorithm import AlgorithmSettings, OptimizerSettings
from trainer.objective import clipped_token_loss, is_clipped, k3, token_weights

_RATIOS, _ADVANTAGES = [1.5, 1.25, 0.7, 0.7, 1.5], [1.0, 1.0, 1.0, -1.0, -1.0]


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture
def fixtures(shared_data):
    return json.loads(shared_data("fixtures/trainer_math.json").read_text())


@pytest.mark.parametrize(
    ("high", "key"),
    [(0.2, "ppo clip .2/.2 ratio=[1.5,1.25,.7,.7,1.5] A=[1,1,1,-1,-1]"), (0.28, "dapo clip .2/.28 same")],
)
def test_clip_reproduces_the_fixtures(fixtures, high, key):
    loss = clipped_token_loss(f64(_RATIOS).log(), f64(_ADVANTAGES), 0.2, high)
    assert loss.tolist() == pytest.approx(fixtures[key], abs=1e-9)


@given(st.floats(-3, 3), st.floats(-2, 2))
def test_clip_is_the_published_minimum(log_ratio, advantage):
    ratio = math.exp(log_ratio)
    expected = -min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
    assert clipped_token_loss(f64([log_ratio]), f64([advantage]), 0.2, 0.28).item() == pytest.approx(expected, abs=1e-9)


def test_a_clipped_token_has_no_gradient_and_is_counted():
    log_ratio = f64(_RATIOS).log().requires_grad_()
    clipped_token_loss(log_ratio, f64(_ADVANTAGES), 0.2, 0.28).sum().backward()
    clipped = is_clipped(log_ratio.detach(), f64(_ADVANTAGES), 0.2, 0.28)
    assert clipped.tolist() == [True, False, False, True, False]
    assert log_ratio.grad.tolist() == pytest.approx([0, -1.25, -0.7, 0, 1.5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_ratio", [-1000.0, -40.0, 40.0, 1000.0])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_extreme_ratios_are_finite_and_have_finite_gradients(dtype, log_ratio, advantage):
    """PrimeIntellect-ai/prime-rl#3526: 0 * inf is NaN."""
    value = torch.tensor([log_ratio], dtype=dtype, requires_grad=True)
    loss = clipped_token_loss(value, torch.tensor([advantage], dtype=dtype), 0.2, 0.28).sum()
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(value.grad).all()
    assert torch.isfinite(k3(value.detach())).all()


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"aggregation": "token_mean"}, "agg token-mean (DAPO)"),
        ({"aggregation": "sequence_mean"}, "agg seq-mean-token-mean (GRPO)"),
        ({"aggregation": "fixed_length", "fixed_length_tokens": 4}, "agg seq-mean-token-sum-norm T=4 (Dr.GRPO)"),
    ],
)
def test_aggregations_reproduce_the_fixtures(fixtures, settings, key):
    """Token losses [[1, 1], [2, 2, 2, 2]]."""
    weights = token_weights(torch.tensor([2, 4]), AlgorithmSettings(**settings))
    assert float(weights[0] * 2 * 1 + weights[1] * 4 * 2) == pytest.approx(fixtures[key], abs=1e-9)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
def test_a_rollout_without_trained_tokens_is_in_no_denominator(aggregation):
    """huggingface/trl#6369: masked completions left the numerator and stayed in the denominator."""
    settings = AlgorithmSettings(
        aggregation=aggregation, fixed_length_tokens=4 if aggregation == "fixed_length" else None
    )
    with_masked = token_weights(torch.tensor([2, 0, 4]), settings)
    assert with_masked[[0, 2]].tolist() == token_weights(torch.tensor([2, 4]), settings).tolist()


def test_k3_reproduces_the_fixture(fixtures):
    log_p_over_q = f64([0.5, 0.3, 0.2]).log() - f64([0.4, 0.4, 0.2]).log()
    assert k3(-log_p_over_q).tolist() == pytest.approx(fixtures["k3 = q/p-1-log(q/p)"], abs=1e-9)


def test_settings_refuse_what_cannot_be():
    with pytest.raises(ValidationError, match="fixed_length_tokens"):
        AlgorithmSettings(aggregation="fixed_length")
    with pytest.raises(ValidationError, match="fixed_length_tokens"):
        AlgorithmSettings(fixed_length_tokens=8)
    with pytest.raises(ValidationError, match="clip_hi"):
        AlgorithmSettings(clip_hi=0.3)
    with pytest.raises(ValidationError):
        OptimizerSettings(lr=0)
