"""From a verdict to a reward: reward = sum of weight times part, each part kept apart.

The outcome cannot be outweighed: terms under which some wrong reply could earn as much as some
right one are refused when they are made. An unscored verdict has no reward at all.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rewards.shaping import overlong_punishment
from rewards.verdict import Verdict

_Finite = Annotated[float, Field(allow_inf_nan=False)]


class RewardTerms(BaseModel):
    """What a verdict and a reply's form are worth."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    correct: _Finite = 1.0
    """Reward of score 1. A score s between is worth correct * s + wrong * (1 - s)."""
    wrong: _Finite = 0.0
    """Reward of score 0; -1 in DAPO as published."""
    overlong_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Weight of DAPO's soft overlong punishment, a part in [-1, 0]; 0 leaves it out."""
    overlong_cache_tokens: Annotated[int, Field(ge=1)] = 16
    """The last tokens before the longest completion, over which the punishment grows to -1."""

    @model_validator(mode="after")
    def _refuse_a_diluted_outcome(self) -> RewardTerms:
        least_correct, most_wrong = self.correct - self.overlong_weight, self.wrong
        if not least_correct > most_wrong:
            raise ValueError(
                f"a correct reply can earn as little as {least_correct:g} and a wrong one as much as {most_wrong:g}; "
                "raise correct, or lower wrong or overlong_weight"
            )
        return self


def compose_reward(
    verdict: Verdict, terms: RewardTerms, *, completion_tokens: int, max_tokens: int
) -> tuple[float | None, dict[str, float]]:
    """The reward and its parts, unweighted: `outcome` (in [wrong, correct]), `overlong` when it has
    weight, and the verdict's own parts as `verdict.<name>`, which are logged and not added.

    (None, {}) for an unscored verdict. Lengths in tokens; max_tokens is the longest completion allowed.
    """
    if verdict.score is None:
        return None, {}
    outcome = terms.correct * verdict.score + terms.wrong * (1.0 - verdict.score)
    parts = {"outcome": outcome, **{f"verdict.{name}": value for name, value in verdict.parts.items()}}
    if not terms.overlong_weight:
        return outcome, parts
    overlong = overlong_punishment(completion_tokens, max_tokens, terms.overlong_cache_tokens)
    return outcome + terms.overlong_weight * overlong, parts | {"overlong": overlong}
