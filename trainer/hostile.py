"""Text made by a model, made safe to look at.

A reply may hold terminal escapes, bidirectional overrides or invisible characters. Whoever shows
one to a person passes it through `visible` first; HTML is escaped on top of that.
"""

from __future__ import annotations

import unicodedata

# Controls, formats (bidi, zero-width, tags), surrogates, private and unassigned code points, line and
# paragraph separators: everything that a terminal may obey or that an eye cannot see.
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str, *, limit: int | None = None, one_line: bool = False) -> str:
    """The text with everything unseen spelled out as `\\x1b` or `\\u202e`, cut after `limit` characters.

    Newlines and tabs stay, unless `one_line`. The cut says how many characters it took. The result
    always encodes as UTF-8 and is at most ten times as long as what was kept.
    """
    cut = "" if limit is None or len(text) <= limit else f" [... {len(text) - limit} more characters]"
    kept = "" if one_line else "\n\t"
    return "".join(_spelled(c, kept) for c in (text if limit is None else text[:limit])) + cut


def _spelled(character: str, kept: str) -> str:
    if character.isprintable() or character in kept:
        return character
    if unicodedata.category(character) not in _UNSEEN:
        return character  # an unusual space
    if character in "\n\t\r":
        return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}[character]
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
