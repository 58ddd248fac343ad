"""States after replay: equal or told apart by the first path that differs."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.tool_states import state_verdict

STATE = {"users": {"u1": {"orders": ["a", "b"], "balance": 1.5}}, "log": [{"n": 1}, {"n": 2}], "is_open": True}


def _with(path: str, value: Any) -> Any:
    state = copy.deepcopy(STATE)
    place: Any = state
    *keys, last = path.split("/")
    for key in keys:
        place = place[int(key) if isinstance(place, list) else key]
    place[last if isinstance(place, dict) else int(last)] = value
    return state


@pytest.mark.parametrize(
    ("replayed", "detail"),
    [
        (_with("users/u1/balance", 1.25), "/users/u1/balance is 1.25, not 1.5"),
        (_with("users/u1/balance", "1.5"), '/users/u1/balance is "1.5", not 1.5'),
        (_with("is_open", 1), "/is_open is 1, not true"),
        (_with("is_open", None), "/is_open is null, not true"),
        (_with("log/1/n", 3), "/log/1/n is 3, not 2"),
        (_with("log/1", []), '/log/1 is [], not {"n": 2}'),
        (_with("users/u1/orders", ["b", "a"]), '/users/u1/orders/0 is "b", not "a"'),
        (_with("users/u1/orders", ["a"]), "/users/u1/orders has 1 items, not 2"),
        (_with("users/a~b", {}), "/users/a~0b should not be there"),
        ({key: STATE[key] for key in ("users", "log")}, "/is_open is missing"),
        ([STATE], "the state is"),
        (None, "the state is null"),
    ],
)
def test_the_first_difference_is_told_by_its_path(replayed: Any, detail: str) -> None:
    verdict = state_verdict(replayed, STATE)
    assert verdict.status == "wrong"
    assert detail in verdict.detail


def test_equal_states_are_correct_whatever_the_order_of_keys() -> None:
    assert state_verdict(copy.deepcopy(STATE), STATE).status == "correct"
    assert state_verdict(dict(reversed(STATE.items())), STATE).status == "correct"
    assert state_verdict({"n": 1.0}, {"n": 1}).status == "correct"
    assert state_verdict({"n": 0.1 + 0.2}, {"n": 0.3}).status == "wrong"


def test_order_is_free_only_where_it_is_said() -> None:
    turned = _with("users/u1/orders", ["b", "a"])
    assert state_verdict(turned, STATE, unordered=["/users/*/orders"]).status == "correct"
    assert state_verdict(turned, STATE, unordered=["/users/u1/orders"]).status == "correct"
    assert state_verdict(turned, STATE, unordered=["/users/u2/orders", "/log", "/users/*"]).status == "wrong"
    twice = state_verdict(_with("users/u1/orders", ["a", "a"]), STATE, unordered=["/users/*/orders"])
    assert twice.detail == '/users/u1/orders lacks "b"'
    assert state_verdict([2, 1.0], [1, 2], unordered=[""]).status == "correct"
    assert state_verdict([2, True], [1, 2], unordered=[""]).status == "wrong"
    nested = [[1, 2], [3, 4]], [[4, 3], [2, 1]]
    assert state_verdict(*map(list, nested), unordered=["", "/*"]).status == "correct"
    assert state_verdict(*map(list, nested), unordered=[""]).status == "wrong"
    assert state_verdict({"a/b": [1, 2]}, {"a/b": [2, 1]}, unordered=["/a~1b"]).status == "correct"
    with pytest.raises(ValueError, match="JSON pointer"):
        state_verdict({}, {}, unordered=["users"])


def test_a_run_that_was_cut_off_scores_nothing() -> None:
    """tau2-bench gives 0 to a run ended by max_steps, even in the right state."""
    assert state_verdict(STATE, STATE, is_cut_off=True).status == "wrong"


def test_only_an_unusable_expectation_is_unscored() -> None:
    cyclic: dict[str, Any] = {}
    cyclic["self"] = cyclic
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    for odd in ({"a": {1}}, {1: 2}, float("nan"), cyclic, deep, [10**5000], (1, 2)):
        assert state_verdict(odd, STATE).status == "wrong"
        assert state_verdict(STATE, odd).status == "unscored"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.5, 1.0, "", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "~/"]), inner, max_size=3),
    max_leaves=8,
)


def _typed(value: Any) -> str:
    """JSON text that tells true from 1 and takes 1.0 for 1."""
    return json.dumps(value, sort_keys=True).replace("1.0", "1")


@given(JSON, JSON)
def test_states_agree_exactly_when_their_json_does(one: Any, other: Any) -> None:
    found = state_verdict(one, other).status
    assert found == ("correct" if _typed(one) == _typed(other) else "wrong")
    assert state_verdict(other, one).status == found
    assert state_verdict(one, copy.deepcopy(one)).status == "correct"


@given(st.lists(JSON, max_size=4), st.randoms(use_true_random=False))
def test_an_unordered_list_agrees_with_every_order_of_itself(items: list[Any], random: Any) -> None:
    assert state_verdict(random.sample(items, len(items)), items, unordered=[""]).status == "correct"
    assert state_verdict([*items, "new"], [*items, "other"], unordered=[""]).status == "wrong"


@pytest.fixture
def retail(shared_data: Callable[[str], Path]) -> tuple[dict[str, Any], list[Any]]:
    """tau2-bench's retail database and the actions of each task."""
    tasks = json.loads(shared_data("data/tau2/retail_tasks.json").read_text())
    return (
        json.loads(shared_data("data/tau2/retail_db.json").read_text()),
        [task["evaluation_criteria"]["actions"] for task in tasks],
    )


