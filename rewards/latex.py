r"""One spelling for what LaTeX and plain text spell in many ways, before anything is compared.

Only layout and synonyms change (`\dfrac`, `\left`, thin spaces, `\mathrm{e}`, `sqrt(x)`); no symbol
is dropped, so nothing that was different becomes equal.
"""

from __future__ import annotations

import re

_LAYOUT = re.compile(
    r"\\(?:left|right|bigl?|bigr|Bigl?|Bigr|displaystyle|textstyle|limits|nolimits)(?![a-zA-Z])|\\[!,;:>]|~"
)
_SYNONYMS = (
    (re.compile("[\u2212\u2013]"), "-"),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile("\\\\(?:cdot|times|ast)(?![a-zA-Z])|[\u00d7\u00b7\u22c5]"), "*"),
    (re.compile(r"\\div(?![a-zA-Z])|÷"), "/"),
    (re.compile(r"\\(?:mathrm|text|operatorname)\{\s*(e|i|pi)\s*\}"), r"\1"),
    (re.compile(r"\\(?:leq|leqslant|le)(?![a-zA-Z])|≤|<="), r"\\le "),
    (re.compile(r"\\(?:geq|geqslant|ge)(?![a-zA-Z])|≥|>="), r"\\ge "),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(r"π"), r"\\pi "),
    (re.compile(r"∞"), r"\\infty "),
    (re.compile(r"√"), r"\\sqrt "),
    (re.compile(r"\\frac(?![a-zA-Z])\s*([0-9a-zA-Z])\s*([0-9a-zA-Z])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac(?![a-zA-Z])\s*([0-9a-zA-Z])\s*\{"), r"\\frac{\1}{"),
    (re.compile(r"(\\frac\{[^{}]*\})\s*([0-9a-zA-Z])"), r"\1{\2}"),
    (re.compile(r"\\sqrt\s*(\d)"), r"\\sqrt{\1}"),
    (re.compile(r"\\(?:dots|cdots|dotsc|dotsb)(?![a-zA-Z])|\.\.\.|…"), r"\\ldots "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\\\\\s*(\\end)"), r"\1"),
    (re.compile(r"(?<![a-zA-Z\\])\\?sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![a-zA-Z\\])(pi|exp|sin|cos|tan|log|ln)(?![a-zA-Z])"), r"\\\1 "),
)
_FENCES = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("`", "`"))


def normalised(text: str) -> str:
    """`text` in one spelling, outer fences and a closing full stop removed."""
    text = without_fences(text)
    text = _LAYOUT.sub("", text)
    for pattern, replacement in _SYNONYMS:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


def without_fences(text: str) -> str:
    text = text.strip()
    while True:
        before = text
        if not text.endswith("..."):
            text = text.rstrip(".,; ")
        for left, right in _FENCES:
            inner = text[len(left) : -len(right)]
            if text.startswith(left) and text.endswith(right) and inner and left not in inner:
                text = inner.strip()
        if text == before:
            return text


def ascending(text: str) -> str:
    r"""A chain like `3>x>-2` read from its other end, `-2<x<3`; anything else unchanged."""
    parts = re.split(r"(>|\\ge(?![a-zA-Z]))", text)
    if len(parts) != 5 or "<" in text or "\\le " in text or "=" in text:
        return text
    turned = {">": "<", "\\ge": "\\le "}
    return "".join(turned.get(part, part.strip()) for part in reversed(parts))


def both_signs(text: str) -> str:
    r"""`1 \pm 2` as the set of the two values it stands for; what is no plain value stays as it is."""
    if text.count("\\pm") != 1 or re.search(r"\\mp(?![a-zA-Z])|[=<>,]|\\(?:le|ge|in|text)(?![a-zA-Z])", text):
        return text
    before, _, after = text.partition("\\pm")
    return (
        rf"\{{{before}+{after}, {before}-{after}\}}" if before.strip() else rf"\{{{after.strip()}, -{after.strip()}\}}"
    )
