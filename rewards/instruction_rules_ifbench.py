"""Some of IFBench's rules (Pyatkin et al., arXiv 2507.02833), from the words of their prompts, under `ifbench:` ids."""

from __future__ import annotations

from rewards.instruction_rules import Rule, sentences_of, words_of


def words_position(text: str, word: str, second: bool = True, second_last: bool = True) -> str | None:
    """The second word, and the second to last one, is `word`; punctuation is no word."""
    words = [each.lower() for each in words_of(text)]
    if len(words) < 2:
        return f"{len(words)} words"
    for is_asked, index, name in ((second, 1, "second"), (second_last, -2, "second to last")):
        if is_asked and words[index] != word.lower():
            return f"the {name} word is {words[index]!r:.60}, not {word!r:.60}"
    return None


def sentence_words(text: str) -> str | None:
    """Three sentences of as many characters each, and no word twice."""
    sentences = sentences_of(text)
    if len(sentences) != 3:
        return f"{len(sentences)} sentences, not three"
    if len({len(sentence) for sentence in sentences}) != 1:
        return "the sentences differ in length"
    words = [word.lower() for word in words_of(text)]
    return None if len(words) == len(set(words)) else "a word comes twice"


def sentence_type(text: str, declarative_to_interrogative: int = 2) -> str | None:
    """So many declarative sentences for each interrogative one, and at least one of these."""
    ends = [sentence.rstrip("\"'\u201d\u2019)]*_ ")[-1:] for sentence in sentences_of(text)]
    declarative, interrogative = ends.count("."), ends.count("?")
    holds = interrogative > 0 and declarative == declarative_to_interrogative * interrogative
    return None if holds else f"{declarative} declarative and {interrogative} interrogative sentences"


def repeat_span(text: str, span_of: str, start: int, end: int) -> str | None:
    """The words from `start` to `end`, both included, counted from 0 and split by white space."""
    return None if text.split() == span_of.split()[start : end + 1] else f"not the words {start} to {end}"


RULES: dict[str, Rule] = {
    "ifbench:words_position": words_position,
    "ifbench:ratio:sentence_words": sentence_words,
    "ifbench:ratio:sentence_type": sentence_type,
    "ifbench:repeat:repeat_span": repeat_span,
}
