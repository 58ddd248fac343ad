"""Other spellings of a reference that parse to something else and mean the same, and near values that do not."""

from __future__ import annotations

import re

_INTEGER = re.compile(r"-?\d+")
_FRACTION = re.compile(r"(-?)\\d?frac\{(\d+)\}\{(\d+)\}")
_DECIMAL = re.compile(r"(-?)(\d*)\.(\d+)")
_PAIR = re.compile(r"(?:\\left)?([(\[])([^()\[\]]*,[^()\[\]]*?)(?:\\right)?([)\]])")
# What these say stands for a whole that arithmetic on it would take apart.
_NO_EXPRESSION = re.compile(
    r"[=<>,$%]|_|\\(?:text|mathrm|mbox|in|le|ge|leq|geq|leqslant|geqslant|pm|cup|circ|begin|infty|ldots)(?![a-zA-Z])"
    r"|\d\s*\\[dt]?frac|°|\.\.\."
)


def rewrites(reference: str) -> tuple[list[str], list[str]]:
    """(same, different); both empty for a kind of reference that is not taken apart here."""
    text = reference.strip().strip("$").strip()
    if _INTEGER.fullmatch(text):
        n = int(text)
        return [rf"\frac{{{2 * n}}}{{2}}", f"{n}.0", f"{n - 3}+3"], [
            f"{n + 1}",
            f"{n}.5",
            rf"\frac{{{2 * n + 1}}}{{2}}",
        ]
    if found := _FRACTION.fullmatch(text):
        sign, top, bottom = found[1], int(found[2]), int(found[3])
        same = [rf"{sign}\frac{{{3 * top}}}{{{3 * bottom}}}", f"{sign}{top}/{bottom}", f"{sign}({top}/{bottom})"]
        return same, [rf"{sign}\frac{{{top + bottom}}}{{{bottom}}}", f"{sign}{top}/{bottom + 1}"]
    if found := _DECIMAL.fullmatch(text):
        sign, whole, part = found.groups()
        same = [f"{text}0", rf"{sign}\frac{{{int(whole + part)}}}{{{10 ** len(part)}}}"]
        return same, [f"{text}1", f"{sign}1{whole}.{part}"]
    if found := _PAIR.fullmatch(text):
        return _of_a_pair(found[1], found[2].split(","), found[3])
    if _NO_EXPRESSION.search(text) or not re.search(r"[0-9a-z]", text):
        return [], []
    return [rf"\frac{{2({text})}}{{2}}", f"({text})+1-1"], [f"({text})+1", f"2({text})+1"]


def _of_a_pair(left: str, parts: list[str], right: str) -> tuple[list[str], list[str]]:
    if any(_NO_EXPRESSION.search(part.replace(r"\infty", "")) for part in parts):
        return [], []
    finite = [index for index, part in enumerate(parts) if "infty" not in part]
    if not finite:
        return [], []

    def built(change: str, of: list[int]) -> str:
        return left + ", ".join(f"({part}){change}" if i in of else part for i, part in enumerate(parts)) + right

    return [built("+1-1", finite)], [built("+1", finite[:1]), built("-1", finite[-1:])]
