r"""The math verdict: does the final answer of a reply mean the same as the reference?

Plain numbers are compared exactly and in-process; everything else by math-verify in a worker that
is killed when it takes too long. Nothing raises: a reference that cannot be read is `unscored`, a
reply that cannot is `unparsed`, one that exhausts its worker is `timeout` or `crashed`.
"""

from __future__ import annotations

import asyncio
import math
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from rewards.exact import exact_number, same_number
from rewards.extraction import NoAnswer, extract_answer
from rewards.latex import ascending, both_signs, normalised
from rewards.verdict import Verdict
from rewards.workers import Outcome, default_pool

_MAX_ANSWER_CHARACTERS = 4000  # the LaTeX grammar needs seconds for longer ones
_REFERENCE_LIMIT_S = 10.0
_COMPARE, _LOAD = "rewards.symbolic:compare", ("rewards.symbolic:load", ())

_RELATION = re.compile(r"=|<|>|\\le |\\ge |\\ne(?![a-zA-Z])|\\in(?![a-zA-Z])")
_NAMED = re.compile(
    r"\s*(?:[A-Za-z](?:_\{?\w+\}?)?'*\s*(?:\([^()]*\))?|\\frac\{d\w\}\{d\w\})\s*=(?!.*=)\s*(?P<value>.+)"
)
_QUALIFIER = re.compile(r"(?:\s*,?\s*\\text\{\s*(?:for|where|when|with|if)\b.*|\s+(?:for|where|when)\s.*)$")
_CHOICE = re.compile(r"(?:\\(?:text|mathrm|textbf|mathbf)\{)?\s*\(?(?P<letter>[A-J])\)?\s*\}?\s*(?:[:.)](?:\s.*)?)?")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\{([^{}]*)\}")
_BASE_NUMERAL = re.compile(r"[0-9A-Za-z]+_\{?\d+\}?")


@dataclass(frozen=True)
class MathRules:
    """How a task wants its answers read.

    is_whole_text  a reply without box or marker is its own answer (off: it is `unparsed`).
    timeout_s      wall seconds for one symbolic comparison.
    """

    is_whole_text: bool = False
    timeout_s: float = 3.0


def math_verdict(text: str, reference: object, *, rules: MathRules | None = None) -> Verdict:
    """Judge a whole reply against a reference answer (a string, int, float, Fraction or Decimal).

    Blocking; safe from any thread and inside a running loop. See `extract_answer` for which part
    of the reply counts. Never raises for what text or reference hold.
    """
    rules = rules or MathRules()
    prepared = _prepared(text, reference, rules)
    if isinstance(prepared, Verdict):
        return prepared
    wanted, given = prepared
    outcome = default_pool().call(_COMPARE, wanted, given, timeout_s=rules.timeout_s, setup=_LOAD)
    return _judged(outcome, wanted, given, rules)


async def math_verdict_async(text: str, reference: object, *, rules: MathRules | None = None) -> Verdict:
    """`math_verdict` without blocking the running loop."""
    return await asyncio.to_thread(math_verdict, text, reference, rules=rules)


def _prepared(text: str, reference: object, rules: MathRules) -> Verdict | tuple[str, str]:
    """The verdict where no algebra is needed, else the two expressions to compare."""
    wanted = _reference_text(reference)
    if not wanted:
        shown = repr(reference[:80]) if isinstance(reference, str) else f"of type {type(reference).__name__}"
        return Verdict.unscored(f"the reference {shown} holds no answer")
    if not isinstance(text, str):
        return Verdict.failed("unparsed", f"the reply is of type {type(text).__name__}, not text")
    answer = extract_answer(text, rules.is_whole_text)
    if isinstance(answer, NoAnswer):
        return Verdict.failed("unparsed", answer.why)
    if len(answer) > _MAX_ANSWER_CHARACTERS:
        return Verdict.failed(
            "unparsed", f"an answer of {len(answer)} characters; the most read is {_MAX_ANSWER_CHARACTERS}"
        )
    given = normalised(answer)
    if _squeezed(wanted) != _squeezed(given):
        wanted, given = map(both_signs, _without_names(wanted, given))
    found = _compared_as_written(wanted, given)
    return _found(found, wanted, given) if found is not None else (wanted, given)


def _judged(outcome: Outcome, wanted: str, given: str, rules: MathRules) -> Verdict:
    if outcome.status == "unavailable":
        return Verdict.unscored(f"no math worker: {outcome.error}")
    if outcome.status != "returned" and not _reference_parses(wanted):
        return Verdict.unscored(f"the reference {wanted[:80]!r} cannot be parsed: {outcome.error}")
    if outcome.status == "raised":
        return Verdict.failed("unparsed", f"{given[:200]}: {outcome.error}")
    if outcome.status == "timeout" or outcome.status == "crashed":
        return Verdict.failed(outcome.status, f"comparing {given[:200]}: {outcome.error}")
    if not outcome.value["reference_parses"]:
        return Verdict.unscored(f"the reference {wanted[:80]!r} cannot be parsed")
    if not outcome.value["answer_parses"]:
        return Verdict.failed("unparsed", f"cannot read {given[:200]}")
    return _found(outcome.value["is_same"], wanted, given)


