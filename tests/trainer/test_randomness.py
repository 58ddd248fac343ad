"""Draws are named: a pure function of what they are for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainer.randomness import sample_key, uniforms

_KEYS = st.integers(0, 2**64 - 1)
_POSITIONS = st.integers(0, 2**31)


def test_keys_have_their_reference_values():
    assert sample_key(0, "arithmetic/train/0", 0, 0) == 15986568440766835575
    assert sample_key(1, "a", 2, 3) == 17568295106466875665


def test_uniforms_are_splitmix64():
    """The generator's published outputs for seed 0 and seed 1234567, upper 53 bits."""
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert uniforms(0, [0, 1, 2]).tolist() == [(word >> 11) / 2**53 for word in published]
    assert uniforms(1234567, 0) == (6457827717110365317 >> 11) / 2**53


@given(_KEYS, _POSITIONS)
def test_a_uniform_is_at_least_zero_and_below_one(key, position):
    assert 0.0 <= uniforms(key, position) < 1.0


@given(st.lists(st.tuples(_KEYS, _POSITIONS), min_size=1, max_size=20))
def test_a_uniform_does_not_depend_on_its_neighbours(pairs):
    keys, positions = (np.array(part, dtype=np.uint64) for part in zip(*pairs, strict=True))
    together = uniforms(keys, positions)
    assert together.tolist() == [float(uniforms(key, position)) for key, position in pairs]


def test_every_name_changes_the_key():
    """A seed shared by all samples of a group makes them identical (vllm-project/vllm#11898)."""
    names = [
        (seed, task, visit, sample) for seed in (0, 1) for task in ("a", "b") for visit in (0, 1) for sample in (0, 1)
    ]
    assert len({sample_key(*name) for name in names}) == len(names)
    assert sample_key(1, "1", 1, 1) != sample_key(11, "", 1, 1)


def test_uniforms_are_spread_evenly_over_keys_and_over_positions():
    keys = np.array([sample_key(0, "task", 0, sample) for sample in range(4000)], dtype=np.uint64)
    for drawn in (uniforms(keys, 5), uniforms(keys[0], np.arange(4000))):
        counts, _ = np.histogram(drawn, bins=10, range=(0, 1))
        assert ((counts - 400) ** 2 / 400).sum() < 33.7  # chi-square, 9 degrees of freedom, p = 1e-4