def _replay(state: dict[str, Any], actions: list[Any]) -> None:
    """The three writing tools of the retail domain that need no rules; the others only read here."""
    for action in actions:
        arguments = dict(action["arguments"])
        if action["name"] == "cancel_pending_order":
            order = state["orders"][arguments["order_id"]]
            order |= {"status": "cancelled", "cancel_reason": arguments["reason"]}
            order["payment_history"].append({"transaction_type": "refund"})
        elif action["name"] == "modify_pending_order_address":
            state["orders"][arguments.pop("order_id")]["address"] = arguments
        elif action["name"] == "modify_user_address":
            state["users"][arguments.pop("user_id")]["address"] = arguments


WRITING = {"cancel_pending_order", "modify_pending_order_address", "modify_user_address"}


def test_replays_of_the_retail_tasks_agree_exactly_when_they_write_the_same(
    retail: tuple[dict[str, Any], list[Any]],
) -> None:
    """Reading more or less leaves no trace; a write that is missing or made twice does.

    Left out by name: last writes that leave an address as it was.
    """
    database, tasks = retail
    tried, idle = 0, []
    for place, actions in enumerate(tasks):
        writes = [action for action in actions if action["name"] in WRITING]
        if not writes:
            continue
        named = [{**action["arguments"]} for action in writes]
        part = {
            "orders": {key: database["orders"][key] for one in named if (key := one.get("order_id"))},
            "users": {key: database["users"][key] for one in named if (key := one.get("user_id"))},
        }

        def replayed(some: list[Any], start: dict[str, Any] = part) -> dict[str, Any]:
            state = copy.deepcopy(start)
            _replay(state, some)
            return state

        expected = replayed(actions)
        assert state_verdict(replayed(writes), expected).status == "correct"
        if replayed(writes[:-1]) == expected:
            idle.append(place)
            continue
        assert state_verdict(replayed(writes[:-1]), expected).status == "wrong"
        if writes[-1]["name"] == "cancel_pending_order":
            assert state_verdict(replayed([*writes, writes[-1]]), expected).status == "wrong"
        tried += 1
    assert (tried, idle) == (39, [110])


def test_the_whole_retail_database_is_compared_in_under_two_seconds(
    retail: tuple[dict[str, Any], list[Any]],
) -> None:
    database, _ = retail
    other = copy.deepcopy(database)
    started = time.process_time()
    assert state_verdict(other, database).status == "correct"
    assert time.process_time() - started < 2.0
    last = list(other["orders"])[-1]
    other["orders"][last]["status"] = "lost"
    verdict = state_verdict(other, database)
    assert verdict.detail.startswith(f"/orders/{last}/status is ")


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path


def test_every_changed_leaf_of_the_bfcl_states_is_found(shared_data: Callable[[str], Path]) -> None:
    rows = [json.loads(line) for line in shared_data("data/bfcl/BFCL_v4_multi_turn_base.json").read_text().splitlines()]
    changed = 0
    for row in rows:
        state = row["initial_config"]
        assert state_verdict(copy.deepcopy(state), state).status == "correct"
        for path in list(_leaves(state))[:20]:
            other = copy.deepcopy(state)
            place = other
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = [place[path[-1]], "changed"]
            pointer = "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in path)
            assert state_verdict(other, state).detail.startswith(f"{pointer} "), path
            changed += 1
    assert (len(rows), changed) == (200, 3299)
