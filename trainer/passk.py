"""pass@k and its interval, with tasks as the unit.

Samples of one task are not independent evidence about the task set, so intervals resample
tasks. What is undefined (a task with fewer than k scored samples) is NaN and counted, never
guessed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

RESAMPLES = 2000
DIGITS = 12  # of an interval's ends: a bound of 5.55e-17 is 0


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks with its 95 % interval. `undefined` counts the tasks left out of it."""

    value: float
    low: float
    high: float
    tasks: int
    undefined: int = 0

    def to_json(self) -> dict[str, float | int | None]:
        """NaN becomes null, since JSON has none."""
        fields = {"value": self.value, "low": self.low, "high": self.high}
        return {
            **{name: None if math.isnan(number) else number for name, number in fields.items()},
            "tasks": self.tasks,
            "undefined": self.undefined,
        }


def pass_at_k(scored: int, correct: int, k: int) -> float:
    """Probability that at least one of k samples drawn without replacement is correct.

    1 - C(n - c, k) / C(n, k), the unbiased estimator of Chen et al. 2021 (arXiv 2107.03374,
    eq. 1), for n = scored and c = correct; NaN when n < k. Fixture: "pass@k n=4 c=1 k=1,2,4".
    """
    if not 0 <= correct <= scored or k < 1:
        raise ValueError(f"pass@k needs 0 <= correct <= scored and k >= 1, got {correct}, {scored}, k = {k}")
    if scored < k:
        return math.nan
    return 1.0 - math.comb(scored - correct, k) / math.comb(scored, k)


def estimate_pass_at_k(counts: Sequence[tuple[int, int]], k: int, seed: int = 0) -> Estimate:
    """pass@k over tasks; counts: (scored, correct) of each task."""
    values = [pass_at_k(scored, correct, k) for scored, correct in counts]
    defined = [value for value in values if not math.isnan(value)]
    undefined = len(values) - len(defined)
    if not defined:
        return Estimate(math.nan, math.nan, math.nan, 0, undefined)
    mean = math.fsum(defined) / len(defined)
    if all(value in (0.0, 1.0) for value in defined):
        low, high = wilson_interval(sum(1 for value in defined if value), len(defined))
    else:
        low, high = bootstrap_interval(defined, seed)
    return Estimate(mean, round(low, DIGITS), round(high, DIGITS), len(defined), undefined)


def wilson_interval(successes: int, trials: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson's score interval for a share of `trials` (Wilson 1927). Fixture: "wilson 95% 15/30"."""
    share, spread = successes / trials, z * z / trials
    centre = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap_interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """95 % percentile bootstrap of the mean, resampling tasks; the same for the same values and seed."""
    draw = random.Random(f"bootstrap/{seed}/{len(values)}")
    means = sorted(math.fsum(draw.choices(values, k=len(values))) / len(values) for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]
