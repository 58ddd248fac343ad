"""The loss: clipped policy gradient over a flat vector of trained tokens.

Every function works on [tokens] vectors holding trained tokens only; padding, prompts and tool
output never get this far. Denominators are inside `token_weights`, computed once over all
micro-batches of an optimiser step, so a loss is a plain weighted sum and splitting it changes nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainer.algorithm import AlgorithmSettings

LOG_RATIO_CAP = 40.0
"""exp(40) is still finite in float32 after any sum; beyond it a token is constant and has no gradient."""


def token_weights(trained_tokens: Tensor, settings: AlgorithmSettings) -> Tensor:
    """The weight of one token's loss in each rollout, [rollouts] float64, given how many of its tokens train.

    token_mean     1 / N, N = trained tokens of the whole optimiser step (DAPO, arXiv 2503.14476)
    sequence_mean  1 / (R * n), R = rollouts with a trained token, n = its own count (GRPO, arXiv 2402.03300)
    fixed_length   1 / (R * L), L = fixed_length_tokens (Dr. GRPO, arXiv 2503.20783)

    A rollout without trained tokens is in no denominator (huggingface/trl#6369).
    Fixtures: "agg token-mean (DAPO)", "agg seq-mean-token-mean (GRPO)", "agg seq-mean-token-sum-norm T=4 (Dr.GRPO)".
    """
    counts = trained_tokens.to(torch.float64)
    rollouts = (counts > 0).sum().clamp(min=1)
    if settings.aggregation == "token_mean":
        return torch.ones_like(counts) / counts.sum().clamp(min=1)
    if settings.aggregation == "sequence_mean":
        return 1.0 / (rollouts * counts.clamp(min=1))
    assert settings.fixed_length_tokens is not None
    return torch.ones_like(counts) / (rollouts * settings.fixed_length_tokens)


def clipped_token_loss(log_ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) for each token, r = exp(log_ratio); all [tokens].

    PPO's clip (arXiv 1707.06347) with DAPO's separate upper bound. For A > 0 the minimum is reached by
    bounding r above, for A < 0 by bounding it below, so the bound is applied to log r before exp: an
    extreme ratio then never becomes inf, nor 0 * inf = NaN (PrimeIntellect-ai/prime-rl#3526).
    Fixtures: "ppo clip .2/.2 ...", "dapo clip .2/.28 same".
    """
    bounded_above = log_ratio.clamp(max=math.log1p(clip_high))
    bounded_below = log_ratio.clamp(min=math.log1p(-clip_low), max=LOG_RATIO_CAP)
    return -advantages * torch.where(advantages > 0, bounded_above, bounded_below).exp()


def is_clipped(log_ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """Which tokens the clip stops, [tokens] bool: their loss is constant in the policy."""
    too_high = (advantages > 0) & (log_ratio > math.log1p(clip_high))
    too_low = (advantages < 0) & (log_ratio < math.log1p(-clip_low))
    return too_high | too_low


def k3(log_ratio: Tensor) -> Tensor:
    """exp(d) - 1 - d for each token, d = log p - log q: an unbiased, never negative estimate of KL(q || p)
    from tokens sampled by q (joschu.net/blog/kl-approx). Fixture: "k3 = q/p-1-log(q/p)"."""
    bounded = log_ratio.clamp(-LOG_RATIO_CAP, LOG_RATIO_CAP)
    return torch.expm1(bounded) - bounded
