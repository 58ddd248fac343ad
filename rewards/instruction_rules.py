"""IFEval's rules, each written from what its prompts ask for, as a function of the reply: None, or why it is broken.

Ids and argument names are the data set's own (Zhou et al., arXiv 2311.07911). Public checkers' known
faults are not repeated: a word is a word and no part of one, a keyword no pattern, `---` no bullet,
and a bold section one section (lm-evaluation-harness, olmo-eval#320, sieval#104).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from rewards.languages_of_text import language_of

Rule = Callable[..., str | None]

_WORD = re.compile(r"\w+(?:['\u2019-]\w+)*")
_SENTENCE_END = re.compile(r"[.!?…]+[\"'\u201d\u2019)\]*_]*(?=\s|$)|\n\s*\n")
_ABBREVIATION = re.compile(r"(?:\b(?:mr|mrs|ms|dr|prof|st|vs|etc|jr|sr|approx)|\b[a-z]|\b(?:e\.g|i\.e))\.$", re.I)
_THEMATIC_BREAK = re.compile(r"\s*([*_-])(?:[ \t]*\1){2,}\s*$")
_BULLET = re.compile(r"[ \t]*[*-][ \t]+\S")
_HIGHLIGHT = re.compile(r"\*\*[^*\n]+\*\*|\*[^*\n]+\*")
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\](?!\()")
_TITLE = re.compile(r"<<([^\n<>]+)>>")
_FENCE = re.compile(r"\s*```(?:json)?[ \t]*\n(.*?)\n?```\s*", re.DOTALL | re.IGNORECASE)
_CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def words_of(text: str) -> list[str]:
    return _WORD.findall(text)


def sentences_of(text: str) -> list[str]:
    """Split after `.`, `!` or `?` before white space and at blank lines; a usual abbreviation ends none."""
    found, start = [], 0
    for match in _SENTENCE_END.finditer(text):
        if text[match.start()] == "." and _ABBREVIATION.search(text, max(start, match.start() - 12), match.start() + 1):
            continue
        found.append(text[start : match.end()].strip())
        start = match.end()
    return [part for part in [*found, text[start:].strip()] if _WORD.search(part)]


def paragraphs_of(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"\n[ \t]*\n", text) if part.strip()]


def count_of(phrase: str, text: str) -> int:
    """How often `phrase` stands in `text` as whole words, case aside."""
    inner = r"\s+".join(map(re.escape, phrase.split()))
    return len(re.findall(rf"(?<!\w){inner}(?!\w)", text, re.IGNORECASE))


def _counted(count: int, relation: str, wanted: int, what: str) -> str | None:
    if relation not in ("at least", "less than"):
        raise ValueError(f"relation {str(relation)[:40]!r} is neither 'at least' nor 'less than'")
    holds = count >= wanted if relation == "at least" else count < wanted
    return None if holds else f"{count} {what}, not {relation} {wanted}"


def existence(text: str, keywords: list[str]) -> str | None:
    missing = [word for word in _texts(keywords) if not count_of(word, text)]
    return f"{missing[0]!r:.60} is missing" if missing else None


def frequency(text: str, keyword: str, frequency: int, relation: str) -> str | None:
    return _counted(count_of(_text(keyword), text), relation, _whole(frequency), f"times {keyword!r:.60}")


def forbidden_words(text: str, forbidden_words: list[str]) -> str | None:
    there = [word for word in _texts(forbidden_words) if count_of(word, text)]
    return f"{there[0]!r:.60} is there" if there else None


def letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> str | None:
    if len(_text(letter)) != 1:
        raise ValueError(f"letter {letter!r:.40} is not one character")
    count = text.lower().count(letter.lower())
    return _counted(count, let_relation, _whole(let_frequency), f"times {letter!r}")


def response_language(text: str, language: str) -> str | None:
    found = language_of(text)
    return None if found == _text(language) else f"the language is {found or 'not to be told'}, not {language}"


def number_sentences(text: str, num_sentences: int, relation: str) -> str | None:
    return _counted(len(sentences_of(text)), relation, _whole(num_sentences), "sentences")


def number_words(text: str, num_words: int, relation: str) -> str | None:
    return _counted(len(words_of(text)), relation, _whole(num_words), "words")


def number_paragraphs(text: str, num_paragraphs: int) -> str | None:
    """Between lines of `***`; one before the first or after the last paragraph separates nothing."""
    parts = re.split(r"^[ \t]*\*\*\*[ \t]*$", text, flags=re.MULTILINE)
    inner = parts[bool(not parts[0].strip()) : len(parts) - bool(not parts[-1].strip())]
    if not all(part.strip() for part in inner):
        return "an empty paragraph"
    return _exactly(len(inner), _whole(num_paragraphs), "paragraphs")


def nth_paragraph_first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> str | None:
    paragraphs, nth = paragraphs_of(text), _whole(nth_paragraph)
    if not 1 <= nth <= _whole(num_paragraphs):
        raise ValueError(f"paragraph {nth} of {num_paragraphs}")
    if len(paragraphs) != num_paragraphs:
        return f"{len(paragraphs)} paragraphs, not {num_paragraphs}"
    words = words_of(paragraphs[nth - 1])
    is_there = bool(words) and words[0].lower() == _text(first_word).lower()
    return None if is_there else f"paragraph {nth} does not begin with {first_word!r:.60}"


def number_placeholders(text: str, num_placeholders: int) -> str | None:
    """In square brackets; a link's text and an empty box are none."""
    count = sum(bool(match[0][1:-1].strip()) for match in _PLACEHOLDER.finditer(text))
    return _counted(count, "at least", _whole(num_placeholders), "placeholders")


