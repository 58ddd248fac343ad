"""The instruction verdict: IFEval's prompts, every rule both ways by construction, and text that wants to break it."""

from __future__ import annotations

import json
import string
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.instruction_rules import RULES, sentences_of, words_of
from rewards.instructions import from_ifeval, instruction_verdict, instruction_verdict_async

ENGLISH = "The quick brown fox jumps over the lazy dog while the farmer is watching it from his old house"


def follows(text: str, rule: str, /, **arguments: object) -> bool:
    verdict = instruction_verdict(text, [{"id": rule, **arguments}])
    assert verdict.status in ("correct", "wrong"), verdict
    return verdict.status == "correct"


# A reply that follows, one that just does not, for every rule.
BOTH_WAYS = [
    ("keywords:existence", {"keywords": ["story", "x-ray"]}, "An X-ray story", "A storyteller's x-ray"),
    ("keywords:frequency", {"keyword": "war", "relation": "at least", "frequency": 2}, "war, WAR", "war award"),
    ("keywords:frequency", {"keyword": "a.b", "relation": "less than", "frequency": 1}, "acb", "a.b"),
    ("keywords:forbidden_words", {"forbidden_words": ["rock"]}, "rocky rockets", "We will Rock."),
    ("keywords:letter_frequency", {"letter": "#", "let_relation": "at least", "let_frequency": 2}, "#a #b", "#a"),
    ("keywords:letter_frequency", {"letter": "E", "let_relation": "less than", "let_frequency": 2}, "eat", "Eel"),
    ("language:response_language", {"language": "de"}, "Das ist ein ganz gewöhnlicher Satz auf Deutsch.", ENGLISH),
    ("length_constraints:number_sentences", {"relation": "less than", "num_sentences": 3}, "A. B?", "Aa. Bb? Cc!"),
    ("length_constraints:number_sentences", {"relation": "at least", "num_sentences": 2}, "So. It is!", "3.5 e.g. two"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb\n***\n", "a\n***\nb\n***\nc"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a ***b***\n\n***\nc", "a\n***\n***\nc"),
    ("length_constraints:number_words", {"relation": "at least", "num_words": 3}, "well-known don't go", "one - two"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Hello"},
        "x\n\n\n\n'hello there",
        "x\n\nnot hello",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] [b c]", "[a] [ ] [link](url)"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "x\n**p. p. s** y", "x P.P.S y"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n  - b\n---\n* * *", "* a\n*b*\n- "),
    ("detectable_format:constrained_response", {}, "I think: My answer is no.", "My answer is no. My answer is yes."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* **b**", "**a** ** ** * *"),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2}, "SECTION 1 x section II",
     "Section 1 Section 1 sectional 3"),
    ("detectable_format:json_format", {}, '```json\n{"a": [1]}\n```', '{"a": NaN}'),
    ("detectable_format:title", {}, "<<A song>>\nx", "<< >> <<\n>>"),
    ("combination:two_responses", {}, "A\n******\nB\n******", "A\n******\nB\n******\nC"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it."}, "say it. It.", "Say it."),
    ("startend:end_checker", {"end_phrase": "Is that all?"}, 'Yes. is that ALL?"', "Is that all? Yes."),
    ("startend:quotation", {}, ' "x" ', '"x'),
    ("change_case:capital_word_frequency", {"capital_relation": "at least", "capital_frequency": 2}, "A B", "A Is"),
    ("change_case:english_capital", {}, ENGLISH.upper(), ENGLISH),
    ("change_case:english_lowercase", {}, ENGLISH.lower(), ENGLISH),
    ("punctuation:no_comma", {}, "a b", "a, b"),
    ("ifbench:words_position", {"word": "so", "second": True, "second_last": True}, "It so is so big.", "So so it is."),
    ("ifbench:ratio:sentence_words", {}, "Cat. Dog. Owl.", "Cat. Dog. Cat."),
    ("ifbench:ratio:sentence_type", {"declarative_to_interrogative": 2}, "It is. It was. Is it?", "It is. It was."),
    ("ifbench:repeat:repeat_span", {"text": "a b c d", "start": 1, "end": 2}, "b\nc", "b c d"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "arguments", "good", "bad"), BOTH_WAYS, ids=lambda value: str(value)[:30])
def test_every_rule_is_followed_and_broken(rule, arguments, good, bad):
    assert follows(good, rule, **arguments)
    assert not follows(bad, rule, **arguments)


