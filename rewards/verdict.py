"""The verdict: what a verifier found about one reply.

A verdict is checked where it is made, so that a NaN, a score out of range or an
infrastructure failure disguised as a zero can never travel into a baseline.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Status = Literal["correct", "partial", "wrong", "unparsed", "timeout", "crashed", "tampered", "unscored"]
STATUSES: tuple[str, ...] = get_args(Status)


class VerdictError(ValueError):
    """A verdict that contradicts itself."""


@dataclass(frozen=True)
class Verdict:
    """What a verifier found.

    status  one of `STATUSES`.
    score   finite, in [0, 1]; 1 exactly when `correct`, strictly between when `partial`, 0 for
            every other scored status, None exactly when `unscored`.
    parts   named component scores, finite.
    detail  for people; may quote hostile text, so whoever shows it escapes it.

    Raises VerdictError when the fields contradict each other.
    """

    status: Status
    score: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    detail: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise VerdictError(f"verdict status {self.status!r} is unknown; use one of {', '.join(STATUSES)}")
        if self.status == "unscored":
            if self.score is not None:
                raise VerdictError(f"an unscored verdict has score None, not {self.score!r}")
        elif not _score_fits(self.status, self.score):
            raise VerdictError(f"a verdict of status {self.status!r} cannot have score {self.score!r}")
        if not isinstance(self.detail, str):
            raise VerdictError(f"verdict detail is a {type(self.detail).__name__}, not text")
        for name, value in self.parts.items():
            if not _is_finite_number(value):
                raise VerdictError(f"verdict part {name!r} = {value!r} is not a finite number")

    @classmethod
    def correct(cls, detail: str = "", parts: Mapping[str, float] | None = None) -> Verdict:
        return cls("correct", 1.0, parts or {}, detail)

    @classmethod
    def wrong(cls, detail: str = "", parts: Mapping[str, float] | None = None) -> Verdict:
        return cls("wrong", 0.0, parts or {}, detail)

    @classmethod
    def partial(cls, score: float, detail: str = "", parts: Mapping[str, float] | None = None) -> Verdict:
        return cls("partial", score, parts or {}, detail)

    @classmethod
    def unscored(cls, cause: str) -> Verdict:
        """The verifier, not the reply, failed; `cause` is what is counted and shown."""
        return cls("unscored", None, {}, cause)

    @classmethod
    def failed(cls, status: Literal["unparsed", "timeout", "crashed", "tampered"], detail: str = "") -> Verdict:
        """A scored 0 whose status says how the reply failed."""
        return cls(status, 0.0, {}, detail)

    @classmethod
    def of(cls, found: Verdict | bool | float) -> Verdict:
        """A verdict from what an author's `verify` may return: a Verdict, a bool, or a float in [0, 1]."""
        if isinstance(found, Verdict):
            return found
        if not isinstance(found, (bool, int, float)):
            raise VerdictError(f"verify returned {type(found).__name__}; return a Verdict, a bool or a float in [0, 1]")
        score = float(found)
        if score == 1.0:
            return cls.correct()
        if score == 0.0:
            return cls.wrong()
        return cls.partial(score)

    def to_json(self) -> dict[str, Any]:
        return {"status": self.status, "score": self.score, "parts": dict(self.parts), "detail": self.detail}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | str) -> Verdict:
        fields = json.loads(data) if isinstance(data, str) else data
        return cls(fields["status"], fields["score"], fields.get("parts", {}), fields.get("detail", ""))


def _is_finite_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _score_fits(status: str, score: float | None) -> bool:
    if score is None or not _is_finite_number(score):
        return False
    if status == "correct":
        return score == 1.0
    if status == "partial":
        return 0.0 < score < 1.0
    return score == 0.0
