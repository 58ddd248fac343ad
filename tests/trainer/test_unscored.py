"""Causes of unscored replies: few names whatever a reply says, and the full text once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.unscored import cause_key


@given(st.text())
def test_no_reply_can_make_a_name_of_its_own(text):
    cause = f"verify of env gsm8k raised ValueError: invalid literal for int() with base 10: {text!r}"
    assert cause_key(cause) == "verify_of_env_gsm8k_raised_ValueError"


@pytest.mark.parametrize(
    ("cause", "key"),
    [
        ("judge down\nsecond line", "judge_down"),
        ("task sums-0012 of env a is not plain JSON: x", "task_of_env_a_is_not_plain_JSON"),
        ("the reference '3 4' holds no answer", "the_reference"),
        ("", "no_cause_given"),
        ("'quoted'", "no_cause_given"),
    ],
)
def test_a_name_is_the_words_before_anything_quoted_or_numbered(cause, key):
    assert cause_key(cause) == key


@given(st.text())
def test_a_name_is_short_and_has_no_space(cause):
    key = cause_key(cause)
    assert 0 < len(key) <= 80
    assert not any(character.isspace() for character in key)