def test_every_rule_of_the_data_has_a_pair_above():
    assert {rule for rule, *_ in BOTH_WAYS} >= set(RULES)


def test_every_prompt_of_ifeval_can_be_judged(shared_data: Callable[[str], Path]) -> None:
    path = shared_data("data/ifeval/ifeval_input_data_en_prefixed.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == 541
    replies = (ENGLISH, "<<T>>\n\n* a\n* b\n\nP.S. so", "\x00")
    for row in rows:
        for mode in ("strict", "loose"):
            for reply in replies:
                verdict = instruction_verdict(reply, from_ifeval(row), mode=mode)
                assert verdict.status in ("correct", "wrong"), (row["key"], verdict)


WORD = st.text(string.ascii_lowercase, min_size=1, max_size=8)


@given(st.lists(WORD, min_size=1, max_size=40), WORD, st.integers(1, 5))
def test_words_are_counted_whole(words, keyword, wanted):
    text = " ".join(words)
    count = words.count(keyword)
    assert follows(text, "keywords:frequency", keyword=keyword, relation="at least", frequency=wanted) == (
        count >= wanted
    )
    assert follows(text, "length_constraints:number_words", relation="less than", num_words=wanted) == (
        len(words) < wanted
    )
    assert follows(text, "keywords:forbidden_words", forbidden_words=[keyword]) == (count == 0)
    glued = "".join(words)
    assert follows(glued, "keywords:existence", keywords=[keyword]) == (glued == keyword)


@given(st.lists(WORD, min_size=1, max_size=8), st.integers(0, 9))
def test_counts_of_parts_are_exact(parts, wanted):
    built = {
        "detectable_format:number_bullet_lists": ("\n".join(f"* {part}" for part in parts), {"num_bullets": wanted}),
        "length_constraints:number_paragraphs": ("\n***\n".join(parts), {"num_paragraphs": wanted}),
    }
    for rule, (text, arguments) in built.items():
        assert follows(text, rule, **arguments) == (len(parts) == wanted)
    at_least = {
        "detectable_format:number_highlighted_sections": (
            " ".join(f"*{p}*" for p in parts),
            {"num_highlights": wanted},
        ),
        "detectable_content:number_placeholders": (" ".join(f"[{p}]" for p in parts), {"num_placeholders": wanted}),
    }
    for rule, (text, arguments) in at_least.items():
        assert follows(text, rule, **arguments) == (len(parts) >= wanted)


@given(st.lists(st.lists(WORD, min_size=2, max_size=5), min_size=1, max_size=8), st.sampled_from([". ", "! ", "?\n"]))
def test_sentences_are_as_many_as_were_put_together(sentences, end):
    text = "".join(" ".join(words) + end for words in sentences if words[-1] not in ("mr", "mrs", "ms", "dr", "st"))
    kept = [words for words in sentences if words[-1] not in ("mr", "mrs", "ms", "dr", "st")]
    longer = [words for words in kept if len(words[-1]) > 1 or end != ". "]
    assert len(longer) <= len(sentences_of(text)) <= len(kept)


def test_usual_abbreviations_and_decimals_end_no_sentence():
    assert len(sentences_of("Dr. Smith paid 3.5 dollars, e.g. for J. Doe. Then he left.")) == 2


def test_loose_forgives_a_line_around_the_answer_and_asterisks():
    rule = [{"id": "startend:quotation"}]
    assert instruction_verdict('Sure:\n"x"', rule).status == "wrong"
    for text in ('Sure:\n"x"', '"x"\nHope that helps', 'Sure:\n"x"\nBye', '**"x"**', 'Sure:\n*"x"*\nBye'):
        assert instruction_verdict(text, rule, mode="loose").status == "correct"
    assert instruction_verdict('Oh\nSure:\n"x"', rule, mode="loose").status == "wrong"
    assert instruction_verdict("a,\nb\nc,", [{"id": "punctuation:no_comma"}], mode="loose").status == "correct"


def test_the_share_that_is_followed_is_a_part_and_the_first_that_is_not_the_detail():
    rules = [{"id": "punctuation:no_comma"}, {"id": "startend:quotation"}, {"id": "detectable_format:title"}]
    verdict = instruction_verdict("no quotes", rules)
    assert (verdict.status, verdict.score, dict(verdict.parts)) == ("wrong", 0.0, {"followed": pytest.approx(1 / 3)})
    assert verdict.detail.startswith("startend:quotation: ")


@pytest.mark.parametrize("rule", sorted(RULES))
def test_an_empty_reply_follows_nothing(rule):
    arguments = next(given for name, given, *_ in BOTH_WAYS if name == rule)
    for text in ("", " \n\t"):
        assert instruction_verdict(text, [{"id": rule, **arguments}], mode="loose").status == "wrong"


@pytest.mark.parametrize(
    ("instructions", "says"),
    [
        ([], "no instructions"),
        ([{"id": "unknown:rule"}], "'unknown:rule' is unknown"),
        ([{}], "is unknown"),
        ([{"id": "keywords:frequency", "keyword": "a"}], "missing a required argument"),
        ([{"id": "punctuation:no_comma", "extra": 1}], "unexpected keyword"),
        ([{"id": "keywords:frequency", "keyword": "a", "relation": "about", "frequency": 2}], "relation 'about'"),
        ([{"id": "keywords:frequency", "keyword": "", "relation": "at least", "frequency": 2}], "is no text"),
        ([{"id": "keywords:existence", "keywords": "abc"}], "no list of words"),
        ([{"id": "keywords:existence", "keywords": []}], "no list of words"),
        ([{"id": "length_constraints:number_paragraphs", "num_paragraphs": "2"}], "no count"),
        ([{"id": "length_constraints:number_paragraphs", "num_paragraphs": True}], "no count"),
        ([{"id": "detectable_format:number_bullet_lists", "num_bullets": float("nan")}], "instruction"),
        ([{"id": "length_constraints:nth_paragraph_first_word", "num_paragraphs": 1, "nth_paragraph": 2,
           "first_word": "a"}], "paragraph 2 of 1"),
    ],
)  # fmt: skip
def test_an_instruction_that_can_not_be_judged_is_unscored(instructions, says):
    for text in ("some text", ""):
        verdict = instruction_verdict(text, instructions)
        assert verdict.status == "unscored"
        assert says in verdict.detail


def test_arguments_that_are_none_are_as_good_as_absent():
    assert instruction_verdict("a b", [{"id": "punctuation:no_comma", "keywords": None}]).status == "correct"


HOSTILE = {
    "brackets": "[" * 100_000,
    "asterisks": "*" * 100_000,
    "angles": "<<" * 50_000,
    "deep json": "[" * 50_000 + "]" * 50_000,
    "blank lines": "\n \n" * 33_000,
    "dots": ". " * 50_000,
    "quotes": '"' * 100_000,
    "one word": "a" * 100_000,
    "marks": "P.S" * 33_000,
    "sections": "SECTION " * 12_500,
    "surrogates": "\ud800" * 1000,
    "bullets": "* " * 50_000,
    "digits": "9" * 100_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_of_100_kb_gets_a_verdict(text):
    for rule, arguments, *_ in BOTH_WAYS:
        verdict = instruction_verdict(text, [{"id": rule, **arguments}], mode="loose")
        assert verdict.status in ("correct", "wrong"), (rule, verdict)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300), st.sampled_from(BOTH_WAYS), st.sampled_from(["strict", "loose"]))
def test_any_text_gets_a_verdict_and_the_same_again(text, row, mode):
    rule, arguments, *_ = row
    first, again = (instruction_verdict(text, [{"id": rule, **arguments}], mode=mode) for _ in range(2))
    assert first == again
    assert first.status in ("correct", "wrong")
    assert first.parts["followed"] in (0.0, 1.0)


async def test_languages_are_told_alike_from_many_threads_and_from_a_loop():
    texts = [ENGLISH, "Das ist ein ganz gewöhnlicher Satz.", "C'est une phrase tout à fait ordinaire.", "xq zv 7"]
    rule = [{"id": "language:response_language", "language": "en"}]
    alone = [instruction_verdict(text, rule).detail for text in texts]
    found: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: found.append([instruction_verdict(text, rule).detail for text in texts]))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 8
    assert (await instruction_verdict_async(texts[0], rule)).status == "correct"


def test_words_keep_their_hyphens_and_apostrophes():
    assert words_of("well-known: it's 3.5 \u2019quoted\u2019") == ["well-known", "it's", "3", "5", "quoted"]
