"""What a policy must have done or said along the way: required actions and required phrases.

Both are necessary conditions, to be asked for beside `state_verdict` and never alone: a policy that
calls every tool, or recites every number, meets them too.
"""

from __future__ import annotations

import re
from collections import Counter

from rewards.extraction import outside_thoughts
from rewards.tool_json import Unreadable
from rewards.tool_parsing import as_call
from rewards.verdict import Verdict

_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
_DECIMALS = re.compile(r"(?<![\d.])(\d+)(?:\.(\d*[1-9])0*|\.0+)(?!\d|\.\d)")
_SAME_MARKS = str.maketrans({"\N{RIGHT SINGLE QUOTATION MARK}": "'", "\N{MINUS SIGN}": "-"})


def actions_verdict(made: object, required: object) -> Verdict:
    """Was every required action made, as often as it is listed? By name; others may be made too.

    made      the names of the calls, or the calls themselves.
    required  names; none at all is `unscored`, since nothing would be verified.
    """
    if not isinstance(required, (list, tuple)) or not all(isinstance(name, str) and name for name in required):
        return Verdict.unscored("the required actions are no list of names")
    if not required:
        return Verdict.unscored("no action is required")
    if not isinstance(made, (list, tuple)):
        return Verdict.failed("unparsed", f"actions of type {type(made).__name__}; a list is wanted")
    try:
        names = Counter(item if isinstance(item, str) else as_call(item).name for item in made)
    except Unreadable as error:
        return Verdict.failed("unparsed", str(error))
    missing = list((Counter(required) - names).elements())
    parts = {"actions": 1 - len(missing) / len(required)}
    if not missing:
        return Verdict.correct(parts=parts)
    return Verdict.wrong(f"{missing[0]!a:.80} was not called", parts)


def phrases_verdict(text: object, phrases: object) -> Verdict:
    """Does what the policy said hold every required phrase, as words of one message?

    text     a reply or a list of messages; thoughts are not said.
    phrases  texts; none at all is `unscored`. Case, blanks, thousands commas and zeros at a
             decimal's end aside: "1126.5" is in "$1,126.50". "10" is not in "100", "10.5" or "-10"
             (tau-bench#89), nor "rock" in "rocket".
    """
    if not isinstance(phrases, (list, tuple)) or not all(isinstance(one, str) and one.strip() for one in phrases):
        return Verdict.unscored("the required phrases are no list of texts")
    if not phrases:
        return Verdict.unscored("no phrase is required")
    messages = [text] if isinstance(text, str) else text
    if not isinstance(messages, (list, tuple)) or not all(isinstance(message, str) for message in messages):
        return Verdict.failed("unparsed", "what was said is no text, nor a list of texts")
    said = [_normalised(outside_thoughts(message)) for message in messages]
    missing = [one for one in phrases if not any(_holds(message, _normalised(one)) for message in said)]
    parts = {"phrases": 1 - len(missing) / len(phrases)}
    if not missing:
        return Verdict.correct(parts=parts)
    return Verdict.wrong(f"{missing[0]!a:.80} was not said", parts)


def _normalised(text: str) -> str:
    text = text.translate(_SAME_MARKS).casefold()
    text = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)
    text = _DECIMALS.sub(lambda number: f"{number[1]}.{number[2]}" if number[2] else number[1], text)
    return f" {' '.join(text.split())} "


def _holds(text: str, phrase: str) -> bool:
    phrase = phrase.strip()
    before, after = "", ""
    if re.match(r"\w", phrase):
        before = r"(?<!\w)"
    if re.match(r"\d", phrase):  # not the rest of a decimal, and not a negative number's digits
        before += r"(?<!\d\.)(?<!\s\.)(?<!\s-)(?<!\s-\$)"
    if re.search(r"\w$", phrase):
        after = r"(?!\w)"
    if re.search(r"\d$", phrase):
        after += r"(?!\.\d)"
    return re.search(before + re.escape(phrase) + after, text) is not None
