"""Splits that are a function of the canonical form, and tasks drawn into them."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice

import pytest

from envs.base import SPLITS
from envs.procedural import MAX_TRAIN_SIZE, distinct_items, split_of
from envs.registry import load_env
from sandbox.errors import ConfigError


def _number(rng: random.Random, difficulty: int) -> tuple[int, str]:
    value = rng.randrange(10**difficulty)
    return value, str(value)


def test_about_one_canonical_form_in_sixteen_is_dev_and_one_test() -> None:
    counts = Counter(split_of(str(number)) for number in range(16_000))
    assert set(counts) == set(SPLITS)
    assert abs(counts["dev"] - 1000) < 130  # four standard deviations
    assert abs(counts["test"] - 1000) < 130


def test_an_item_is_drawn_only_into_its_own_split_and_only_once() -> None:
    for split in SPLITS:
        made = [item for item, _ in distinct_items(_number, name="n", split=split, seed=1, size=50, mix={3: 1, 5: 4})]
        assert len(set(made)) == 50
        assert {split_of(str(number)) for number in made} == {split}


def test_a_size_that_is_used_up_gives_its_turns_to_the_longest() -> None:
    """Fewer than 10 one-digit numbers exist; the stream must neither repeat one nor hang."""
    drawn = list(distinct_items(_number, name="n", split="train", seed=0, size=100, mix={1: 1, 6: 1}))
    counts = Counter(difficulty for _, difficulty in drawn)
    assert counts[1] <= 10
    assert counts[1] + counts[6] == 100


def test_asking_for_more_than_exists_ends_with_what_to_do() -> None:
    stream = distinct_items(_number, name="n", split="train", seed=0, size=100, mix={1: 1})
    with pytest.raises(ConfigError, match=r"only \d+ distinct train tasks exist; ask for fewer than 100"):
        list(stream)


@pytest.mark.parametrize("name", ["arithmetic", "program"])
def test_the_train_split_knows_its_length_and_can_be_read_twice(name: str) -> None:
    tasks = load_env(name, train_size=30).tasks("train")
    assert len(tasks) == 30  # type: ignore[arg-type]
    assert list(tasks) == list(tasks)


@pytest.mark.parametrize("name", ["arithmetic", "program"])
def test_a_shorter_train_split_is_the_beginning_of_a_longer_one(name: str) -> None:
    """So that one can look at, or test with, a few tasks of the very split that is trained on."""
    longer = load_env(name, train_size=200).tasks("train")
    assert list(load_env(name, train_size=30).tasks("train")) == list(islice(longer, 30))


@pytest.mark.parametrize("options", [{"train_size": 0}, {"train_size": MAX_TRAIN_SIZE + 1}, {"seed": -1}])
def test_an_impossible_option_is_refused_with_the_range(options: dict[str, int]) -> None:
    (key,) = options
    with pytest.raises(ConfigError, match=f"{key} = .*; give "):
        load_env("arithmetic", **options)
