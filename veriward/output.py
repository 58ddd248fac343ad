"""What the command line prints: lines, tables and JSON, safe for a terminal whatever a model wrote.

Results go to stdout, everything else to stderr. With `--json` stdout holds one JSON object and
nothing more.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.hostile import visible

SHOWN_CHARACTERS = 4000


def say(line: str) -> None:
    print(visible(line, one_line=True))


def note(text: str) -> None:
    """One line on stderr, as `veriward: ...`."""
    print(f"veriward: {visible(text, one_line=True)}", file=sys.stderr, flush=True)


def say_block(title: str, text: str) -> None:
    """A title, then text of any origin, indented so that it cannot pass for output of ours."""
    say(title)
    for line in visible(text, limit=SHOWN_CHARACTERS).split("\n"):
        print(f"  {line}")


def say_json(value: Any) -> None:
    """ASCII only, so no control or bidi character survives; NaN and infinities, which JSON lacks, are null."""
    print(json.dumps(_without_nan(value), indent=2, allow_nan=False).replace("\x7f", "\\u007f"))


def say_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A drawn table on a terminal, aligned columns elsewhere. The first column is text, the others figures."""
    safe = [[visible(cell, one_line=True) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw(title, columns, safe)
        return
    widths = [max(map(len, column)) for column in zip(columns, *safe, strict=True)]
    print(title)
    for row in (columns, *safe):
        cells = (cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        print("  " + "  ".join(cells).rstrip())


def interval_text(estimate: Mapping[str, Any] | None) -> str:
    """`0.512 [0.480, 0.545]` of {"value", "low", "high"}; `undefined` where there is no value."""
    value, low, high = ((estimate or {}).get(key) for key in ("value", "low", "high"))
    if not _is_number(value):
        return "undefined"
    return f"{value:.3f} [{low:.3f}, {high:.3f}]" if _is_number(low) and _is_number(high) else f"{value:.3f}"


def _draw(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=index > 0)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: a cell's square brackets are not markup
    Console().print(table)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return value
