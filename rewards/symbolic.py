r"""Symbolic comparison by math-verify; runs only inside a worker process, which bounds it.

math-verify's own time limits are off (signals work in main threads only: Math-Verify#50, #55, and
its alarm is blind while C code runs), its unit stripping is off (it deletes variables: `3x+2t`
would equal `3x+2`), and numbers are compared here, with relative precision (Math-Verify#14, #21).
"""

from __future__ import annotations

from typing import Any

_DIGITS = 60
_CLOSENESS_OF_DECIMALS = 1e-6


def load() -> None:
    """Import what `compare` needs, so that the first call's limit does not pay for it."""
    import math_verify  # noqa: F401


def compare(reference: str, answer: str) -> dict[str, bool]:
    """Which of the two normalised texts can be parsed, and whether they mean the same."""
    wanted, given = _parsed(reference), _parsed(answer)
    is_same = wanted is not None and given is not None and _is_same(wanted, given)
    return {"reference_parses": wanted is not None, "answer_parses": given is not None, "is_same": is_same}


def _parsed(latex: str) -> Any:
    """The sympy object of the whole text; None when there is none."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    whole_box = LatexExtractionConfig(
        boxed_match_priority=0,
        normalization_config=NormalizationConfig(
            basic_latex=True, units=False, malformed_operators=False, nits=False, boxed="last"
        ),
    )
    # A box is the one anchor that makes math-verify read all of the text (Math-Verify#56, #60, #70).
    found = parse(
        f"$\\boxed{{{latex}}}$",
        [whole_box],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return found[0] if found else None


def _is_same(wanted: Any, given: Any) -> bool:
    from math_verify import verify
    from sympy import Expr, I

    if isinstance(wanted, Expr) and isinstance(given, Expr):
        # math-verify knows i as a number in some places only; then (1-i)/2 is not 1/(1+i).
        names = {symbol: I for symbol in wanted.free_symbols | given.free_symbols if symbol.name == "i"}
        if names:
            wanted, given = wanted.subs(names), given.subs(names)
        if wanted.is_number and given.is_number:
            return _is_same_number(wanted, given)
    return bool(verify([wanted], [given], timeout_seconds=None, allow_set_relation_comp=True))


def _is_same_number(wanted: Any, given: Any) -> bool:
    """Equal to 45 digits; to 1e-6 of the value when one side, not both, holds a decimal."""
    from sympy import Float

    a, b = wanted.evalf(_DIGITS), given.evalf(_DIGITS)
    size = max(abs(a), abs(b))
    if not size.is_finite:
        return bool(a == b)
    is_decimal = [bool(side.atoms(Float)) for side in (wanted, given)]
    allowed = _CLOSENESS_OF_DECIMALS if is_decimal[0] != is_decimal[1] else 10.0 ** (15 - _DIGITS)
    if all(is_decimal):
        allowed = 1e-12  # decimals arrive as binary floats of 15 digits
    return bool(abs(a - b) <= allowed * size)
