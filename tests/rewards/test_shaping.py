"""Shaping terms: values worked out by hand, ranges for any input, and formats that can't be farmed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.shaping import (
    box_format,
    cosine_length,
    kimi_length,
    l1_exact,
    l1_max,
    language_consistency,
    repetition_punishment,
    tag_format,
)


def test_cosine_begins_and_ends_at_its_pair_and_is_flat_beyond() -> None:
    assert cosine_length(0, 100, is_correct=True) == 1.0
    assert cosine_length(50, 100, is_correct=True) == pytest.approx(0.75)
    assert cosine_length(100, 100, is_correct=True) == pytest.approx(0.5)
    assert cosine_length(0, 100, is_correct=False) == -1.0
    assert cosine_length(100, 100, is_correct=False) == pytest.approx(-0.5)
    assert cosine_length(25, 100, is_correct=True, correct=(2.0, 0.0)) == pytest.approx(1 + math.cos(math.pi / 4))
    assert cosine_length(101, 100, is_correct=True) == cosine_length(10**9, 100, is_correct=False) == -1.0
    for length, most in ((-1, 10), (0, 0)):
        with pytest.raises(ValueError, match="length"):
            cosine_length(length, most, is_correct=True)


@given(st.integers(0, 2000), st.integers(0, 2000), st.integers(1, 2000))
def test_cosine_prefers_short_right_and_long_wrong_replies_within_the_limit(one: int, other: int, most: int) -> None:
    short, long = sorted((one, other))
    if long <= most:
        assert cosine_length(short, most, is_correct=True) >= cosine_length(long, most, is_correct=True) >= 0.5 - 1e-9
        assert (
            cosine_length(short, most, is_correct=False) <= cosine_length(long, most, is_correct=False) <= -0.5 + 1e-9
        )


def test_kimi_ranks_a_group_and_pays_no_wrong_reply() -> None:
    assert kimi_length([10, 20, 30], [True, True, True]) == [0.5, 0.0, -0.5]
    assert kimi_length([10, 20, 30], [False, True, False]) == [0.0, 0.0, -0.5]
    assert kimi_length([7, 7], [True, False]) == [0.0, 0.0]
    assert kimi_length([], []) == []
    with pytest.raises(ValueError, match="zip"):
        kimi_length([1, 1], [True])


@given(st.lists(st.tuples(st.integers(0, 10**6), st.booleans()), max_size=20))
def test_kimi_stays_in_its_range(group: list[tuple[int, bool]]) -> None:
    terms = kimi_length([length for length, _ in group], [is_correct for _, is_correct in group])
    assert len(terms) == len(group)
    assert all(-0.5 <= term <= (0.5 if is_correct else 0.0) for term, (_, is_correct) in zip(terms, group, strict=True))


def test_l1_takes_for_each_token_off_and_clips() -> None:
    assert l1_exact(1000, 1000, is_correct=True) == 1.0
    assert l1_exact(2000, 1000, is_correct=True) == l1_exact(0, 1000, is_correct=True) == pytest.approx(0.7)
    assert l1_exact(2000, 1000, is_correct=False) == pytest.approx(-0.3)
    assert l1_max(1000, 1000, is_correct=True) == 0.5
    assert l1_max(0, 1000, is_correct=True) == pytest.approx(0.8)
    assert l1_max(0, 10**6, is_correct=True) == 1.0
    assert l1_max(10**6, 0, is_correct=True) == l1_max(0, 10, is_correct=False) == 0.0


def test_repetition_is_the_share_of_n_grams_seen_before() -> None:
    assert repetition_punishment(["a", "b", "c", "d"]) == 0.0
    assert repetition_punishment(["a", "b", "a", "b", "a", "b"], 2) == pytest.approx(-3 / 5)
    assert repetition_punishment(["x"] * 5, 1) == pytest.approx(-4 / 5)
    assert repetition_punishment(["a", "b"], 3) == repetition_punishment([]) == 0.0
    assert str(repetition_punishment(["a", "b", "c"])) == "0.0"
    with pytest.raises(ValueError, match="at least 1"):
        repetition_punishment([], 0)


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(1, 5))
def test_repetition_stays_in_its_range(words: list[str], size: int) -> None:
    assert -1.0 < repetition_punishment(words, size) <= 0.0


@pytest.mark.parametrize(
    "text", ["<think>a</think><answer>b</answer>", " \n<think>\na\n</think>\n\n<answer>b</answer>\n"]
)
def test_the_whole_tag_format_is_paid(text: str) -> None:
    assert tag_format(text) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<think></think><answer></answer>",
        "<think>a</think><answer> </answer>",
        "<think>a<answer>b</answer>",
        "<think>a</think><answer>b",
        "<answer>b</answer><think>a</think>",
        "<think>a</think><answer>b</answer> and more",
        "<think>a</think>\n<answer>b</answer>\nmore on the next line",
        "so <think>a</think><answer>b</answer>",
        "<think>a</think><think>c</think><answer>b</answer>",
        "<think>a</think><answer>b</answer><answer>c</answer>",
        "<think>a<think>c</think></think><answer>b</answer>",
        "<think><answer>b</answer></think>",
        "<think>a</think>between<answer>b</answer>",
    ],
)
def test_tags_without_their_content_or_place_are_not_paid(text: str) -> None:
    """verifiers#207, and open-r1's pattern under MULTILINE."""
    assert tag_format(text) == 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"so \boxed{1}", 1.0),
        (r"<think>\boxed{2}</think> \boxed{1}", 1.0),
        (r"\boxed{1} \boxed{1}", 0.0),
        (r"\boxed{}", 0.0),
        (r"\boxed{1", 0.0),
        ("1", 0.0),
        (r"<think>\boxed{1}", 0.0),
    ],
)
def test_one_closed_box_is_paid(text: str, value: float) -> None:
    assert box_format(text) == value


def test_language_consistency_is_the_share_of_letters_in_a_script() -> None:
    assert language_consistency("plain words, 12!", "latin") == 1.0
    assert language_consistency("ab \u4f60\u597d", "latin") == language_consistency("ab \u4f60\u597d", "cjk") == 0.5
    assert language_consistency("\u043c\u0438\u0440", "cyrillic") == 1.0
    assert language_consistency("123", "latin") == language_consistency("", "latin") == 0.0