def _reference_parses(reference: str) -> bool:
    try:
        _prove_reference(reference)
    except _UnreadableReference:
        return False
    return True


class _UnreadableReference(Exception):
    pass


@lru_cache(4096)
def _prove_reference(reference: str) -> None:
    """Only success is remembered: a failure may be the machine's, and would cost every later reply its score."""
    outcome = default_pool().call(_COMPARE, reference, reference, timeout_s=_REFERENCE_LIMIT_S, setup=_LOAD)
    if outcome.status != "returned" or not outcome.value["reference_parses"]:
        raise _UnreadableReference


def _found(is_same: bool, wanted: str, given: str) -> Verdict:
    detail = f"{given[:200]} {'is' if is_same else 'is not'} {wanted[:200]}"
    return Verdict.correct(detail) if is_same else Verdict.wrong(detail)


def _reference_text(reference: object) -> str:
    """The reference normalised, "" for what is none; of one that shows its answer in a box or after
    a marker, that answer."""
    if isinstance(reference, float):
        # numpy's float is one too, and its own repr is not a number
        return float.__repr__(reference) if math.isfinite(reference) else ""
    if isinstance(reference, Decimal) and not reference.is_finite():
        return ""
    if isinstance(reference, bool) or not isinstance(reference, (str, int, Fraction, Decimal)):
        return ""
    try:
        return _answer_shown_in(str(reference))
    except ValueError:  # an int beyond Python's limit of digits to print
        return ""


@lru_cache(4096)
def _answer_shown_in(reference: str) -> str:
    shown = extract_answer(reference, is_whole_text=True)
    return "" if isinstance(shown, NoAnswer) else normalised(shown)


def _compared_as_written(wanted: str, given: str) -> bool | None:
    """The verdict for what needs no algebra: same spelling, numbers, choices, words; None for the rest."""
    if _squeezed(wanted) == _squeezed(given):
        return True
    wanted_number, given_number = exact_number(wanted), exact_number(given)
    if wanted_number and given_number:
        return same_number(given_number, wanted_number)
    if _BASE_NUMERAL.fullmatch(wanted):
        return False  # a numeral with a base is a number, so the answer is none
    if choice := _CHOICE.fullmatch(wanted):
        answered = _CHOICE.fullmatch(given)
        return answered is not None and answered["letter"] == choice["letter"]
    if is_text := _same_words(wanted, given):
        return is_text == "same"
    if "\\ldots" in wanted or "\\ldots" in given:
        return False  # what the dots stand for is a convention, not algebra (Math-Verify#14)
    if _differ_in_kind(wanted, given):
        return False
    return None


def _same_words(wanted: str, given: str) -> str:
    """ "same" or "different" for a reference in words, "" for one that may be an expression."""
    wanted, given = (_TEXT.sub(r"\1", side).strip() for side in (wanted, given))
    if not _WORDS.fullmatch(wanted):
        return ""
    if wanted.lower().split() == given.lower().split():
        return "same"
    is_of_letters = all(len(run) == 1 for run in re.findall("[A-Za-z]+", wanted))  # `p - q` is an expression
    return "" if len(wanted) <= 3 or is_of_letters else "different"


def _differ_in_kind(wanted: str, given: str) -> bool:
    r"""A set against a tuple or interval; an equation that is more than `name = value` against a value."""
    braces, brackets = ("\\{", "\\}"), ("(", ")")
    for one, other in ((wanted, given), (given, wanted)):
        if _is_list_in(one, *braces) and _is_list_in(other, *brackets):
            return True
    has_relation = bool(_RELATION.search(given))
    return has_relation and not _RELATION.search(wanted) and not _is_list_like(wanted) and not _NAMED.fullmatch(given)


def _is_list_in(text: str, left: str, right: str) -> bool:
    return text.startswith(left) and text.endswith(right) and "," in text


def _is_list_like(text: str) -> bool:
    """A set or interval may also be given as an inequality."""
    return text.lstrip("\\").startswith(("(", "[", "{")) or "\\cup" in text


def _without_names(wanted: str, given: str) -> tuple[str, str]:
    """Names and qualifiers that only one side has: `x = 5` for `5`, `2^n for n >= 1` for `2^n`."""
    wanted, given = ascending(wanted), ascending(given)
    if not _QUALIFIER.search(wanted):
        given = _QUALIFIER.sub("", given)
    wanted_name, given_name = _NAMED.fullmatch(wanted), _NAMED.fullmatch(given)
    if given_name and not _RELATION.search(wanted):
        given = given_name["value"].strip()
    elif wanted_name and not _RELATION.search(given):
        wanted = wanted_name["value"].strip()
    return wanted, given


def _squeezed(text: str) -> str:
    return "".join(text.split())
