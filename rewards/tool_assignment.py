"""Pairing calls with expected calls at their best, whatever the order they come in.

A greedy pairing takes the first expected call that fits and may leave the next call without one,
though another pairing fits both (BFCL's parallel check).
"""

from __future__ import annotations


def maximum_matching(fits: list[int], columns: int) -> list[int]:
    """The column paired with each row, or -1; as many rows as possible are paired.

    fits[r] has bit c set where row r may be paired with column c. Augmenting paths found by
    breadth-first search (Kuhn): of the order of rows * columns steps, without recursion.
    """
    column_of, row_of = [-1] * len(fits), [-1] * columns
    for root in range(len(fits)):
        column, reached_by = _path_to_free_column(root, fits, row_of)
        while column >= 0:  # shift the pairs along the path, back to the root
            row = reached_by[column]
            row_of[column], column_of[row], column = row, column, column_of[row]
    return column_of


def best_total(weights: list[list[float]]) -> float:
    """The largest sum of weights over pairings of rows with columns, each used at most once.

    The Hungarian method with potentials (Kuhn 1955, in the O(rows^2 * columns) form) on negated
    weights; weights are 0 or more.
    """
    if weights and len(weights) > len(weights[0]):
        weights = [list(row) for row in zip(*weights, strict=True)]
    rows, columns = len(weights), len(weights[0]) if weights else 0
    row_potential, column_potential = [0.0] * (rows + 1), [0.0] * (columns + 1)
    row_of = [0] * (columns + 1)  # rows count from 1; column 0 holds the row being placed
    for row in range(1, rows + 1):
        row_of[0] = row
        column, slack, came_from = 0, [float("inf")] * (columns + 1), [0] * (columns + 1)
        is_used = [False] * (columns + 1)
        while row_of[column]:
            is_used[column] = True
            holder, nearest, delta = row_of[column], 0, float("inf")
            for other in range(1, columns + 1):
                if is_used[other]:
                    continue
                reduced = -weights[holder - 1][other - 1] - row_potential[holder] - column_potential[other]
                if reduced < slack[other]:
                    slack[other], came_from[other] = reduced, column
                if slack[other] < delta:
                    delta, nearest = slack[other], other
            for other in range(columns + 1):
                if is_used[other]:
                    row_potential[row_of[other]] += delta
                    column_potential[other] -= delta
                else:
                    slack[other] -= delta
            column = nearest
        while column:
            row_of[column] = row_of[came_from[column]]
            column = came_from[column]
    return sum(weights[holder - 1][column - 1] for column, holder in enumerate(row_of) if column and holder)


def _path_to_free_column(root: int, fits: list[int], row_of: list[int]) -> tuple[int, dict[int, int]]:
    """A free column (or -1) reachable from `root`, and the row that reached each column seen."""
    reached_by: dict[int, int] = {}
    rows, unseen = [root], (1 << len(row_of)) - 1
    for row in rows:
        reached = fits[row] & unseen
        unseen &= ~reached
        while reached:
            column = (reached & -reached).bit_length() - 1
            reached &= reached - 1
            reached_by[column] = row
            if row_of[column] < 0:
                return column, reached_by
            rows.append(row_of[column])  # whoever holds it may find another
    return -1, reached_by
