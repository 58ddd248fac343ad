"""Pairing is the best there is, compared with trying every pairing."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.tool_assignment import best_total, maximum_matching


def _tables(cells: st.SearchStrategy[float]) -> st.SearchStrategy[list[list[float]]]:
    sizes = st.tuples(st.integers(1, 5), st.integers(1, 5))
    return sizes.flatmap(
        lambda size: st.lists(st.lists(cells, min_size=size[1], max_size=size[1]), min_size=size[0], max_size=size[0])
    )


def _best_by_trying(table: list[list[float]]) -> float:
    if len(table) > len(table[0]):
        table = [list(row) for row in zip(*table, strict=True)]
    choices = itertools.permutations(range(len(table[0])), len(table))
    return max(sum(row[column] for row, column in zip(table, choice, strict=True)) for choice in choices)


@given(_tables(st.sampled_from([0, 0, 1])))
def test_as_many_rows_are_paired_as_can_be(table: list[list[float]]) -> None:
    """A greedy pairing, as BFCL's, finds fewer."""
    fits = [sum(1 << column for column, cell in enumerate(row) if cell) for row in table]
    pairs = maximum_matching(fits, len(table[0]))
    used = [column for column in pairs if column >= 0]
    assert len(used) == len(set(used)) == _best_by_trying(table)
    assert all(table[row][column] for row, column in enumerate(pairs) if column >= 0)


@given(_tables(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])))
def test_the_best_total_is_found(table: list[list[float]]) -> None:
    assert best_total(table) == pytest.approx(_best_by_trying(table))


def test_nothing_to_pair_is_no_error() -> None:
    assert maximum_matching([], 3) == []
    assert maximum_matching([0, 0], 0) == [-1, -1]
    assert best_total([]) == 0.0
    assert best_total([[], []]) == 0.0


def test_a_chain_that_must_shift_every_pair_costs_little_and_does_not_recurse() -> None:
    """Each row fits its column and the one before; the last row fits only the first's choice."""
    size = 2000
    fits = [(1 << row) | (1 << (row + 1)) for row in range(size - 1)] + [1]
    started = time.process_time()
    assert sorted(maximum_matching(fits, size)) == list(range(size))
    assert time.process_time() - started < 1.0
