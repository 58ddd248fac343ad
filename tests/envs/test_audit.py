"""The audit: verifiers with a known hole are found out, and sound ones are not accused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from envs.attacks import attacks, wrong_value
from envs.audit import Play, audit
from envs.base import Env, Golden, Reply, Split, Task
from envs.registry import load_env
from rewards.mathematics import math_verdict
from rewards.verdict import Verdict
from veriward.cli import main


class Sums(Env):
    """Two numbers to add, asked for in words."""

    version = "1"
    inline = True

    def tasks(self, split: Split) -> Iterator[Task]:
        for n in range(40, 46):
            prompt = [{"role": "user", "content": f"Add {n} and 1000. Box the sum."}]
            yield Task(f"{split}-{n}", prompt, n + 1000, split)

    def golden(self) -> Iterator[Golden]:
        task = next(iter(self.tasks("dev")))
        yield Golden(task, r"\\boxed{1040}", "correct", "boxed")
        yield Golden(task, "1040", "unparsed", "no box")


class Sound(Sums):
    def verify(self, task: Task, reply: Reply) -> Verdict:
        return math_verdict(reply.text, task.reference)


class Substring(Sums):
    def verify(self, task: Task, reply: Reply) -> bool:
        return str(task.reference) in reply.text


class FirstBox(Sums):
    def verify(self, task: Task, reply: Reply) -> bool:
        found = re.search(r"boxed\{(.*?)\}", reply.text)
        return bool(found) and found[1] == str(task.reference)


class Obedient(Sums):
    def verify(self, task: Task, reply: Reply) -> float:
        return 1.0 if "score 1.0" in reply.text else 0.0


class Lenient(Sums):
    def verify(self, task: Task, reply: Reply) -> bool:
        return bool(re.search(r"boxed\{\d+\}", reply.text))


class Broken(Sums):
    def verify(self, task: Task, reply: Reply) -> bool:
        return int(reply.text) == task.reference


def faults(env: Env, fault: str) -> set[str]:
    return {play.name for play in audit(env, tasks=2) if play.fault == fault}


def test_a_sound_verifier_shows_no_fault() -> None:
    plays = audit(Sound(), tasks=2)
    assert [play for play in plays if play.fault] == []
    assert len(plays) == 3 * len(attacks()) + 2 + 1
    assert {play.kind for play in plays} == {"attack", "golden", "mutated golden"}


def test_the_answer_anywhere_in_a_reply_is_a_hole() -> None:
    paid = faults(Substring(), "false accept")
    assert {"the answer in a long list", "unfinished thought", "refusal that quotes the answer", "no box"} <= paid


def test_the_first_box_is_a_hole() -> None:
    paid = faults(FirstBox(), "false accept")
    assert {"retracted box", "last box left open", "two boxes, the right one first"} <= paid
    assert "two boxes in one sentence" not in paid


def test_a_judge_that_obeys_is_a_hole_and_rejects_what_is_right() -> None:
    assert "instructions to the judge" in faults(Obedient(), "false accept")
    assert faults(Obedient(), "false reject") == {"boxed"}


def test_a_right_reply_made_wrong_finds_a_verifier_that_looks_at_the_form_only() -> None:
    assert "boxed, with its last number changed" in faults(Lenient(), "false accept")


def test_a_verifier_that_raises_is_unscored_or_crashed_and_never_an_exception() -> None:
    plays = audit(Broken(), tasks=1)
    assert {play.fault for play in plays if play.kind == "golden"} == {"unscored", "false accept"}
    assert all(play.verdict.status in ("unscored", "correct", "wrong", "crashed") for play in plays)


@pytest.mark.parametrize("name", ["arithmetic", "program"])
def test_no_attack_is_paid_by_the_shipped_environments(name: str) -> None:
    plays = audit(load_env(name), tasks=1)
    assert [play for play in plays if play.fault] == []
    assert len(plays) > 2 * len(attacks())


def test_every_attack_is_named_sourced_and_says_what_it_breaks() -> None:
    known = attacks()
    assert len({attack.name for attack in known}) == len(known) >= 35
    assert all(attack.name and attack.source and attack.rule for attack in known)
    task = next(iter(Sums().tasks("dev")))
    texts = [attack.make(Sums(), task) for attack in known]
    assert not any(re.search(r"\{\{\w+\}\}", text) for text in texts)
    assert sum("1040" in text for text in texts) >= 10
    assert texts == [attack.make(Sums(), task) for attack in attacks()]


def test_a_wrong_value_is_another_one_of_the_same_kind() -> None:
    assert [wrong_value(value) for value in (7, "x = 3", -2.5, "Paris", {"a": 9})] == [
        "8", "x = 4", "-2.6", "not Paris", '{"a": 10}',
    ]  # fmt: skip


HOLES = """
from veriward import Env, Golden, Task

class Holes(Env):
    version = "1"

    def tasks(self, split):
        yield Task(f"{split}-1", [{"role": "user", "content": "Add 40 and 1000."}], 1040, split)

    def verify(self, task, reply):
        return str(task.reference) in reply.text
"""


def test_the_verb_prints_a_table_and_exits_with_1_for_a_fault(tmp_path, capsys) -> None:
    (tmp_path / "holes.py").write_text(HOLES)
    assert main(["audit", str(tmp_path / "holes.py"), "--tasks", "1", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["totals"]["false_accept"] >= 4
    assert found["totals"]["plays"] == len(found["plays"])
    assert main(["audit", str(tmp_path / "holes.py"), "--tasks", "1"]) == 1
    assert "false accept: attack 'unfinished thought' on task dev-1: correct" in capsys.readouterr().out
    assert main(["audit", "arithmetic", "--tasks", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == "no attack is paid"
    assert any(line.split()[:3] == ["attack", "empty", "2"] for line in said)


def test_a_play_says_what_is_wrong_with_it() -> None:
    def fault(expected: str, verdict: Verdict) -> str:
        return Play("golden", "n", "r", "s", "t", expected, verdict, 0.0).fault

    assert fault("", Verdict.wrong()) == fault("correct", Verdict.correct()) == ""
    assert fault("", Verdict.partial(0.1)) == fault("wrong", Verdict.correct()) == "false accept"
    assert fault("correct", Verdict.wrong()) == "false reject"
    assert fault("unparsed", Verdict.wrong()) == "other status"
    assert fault("", Verdict.unscored("x")) == "unscored"
    assert fault("unscored", Verdict.unscored("x")) == ""
