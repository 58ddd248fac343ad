"""Why replies could not be scored: counted under few, short names, and told in full.

A cause quotes what was raised, and that may quote the reply; so it is counted by its first words
only. The full text stays in the verdict's detail, and one example of it is told.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from envs.base import Env
from trainer.records import Rollout

_QUOTES_BEGIN = re.compile(r"[:;,\n'\"`(\[{<\\]")
_NUMBERED = re.compile(r"(?<!env )(?<!\S)\S*\d\S*")
KEY_CHARACTERS = 80


@dataclass
class Unscored:
    """Counts by cause's key, and the first full cause of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, rollouts: Iterable[Rollout]) -> Unscored:
        found = cls()
        for rollout in rollouts:
            if rollout.verdict and rollout.verdict.status == "unscored":
                key = cause_key(rollout.verdict.detail)
                found.counts[key] += 1
                found.examples.setdefault(key, rollout.verdict.detail)
        return found


def cause_key(cause: str) -> str:
    """`verify_of_env_sums_raised_ValueError` of "verify of env sums raised ValueError: invalid literal ...".

    The words before the first mark that a quotation can follow, without those that hold a digit (they
    number tasks); the env's name stays.
    """
    words = _NUMBERED.sub(" ", _QUOTES_BEGIN.split(cause.strip(), maxsplit=1)[0]).split()
    return "_".join(words)[:KEY_CHARACTERS] or "no_cause_given"


def told(causes: Unscored, env: Env) -> str:
    """The most common cause in full, in one line, and what its author can do about it."""
    if not causes.counts:
        return "no reply was asked for"
    key, count = causes.counts.most_common(1)[0]
    cause = " ".join(causes.examples[key].split()) or "no cause given"
    line = f"{count} of {causes.counts.total()}: {cause}"
    if " raised " in cause and not any(case.status == "correct" for case in env.golden()):
        line += "; a golden() with a correct case would tell a reply's fault from the verifier's"
    return line
