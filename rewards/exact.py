r"""Numbers as people write them, to exact rationals, in-process and in bounded time.

Covers integers, decimals, fractions, mixed numbers, percentages, thousands separators, scientific
notation, numerals with a base, powers and factorials of these. Anything else is None, never a
guess: no leading number is picked out of a longer text (the false positives of Math-Verify#14, #41, #60).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

_MAX_CHARACTERS = 1000
_MAX_BITS = 1 << 15
_MAX_DEPTH = 30
_TOLERANCE = Fraction(1, 10**6)

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_TOKEN = re.compile(
    rf"\s*(?:(?P<number>{_NUMBER})(?P<exponent>[eE][+-]?\d+)?(?![\d,.]*\d)|(?P<mark>\\frac|[-+*/^!(){{}}]))"
)
_MIXED = re.compile(r"(?P<whole>\d+)(?:\s+(?P<a>\d+)/(?P<b>\d+)|\s*\\frac\{(?P<c>\d+)\}\{(?P<d>\d+)\})")
_BASE = re.compile(r"(?P<digits>[0-9A-Za-z]+)_\{?(?P<base>\d{1,2})\}?")
_TEXT_UNIT = re.compile(
    r"\s*(?:\\(?:text|mathrm|textrm|mbox|operatorname)\{(?P<braced>[^{}]*)\}(?:\^\{?[23]\}?)?"
    r"|(?<=[\d\s}])(?P<words>[A-Za-z]{2,}(?:[ /][A-Za-z]+)*))\.?$"
)
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
# Words after a number that are not units but change its value.
_NOT_UNITS = frozenset(
    {"or", "and", "not", "to", "than", "plus", "minus", "times", "over", "per", "of", "by", "base", "mod", "modulo"}
    | {"squared", "cubed", "factorial", "half", "halves", "third", "thirds", "quarters", "tenths", "hundredths"}
    | {"thousandths", "divided", "choose", "power", "negative", "pi", "sqrt", "root", "sin", "cos", "tan", "log"}
    | {"ln", "exp", "inf", "infty", "infinity", "percent"}
)


@dataclass(frozen=True)
class Exact:
    """A rational and how it was written: `unit` is what followed it ("" for none; currency,
    degrees and percent are not units), `decimal_digits` counts the digits of a plain decimal (else 0)."""

    value: Fraction
    unit: str = ""
    is_percent: bool = False
    decimal_digits: int = 0


def exact_number(latex: str) -> Exact | None:
    """The number that `latex` (already normalised, see `rewards.latex`) denotes as a whole, else None."""
    if len(latex) > _MAX_CHARACTERS:
        return None
    body, unit, scale, is_percent = _without_unit(re.sub(r"^([-+]?)\s*(?:\\?\$|[€£])", r"\1", latex.strip()))
    try:
        value = _value(body)
    except (_NotANumber, ZeroDivisionError, ValueError):
        return None
    digits = body.lstrip("-+ ") if re.fullmatch(rf"[-+]?\s*(?:{_NUMBER})", body) else ""
    return Exact(
        value * scale / (100 if is_percent else 1),
        unit,
        is_percent,
        decimal_digits=len(re.sub(r"\D", "", digits).lstrip("0")) if "." in digits else 0,
    )


def same_number(answer: Exact, reference: Exact) -> bool:
    """Exact equality, but for three ways of writing that carry no other meaning.

    A decimal against a value that has no short decimal (1/3, 2^-70) may differ by 1e-6 of it. A
    percent sign that only one side has may be left out where the number is above 1 (a bare 9
    for 9%, not 0.5 for 0.5%). A unit that only one side names is not compared; two different ones differ.
    """
    if answer.unit and reference.unit and answer.unit != reference.unit:
        return False
    if _same_value(answer, reference):
        return True
    if answer.is_percent == reference.is_percent:
        return False
    shown_answer, shown_reference = (
        Exact(x.value * (100 if x.is_percent else 1), decimal_digits=x.decimal_digits) for x in (answer, reference)
    )
    return abs(shown_reference.value) > 1 and _same_value(shown_answer, shown_reference)


def _same_value(answer: Exact, reference: Exact) -> bool:
    a, r = answer.value, reference.value
    if a == r:
        return True
    if bool(answer.decimal_digits) == bool(reference.decimal_digits):
        return False
    written_out = r if answer.decimal_digits else a
    if _is_short_decimal(written_out):
        return False
    return abs(a - r) <= _TOLERANCE * abs(written_out)


def _is_short_decimal(value: Fraction) -> bool:
    return (value * 10**15).denominator == 1


def _without_unit(text: str) -> tuple[str, str, int, bool]:
    """The number's own text, its unit, its scale ("million"), and whether it is a percentage."""
    text = re.sub(r"\s*(?:\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree|°)\s*$", "", text)
    unit, scale = "", 1
    if match := _TEXT_UNIT.search(text):
        words = (match["braced"] or match["words"] or "").lower().replace("/", " / ").split()
        if words and words[0] in _SCALES:
            scale = _SCALES[words.pop(0)]
        if words == ["percent"]:
            return text[: match.start()].strip(), "", scale, True
        if not _NOT_UNITS.isdisjoint(words):
            return "", "", 1, False
        unit = " ".join(word.strip(".").rstrip("s") for word in words)
        text = text[: match.start()]
    stripped = re.sub(r"\s*\\?%\s*$", "", text)
    return stripped.strip(), unit, scale, stripped != text


