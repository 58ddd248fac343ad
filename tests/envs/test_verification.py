"""The verifier: whatever an author's parse or verify does, one verdict comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from envs.base import Env, Golden, Reply, Task
from envs.registry import load_env
from envs.verification import Verifier, build_reply
from sandbox.errors import ConfigError, VeriwardError

# The reply says what the author's code is to do with it.
ENV_FILE = """
import asyncio, os, time
from veriward import Env, Task, Verdict

class Obedient(Env):
    version = "1"

    def tasks(self, split):
        yield Task(split, [{"role": "user", "content": split}], 2, split)

    def parse(self, text):
        if text == "parse raises":
            raise LookupError("no answer")
        return {"parsed": text}

    def verify(self, task, reply):
        match reply.parsed["parsed"]:
            case "true": return True
            case "half": return 0.5
            case "verdict": return Verdict.wrong("by hand", {"length": 3.0})
            case "reference": return task.reference == 2 and reply.transcript[-1]["content"] == reply.text
            case "nan": return float("nan")
            case "too much": return 1.5
            case "none": return None
            case "raise": raise KeyError("gold")
            case "exit": raise SystemExit(0)
            case "die": os._exit(0)
            case "hang":
                while True: pass
            case "worker": return Verdict.correct(str(os.getpid()))