def postscript(text: str, postscript_marker: str) -> str | None:
    """A line that begins with the marker, and says something after it."""
    inner = r"[ \t]?".join(re.escape(character) for character in _text(postscript_marker) if not character.isspace())
    found = re.search(rf"^[ \t>*_#]{{0,20}}{inner}[ \t:*_]*\S", text, re.IGNORECASE | re.MULTILINE)
    return None if found else f"no line begins with {postscript_marker!r:.20}"


def number_bullet_lists(text: str, num_bullets: int) -> str | None:
    lines = [line for line in text.split("\n") if _BULLET.match(line) and not _THEMATIC_BREAK.match(line)]
    return _exactly(len(lines), _whole(num_bullets), "bullet points")


def constrained_response(text: str) -> str | None:
    given = [choice for choice in _CHOICES if choice in text]
    return None if len(given) == 1 else f"{len(given)} of the three answers are given"


def number_highlighted_sections(text: str, num_highlights: int) -> str | None:
    count = sum(bool(match[0].strip("* \t")) for match in _HIGHLIGHT.finditer(text))
    return _counted(count, "at least", _whole(num_highlights), "highlighted sections")


def multiple_sections(text: str, section_spliter: str, num_sections: int) -> str | None:
    """Marked as SECTION 1, SECTION II or SECTION X; a mark that comes again opens no new one."""
    mark = rf"(?<!\w){re.escape(_text(section_spliter).strip())}\s?(\d{{1,6}}|[IVXLC]{{1,8}}|[A-Z])(?!\w)"
    labels = {match[1].upper() for match in re.finditer(mark, text, re.IGNORECASE)}
    return _counted(len(labels), "at least", _whole(num_sections), "sections")


def json_format(text: str) -> str | None:
    fenced = _FENCE.fullmatch(text)
    try:
        json.loads(fenced[1] if fenced else text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {str(error)[:80]}"
    return None


def title(text: str) -> str | None:
    return (
        None if any(match[1].strip() for match in _TITLE.finditer(text)) else "no title in <<double angular brackets>>"
    )


def two_responses(text: str) -> str | None:
    parts = [part.strip() for part in re.split(r"\*{6}", text)]
    parts = parts[not parts[0] : len(parts) - (not parts[-1])]
    if len(parts) != 2 or not all(parts):
        return f"{len(parts)} responses, not two"
    return "both responses are the same" if parts[0] == parts[1] else None


def repeat_prompt(text: str, prompt_to_repeat: str) -> str | None:
    prompt, given = _text(prompt_to_repeat).strip().lower(), text.strip().lower()
    if not given.startswith(prompt):
        return "does not begin with the request"
    return None if given[len(prompt) :].strip() else "no answer follows the repeated request"


def end_checker(text: str, end_phrase: str) -> str | None:
    is_last = text.strip().strip('"').strip().lower().endswith(_text(end_phrase).strip().lower())
    return None if is_last else f"does not end with {end_phrase!r:.80}"


def quotation(text: str) -> str | None:
    text = text.strip()
    is_wrapped = len(text) > 2 and text[0] == text[-1] == '"' and bool(text[1:-1].strip())
    return None if is_wrapped else "not wrapped in double quotation marks"


def capital_word_frequency(text: str, capital_frequency: int, capital_relation: str) -> str | None:
    count = sum(word.isupper() for word in words_of(text))
    return _counted(count, capital_relation, _whole(capital_frequency), "words in capital letters")


def english_capital(text: str) -> str | None:
    return _in_english(text) if text.isupper() else "not all letters are capital"


def english_lowercase(text: str) -> str | None:
    return _in_english(text) if text.islower() else "not all letters are lowercase"


def no_comma(text: str) -> str | None:
    return "there is a comma" if "," in text else None


def _in_english(text: str) -> str | None:
    found = language_of(text)
    return None if found == "en" else f"the language is {found or 'not to be told'}, not English"


def _exactly(count: int, wanted: int, what: str) -> str | None:
    return None if count == wanted else f"{count} {what}, not {wanted}"


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r:.60} is no text")
    return value


def _texts(values: Any) -> list[str]:
    if not isinstance(values, (list, tuple)) or not values:
        raise ValueError(f"{values!r:.60} is no list of words")
    return [_text(value) for value in values]


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value) or value < 0:
        raise ValueError(f"{value!r:.60} is no count")
    return int(value)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


RULES: dict[str, Rule] = {
    "keywords:existence": existence,
    "keywords:frequency": frequency,
    "keywords:forbidden_words": forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:number_words": number_words,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_checker,
    "startend:quotation": quotation,
    "change_case:capital_word_frequency": capital_word_frequency,
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
    "punctuation:no_comma": no_comma,
}
