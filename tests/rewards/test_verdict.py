"""A verdict that contradicts itself cannot be made."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.verdict import STATUSES, Verdict, VerdictError

ANY_NUMBER = st.one_of(st.none(), st.floats(), st.integers(-3, 3), st.sampled_from([0.0, 1.0, 0.5]))


def _is_allowed(status: str, score: float | None) -> bool:
    if status == "unscored":
        return score is None
    if score is None:
        return False
    return {"correct": score == 1, "partial": 0 < score < 1}.get(status, score == 0)


@given(st.sampled_from(STATUSES), ANY_NUMBER)
def test_status_and_score_agree_or_it_raises(status: str, score: float | None) -> None:
    """OpenEnv#1200: NaN, infinite and out-of-range rewards reached the trainer."""
    if _is_allowed(status, score):
        assert Verdict(status, score).score == score  # type: ignore[arg-type]
    else:
        with pytest.raises(VerdictError):
            Verdict(status, score)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "1"])
def test_a_part_is_a_finite_number(value: object) -> None:
    with pytest.raises(VerdictError):
        Verdict.correct(parts={"passed": value})  # type: ignore[dict-item]


def test_a_detail_is_text() -> None:
    """It goes into records as JSON, where anything else would fail long after it was made."""
    with pytest.raises(VerdictError, match="detail"):
        Verdict.wrong(ValueError("x"))  # type: ignore[arg-type]


def test_an_unknown_status_raises() -> None:
    with pytest.raises(VerdictError, match="unknown"):
        Verdict("great", 1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "status", "score"),
    [(True, "correct", 1.0), (False, "wrong", 0.0), (0.25, "partial", 0.25), (1, "correct", 1.0), (0, "wrong", 0.0)],
)
def test_what_verify_returns_becomes_a_verdict(found: bool | float, status: str, score: float) -> None:
    verdict = Verdict.of(found)
    assert (verdict.status, verdict.score) == (status, score)


@pytest.mark.parametrize("found", [float("nan"), 1.5, -0.1, None, "correct"])
def test_what_verify_must_not_return_raises(found: object) -> None:
    with pytest.raises(VerdictError):
        Verdict.of(found)  # type: ignore[arg-type]


@given(st.sampled_from([s for s in STATUSES if s != "partial"]), st.text(), st.floats(allow_nan=False, width=32))
def test_a_verdict_survives_json(status: str, detail: str, part: float) -> None:
    score = None if status == "unscored" else float(status == "correct")
    parts = {} if abs(part) == float("inf") else {"part": part}
    verdict = Verdict(status, score, parts, detail)  # type: ignore[arg-type]
    assert Verdict.from_json(json.dumps(verdict.to_json())) == verdict