"""
ASYNC = ENV_FILE.replace("    def verify", "    async def verify").replace(
    "        match", "        await asyncio.sleep(0)\n        match"
)


@pytest.fixture(scope="module", params=["sync", "async"])
def verifier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verifier]:
    file = tmp_path_factory.mktemp("env") / "obedient.py"
    file.write_text(ENV_FILE if request.param == "sync" else ASYNC)
    with Verifier(load_env(str(file)), wall_s=2.0, workers=1) as made:
        yield made


def _ask(env: Env, text: str) -> tuple[Task, Reply]:
    task = next(iter(env.tasks("train")))
    return task, build_reply(env, text, task.prompt)


@pytest.mark.parametrize(
    ("text", "status", "detail"),
    [
        ("true", "correct", ""),
        ("half", "partial", ""),
        ("verdict", "wrong", "by hand"),
        ("reference", "correct", ""),
        ("nan", "unscored", "VerdictError"),
        ("too much", "unscored", "VerdictError"),
        ("none", "unscored", "verify returned NoneType"),
        ("raise", "unscored", "KeyError: 'gold'"),
        ("exit", "unscored", "SystemExit"),
        ("parse raises", "unscored", "LookupError: no answer"),
        ("die", "crashed", "killed on this reply"),
        ("hang", "timeout", "killed on this reply"),
    ],
)
def test_an_authors_verify_ends_in_the_verdict_it_deserves(
    verifier: Verifier, text: str, status: str, detail: str
) -> None:
    verdict = verifier.verdict_sync(*_ask(verifier.env, text))
    assert verdict.status == status
    assert detail in verdict.detail
    assert (verdict.score is None) == (status == "unscored")


def test_parts_cross_from_the_worker(verifier: Verifier) -> None:
    assert dict(verifier.verdict_sync(*_ask(verifier.env, "verdict")).parts) == {"length": 3.0}


def test_replies_are_judged_in_another_process(verifier: Verifier) -> None:
    import os

    verdict = verifier.verdict_sync(*_ask(verifier.env, "worker"))
    assert int(verdict.detail) != os.getpid()


async def test_a_group_is_judged_at_once_and_in_order(verifier: Verifier) -> None:
    texts = ["true", "half", "raise", "verdict"] * 8
    verdicts = await asyncio.gather(*(verifier.verdict(*_ask(verifier.env, text)) for text in texts))
    assert [verdict.status for verdict in verdicts] == ["correct", "partial", "unscored", "wrong"] * 8


async def test_the_blocking_twin_works_under_a_running_loop(verifier: Verifier) -> None:
    assert verifier.verdict_sync(*_ask(verifier.env, "true")).status == "correct"


def test_an_env_that_no_longer_loads_is_unscored_with_the_cause(tmp_path: Path) -> None:
    file = tmp_path / "obedient.py"
    file.write_text(ENV_FILE)
    env = load_env(str(file))
    file.unlink()
    with Verifier(env, workers=1) as verifier:
        verdict = verifier.verdict_sync(*_ask(env, "true"))
    assert verdict.status == "unscored"
    assert "no such file or folder" in verdict.detail


def test_an_env_edited_under_a_run_is_unscored_not_judged_by_two_versions(tmp_path: Path) -> None:
    file = tmp_path / "obedient.py"
    file.write_text(ENV_FILE)
    env = load_env(str(file))
    file.write_text(ENV_FILE.replace("return True", "return False"))
    with Verifier(env, workers=1) as verifier:
        verdict = verifier.verdict_sync(*_ask(env, "true"))
    assert verdict.status == "unscored"
    assert "its file changed after it was loaded" in verdict.detail


def test_a_task_that_is_no_plain_json_is_unscored_with_the_cause(verifier: Verifier) -> None:
    task = Task("a", [{"role": "user", "content": "?"}], {1, 2}, "train")
    verdict = verifier.verdict_sync(task, Reply("true"))
    assert verdict.status == "unscored"
    assert "task a" in verdict.detail


class ByHand(Env):
    version = "1"

    def tasks(self, split):  # type: ignore[no-untyped-def]
        yield Task("a", [{"role": "user", "content": "?"}], 1, split)

    def verify(self, task, reply):  # type: ignore[no-untyped-def]
        if reply.text == "raise":
            raise ZeroDivisionError
        return float(reply.text)


class ByHandInline(ByHand):
    inline = True


def test_an_env_made_by_hand_that_no_worker_could_load_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"use load_env.*or set inline = True"):
        Verifier(ByHand())


@pytest.mark.parametrize(
    ("text", "status"), [("1", "correct"), ("0.25", "partial"), ("raise", "unscored"), ("nan", "unscored")]
)
def test_an_inline_env_is_judged_here_by_the_same_rules(text: str, status: str) -> None:
    with Verifier(ByHandInline()) as verifier:
        assert verifier.verdict_sync(*_ask(verifier.env, text)).status == status


def test_an_env_that_this_machine_cannot_verify_says_so_before_any_reply() -> None:
    class Elsewhere(ByHandInline):
        def prepare(self) -> None:
            raise VeriwardError("needs another machine")

    with pytest.raises(VeriwardError, match="needs another machine"):
        Verifier(Elsewhere())


def test_a_reply_carries_the_transcript_that_ends_with_it() -> None:
    reply = build_reply(ByHandInline(), "1", [{"role": "user", "content": "?"}], is_truncated=True)
    assert reply.transcript == [{"role": "user", "content": "?"}, {"role": "assistant", "content": "1"}]
    assert reply.is_truncated
    assert Reply.from_json(reply.to_json()) == reply


class Judged(Env):
    """Its judge can be made to fail for a while, for a reply, or for a task."""

    version = "1"
    inline = True

    def __init__(self) -> None:
        self.failures_left = 0

    def tasks(self, split):
        yield Task(split, [{"role": "user", "content": split}], "2", split)

    def verify(self, task, reply):
        if self.failures_left:
            self.failures_left -= 1
            raise ConnectionError("judge unreachable")
        return int(reply.text) == int(task.reference)

    def golden(self):
        yield Golden(next(iter(self.tasks("dev"))), "x", "wrong")
        yield Golden(next(iter(self.tasks("dev"))), "2", "correct")


@pytest.mark.parametrize(
    ("text", "reference", "failures", "status"),
    [
        ("2", "2", 0, "correct"),
        ("two", "2", 0, "crashed"),
        ("2", "two", 0, "unscored"),
        ("2", "2", 1, "correct"),
        ("3", "2", 1, "wrong"),
        ("2", "2", 9, "unscored"),
    ],
)
def test_only_what_the_reply_alone_makes_verify_raise_is_scored(
    text: str, reference: str, failures: int, status: str
) -> None:
    """A policy must not learn to break its judge, and a judge that is down must not score (NVIDIA-NeMo/Gym#3070)."""
    env = Judged()
    env.failures_left = failures
    task = Task("t", [{"role": "user", "content": "?"}], reference, "train")
    verdict = Verifier(env).verdict_sync(task, build_reply(env, text, task.prompt))
    assert verdict.status == status
    assert verdict.score == {"correct": 1.0, "wrong": 0.0, "crashed": 0.0, "unscored": None}[status]
