"""Which part of a reply counts as its answer: the one place that decides it.

The rules are explicit and give one answer or none. A policy can neither hedge (the last box
counts, and rival boxes in one sentence count as none) nor be paid for thoughts it never finished.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])\s*")
_SENTENCE_END = re.compile(r"[.!?](?:\s|\$|\*|\)|$)|\n\s*\n")
# Bounded repetitions: a reply of 100,000 blanks must not cost their square.
_MARKER = re.compile(
    r"^[ \t]{0,8}\#{4}[ \t]|^[ \t]{0,8}\*{0,2}A:|\banswer[ \t]{0,4}\*{0,2}[ \t]{0,4}(?:is\b|[:=])[ \t]{0,4}:?",
    re.IGNORECASE | re.MULTILINE,
)
_FENCE = re.compile(r"[ \t]*(?P<mark>`{3,}|~{3,})[ \t]*(?P<tag>[\w+#.-]*)")
_TAGS = {
    "python": frozenset({"python", "py", "python3", "py3", "python2", "ipython"}),
    "c": frozenset({"c"}),
    "cpp": frozenset({"cpp", "c++", "cxx", "cc"}),
    "bash": frozenset({"bash", "sh", "shell"}),
    "javascript": frozenset({"javascript", "js", "node", "nodejs"}),
}
_SCANNED_CHARACTERS = 200_000


@dataclass(frozen=True)
class NoAnswer:
    """Why a reply has no answer."""

    why: str


def extract_answer(text: str, is_whole_text: bool = False) -> str | NoAnswer:
    r"""The final answer of a reply, as written.

    In this order: text up to the last `</think>` and after a `<think>` left open is set aside;
    then the last `\boxed{...}` (`\fbox` too), where one left open is no answer, and neither is one
    that differs from another box in its sentence ("either \boxed{6} or \boxed{7}"); then what
    follows the last "#### ", "A:", "answer is" or "Answer:"; then, only when `is_whole_text`,
    everything.
    """
    visible = outside_thoughts(text)
    if not visible.strip():
        return NoAnswer("nothing outside an unfinished think block" if text.strip() else "the reply is empty")
    visible = visible[-_SCANNED_CHARACTERS:]
    boxes = list(_BOX.finditer(visible))
    if boxes:
        return _last_box(visible, boxes)
    markers = list(_MARKER.finditer(visible))
    if markers and (answer := _first_line(visible[markers[-1].end() :])):
        return answer
    if is_whole_text:
        return visible.strip()
    return NoAnswer("no box and no final-answer marker")


def outside_thoughts(text: str) -> str:
    """What follows the last closed think block, up to a block left open.

    A template may have opened the block in the prompt, so a lone `</think>` closes one too.
    """
    visible = text.rsplit(_THINK_CLOSE, 1)[-1]
    return visible.split(_THINK_OPEN, 1)[0]


def box_starts(text: str) -> list[int]:
    r"""Where each `\boxed` or `\fbox` begins, closed or not."""
    return [match.start() for match in _BOX.finditer(text)]


def extract_code(text: str, language: str = "python") -> str:
    """The program in a reply: its last fence tagged as that language, else its last fence, else all of it.

    A later untagged fence is usually a sample run, not code (open-r1's extract_code took it).
    """
    visible = outside_thoughts(text)
    blocks = _fenced_blocks(visible)
    tags = _TAGS.get(language, frozenset({language}))
    tagged = [code for tag, code in blocks if tag.lower() in tags]
    return (tagged or [code for _, code in blocks] or [visible])[-1]


def _fenced_blocks(text: str) -> list[tuple[str, str]]:
    """(tag, content) of each closed fence, in one pass over the lines. A block left open is none."""
    blocks: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    content: list[str] = []
    for line in text.splitlines(keepends=True):
        fence = _FENCE.match(line)
        if opened is None:
            opened, content = fence, []
        elif fence and fence["mark"] == opened["mark"] and not line[fence.end("mark") :].strip():
            blocks.append((opened["tag"], "".join(content)))
            opened = None
        else:
            content.append(line)
    return blocks


def _last_box(text: str, boxes: list[re.Match[str]]) -> str | NoAnswer:
    last = boxes[-1]
    content = _braced(text, last.end())
    if content is None:
        return NoAnswer("the last box is not closed")
    if not content.strip():
        return NoAnswer("the last box is empty")
    for rival, following in zip(boxes[-2::-1], boxes[:0:-1], strict=True):
        said = _braced(text, rival.end()) or ""
        if _SENTENCE_END.search(text, rival.end() + len(said), following.start()):
            break
        if _squeezed(said) != _squeezed(content):
            return NoAnswer("different boxes in one sentence")
    return content.strip()


def _braced(text: str, start: int) -> str | None:
    """The content of the group that opens at `start`; None when none does or it never closes."""
    if start >= len(text) or text[start] != "{":
        return None
    depth, position = 0, start
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        position = match.start()
        if match[0] == "{":
            depth += 1
        elif match[0] == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : position]
    return None


def _first_line(text: str) -> str:
    for line in text.lstrip("*_ \t").splitlines():
        if line.strip(" \t*_"):
            return line.strip(" \t*_")
    return ""


def _squeezed(text: str) -> str:
    return "".join(text.split())
