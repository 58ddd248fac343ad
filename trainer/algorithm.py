"""What an algorithm is made of, as settings: the [algorithm] and [optimizer] tables of a run's config.

Light on purpose: configs are read, checked and printed on machines without torch.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

_Decay = Annotated[float, Field(ge=0, lt=1)]
AdvantageName = Literal["grpo", "dr_grpo", "rloo"]
AggregationName = Literal["token_mean", "sequence_mean", "fixed_length"]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class AlgorithmSettings(_Settings):
    """How rewards become advantages, and advantages a loss."""

    advantage: AdvantageName = "dr_grpo"
    """Baseline inside a group: grpo (reward - mean) / std, dr_grpo reward - mean, rloo reward - mean of the others."""

    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The token ratio is clipped below at 1 - clip_low where the advantage is negative."""

    clip_high: Annotated[float, Field(gt=0)] = 0.28
    """The token ratio is clipped above at 1 + clip_high where the advantage is positive (DAPO's clip-higher)."""

    aggregation: AggregationName = "token_mean"
    """How token losses become one number: the mean over all trained tokens, the mean over rollouts of each
    rollout's token mean, or the sum over tokens divided by rollouts * fixed_length_tokens."""

    fixed_length_tokens: Annotated[int, Field(gt=0)] | None = None
    """The constant length of aggregation = "fixed_length", usually the largest number of new tokens."""

    mask_truncated: bool = False
    """Leave rollouts that ran out of tokens out of the loss, its denominators and the group's baseline."""

    minibatches_per_step: Annotated[int, Field(ge=1)] = 2
    """Optimiser steps per learner step; the groups of a batch are dealt to them in order."""

    @model_validator(mode="after")
    def _length_is_given_where_needed(self) -> AlgorithmSettings:
        if (self.aggregation == "fixed_length") != (self.fixed_length_tokens is not None):
            raise ValueError(
                f'fixed_length_tokens = {self.fixed_length_tokens} with aggregation = "{self.aggregation}": '
                'set it exactly when aggregation = "fixed_length"'
            )
        return self


class OptimizerSettings(_Settings):
    """AdamW with a constant learning rate after a linear warm-up."""

    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2e-4
    """Learning rate after the warm-up."""

    betas: Annotated[tuple[_Decay, _Decay], Field(strict=False)] = (0.9, 0.99)  # TOML has lists only
    """Decay rates of the first and the second moment."""

    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Decoupled weight decay, on every parameter."""

    warmup_steps: Annotated[int, Field(ge=0)] = 5
    """Optimiser steps over which the learning rate grows linearly from lr / (warmup_steps + 1) to lr."""

    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """Gradients are scaled down to this global L2 norm when they exceed it."""