class _NotANumber(Exception):
    pass


def _value(text: str) -> Fraction:
    sign = -1 if text.startswith("-") else 1
    if match := _MIXED.fullmatch(text.lstrip("-+").strip()):
        part = Fraction(int(match["a"] or match["c"]), int(match["b"] or match["d"]))
        return sign * (int(match["whole"]) + part)
    if match := _BASE.fullmatch(text.lstrip("-+")):
        return Fraction(sign * int(match["digits"], int(match["base"])))
    return _Parser(text).whole()


class _Parser:
    r"""Recursive descent over + - * / ^ ! \frac, parentheses and braces; juxtaposed only before a parenthesis."""

    def __init__(self, text: str) -> None:
        self.tokens = _tokens(text)
        self.position = 0
        self.depth = 0

    def whole(self) -> Fraction:
        value = self.sum()
        if self.position != len(self.tokens):
            raise _NotANumber
        return value

    def sum(self) -> Fraction:
        value = self.product()
        while mark := self.next_of("+", "-"):
            term = self.product()
            value = _bounded(value + term if mark == "+" else value - term)
        return value

    def product(self) -> Fraction:
        value = self.signed()
        was_divided = False
        while True:
            if mark := self.next_of("*", "/"):
                factor = self.signed()
                value = _bounded(value * factor if mark == "*" else value / factor)
                was_divided = mark == "/"
            elif self.peek() == "(" and not was_divided:  # 2(3); but 1/2(3) is read both ways
                value = _bounded(value * self.power())
            else:
                return value

    def signed(self) -> Fraction:
        sign = 1
        while mark := self.next_of("+", "-"):
            sign = -sign if mark == "-" else sign
        return sign * self.power()

    def power(self) -> Fraction:
        self.depth += 1  # every way deeper leads through here, and Python's own stack must not end it
        if self.depth > _MAX_DEPTH:
            raise _NotANumber
        value = self.postfix()
        if self.next_of("^"):
            value = _power(value, self.group() if self.peek() == "{" else self.signed())
        self.depth -= 1
        return value

    def postfix(self) -> Fraction:
        value = self.atom()
        while self.next_of("!"):
            if value.denominator != 1 or not 0 <= value <= 3000:
                raise _NotANumber
            value = _bounded(Fraction(math.factorial(int(value))))
        return value

    def atom(self) -> Fraction:
        token = self.peek()
        if isinstance(token, Fraction):
            self.position += 1
            return token
        if self.next_of("\\frac"):
            top = self.group()
            return _bounded(top / self.group())
        if token == "{":
            return self.group()
        if self.next_of("("):
            value = self.sum()
            self.expect(")")
            return value
        raise _NotANumber

    def group(self) -> Fraction:
        self.expect("{")
        value = self.sum()
        self.expect("}")
        return value

    def peek(self) -> Fraction | str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def next_of(self, *marks: str) -> str:
        token = self.peek()
        if isinstance(token, str) and token in marks:
            self.position += 1
            return token
        return ""

    def expect(self, mark: str) -> None:
        if not self.next_of(mark):
            raise _NotANumber


def _tokens(text: str) -> list[Fraction | str]:
    found: list[Fraction | str] = []
    position = 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if not match:
            raise _NotANumber
        if match["number"]:
            exponent = int((match["exponent"] or "e0")[1:])
            if abs(exponent) > 4000:
                raise _NotANumber
            found.append(Fraction(match["number"].replace(",", "").rstrip(".") or "0") * Fraction(10) ** exponent)
        else:
            found.append(match["mark"])
        position = match.end()
    return found


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise _NotANumber
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) * bits > _MAX_BITS:
        raise _NotANumber
    return Fraction(base) ** int(exponent)


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise _NotANumber
    return value
