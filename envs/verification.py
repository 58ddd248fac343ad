"""Verdicts on replies: where an author's `parse` and `verify` meet hostile text.

They run in killable worker processes that have loaded the env from its spec, unless the env says
that its verifier is cheap on any text (`inline`). Whatever goes wrong on our side is `unscored`
with its cause; `verdict` never raises for it, and never makes a number of it. What the reply alone
can cause is a scored 0, or a policy would learn to break its judge.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from envs.base import Env, EnvSpec, Message, Reply, Task
from envs.loading import described
from envs.registry import load_env
from envs.splits import check_golden
from rewards.verdict import Verdict
from rewards.workers import Outcome, WorkerPool
from sandbox.errors import ConfigError, VeriwardError


@dataclass(frozen=True)
class _Raised:
    """What an author's code raised, for people."""

    error: str


class Verifier:
    """Judges replies to one env's tasks.

    wall_s   time one parse and verify may take in a worker; waiting for a worker is not counted.
    workers  worker processes, started when first needed; an inline env needs none.

    Raises ConfigError for an env that a worker could not load again (one made by hand and not
    inline), VeriwardError when its `golden` raises or yields no sound cases, and what its `prepare` raises.
    """

    def __init__(self, env: Env, *, wall_s: float = 10.0, workers: int = 2) -> None:
        self.env = env
        self.wall_s = wall_s
        self._pool: WorkerPool | None = None
        if not env.inline:
            if env.spec is None:
                raise ConfigError(
                    f"env {env.name} was not made by load_env, so no worker process can load it; "
                    "use load_env(path or package.module:Class), or set inline = True if verify is cheap on any text"
                )
            self._spec = json.dumps(env.spec.to_json())
        env.prepare()
        self._known_good = _known_good_text(env)
        if not env.inline:
            self._pool = WorkerPool(workers)

    async def verdict(self, task: Task, reply: Reply) -> Verdict:
        """Safe to call many times at once on one loop.

        What `parse` or `verify` raises is tried once more. If it stays, a known-good text (of the first
        golden case that is correct) is judged for the same task: where that raises too, or the env has
        no such case, the fault is not the reply's and the verdict is `unscored`; else it is `crashed`.
        """
        found = await self._judged(task, reply)
        if isinstance(found, _Raised):
            found = await self._judged(task, reply)
        if not isinstance(found, _Raised):
            return found
        cause = f"verify of env {self.env.name} raised {found.error}"
        if self._known_good is None:
            return Verdict.unscored(cause)
        probed = await self._judged(task, build_reply(self.env, self._known_good, self.env.messages(task)))
        if isinstance(probed, _Raised) or probed.status == "unscored":
            return Verdict.unscored(cause)
        return Verdict.failed("crashed", f"{cause} on this reply, and not on a known-good one")

    async def _judged(self, task: Task, reply: Reply) -> Verdict | _Raised:
        if self._pool is None:
            return await _judge_here(self.env, task, reply)
        try:
            crossing = [json.dumps(task.to_json()), json.dumps(reply.to_json())]
        except (TypeError, ValueError) as error:
            return Verdict.unscored(f"task {task.id} of env {self.env.name} is not plain JSON: {error}")
        outcome = await self._pool.call_async(
            "envs.verification:judge_in_worker",
            self._spec,
            *crossing,
            timeout_s=self.wall_s,
            setup=("envs.verification:load_in_worker", [self._spec, type(self.env).__module__]),
        )
        return _verdict_of(outcome, self.env.name)

    def verdict_sync(self, task: Task, reply: Reply) -> Verdict:
        """`verdict` for blocking code; safe from any thread, a running loop's included."""
        return _run_to_end(self.verdict(task, reply))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> Verifier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def build_reply(env: Env, text: str, transcript: Sequence[Message], is_truncated: bool = False) -> Reply:
    """The reply to be judged: the text, and the transcript that ends with it.

    `parsed` stays None: parsing reads hostile text, so it happens where `verify` does.
    """
    whole = [*transcript, {"role": "assistant", "content": text}]
    return Reply(text=text, transcript=whole, is_truncated=is_truncated)


async def judge(env: Env, task: Task, reply: Reply) -> Verdict:
    """Parse, verify and check one reply in this process; raises what the author's code raises."""
    if reply.parsed is None:
        reply = replace(reply, parsed=env.parse(reply.text))
    found = env.verify(task, reply)
    if inspect.isawaitable(found):
        found = await found
    return Verdict.of(found)


def _known_good_text(env: Env) -> str | None:
    return next((case.text for case in check_golden(env) if case.status == "correct"), None)


async def _judge_here(env: Env, task: Task, reply: Reply) -> Verdict | _Raised:
    try:
        return await judge(env, task, reply)
    except (Exception, SystemExit) as error:
        return _Raised(described(error))


def _verdict_of(outcome: Outcome, name: str) -> Verdict | _Raised:
    match outcome.status:
        case "returned":
            return Verdict.from_json(outcome.value)
        case "raised":
            return _Raised(outcome.error)
        case "unavailable":
            return Verdict.unscored(f"no worker could verify for env {name}: {outcome.error}")
        case lost:
            return Verdict.failed(lost, f"verify of env {name} was killed on this reply: {outcome.error}")


_worker_envs: dict[str, Env] = {}


def load_in_worker(spec: str, module: str) -> None:
    """Runs once in each worker, outside the time of any verdict.

    Raises VeriwardError when the env's file was edited since: two versions in one run would be
    judged as one.
    """
    found = EnvSpec.from_json(json.loads(spec))
    env = load_env(found.name, **found.options)
    if type(env).__module__ != module:
        raise VeriwardError(f"env {found.name}: its file changed after it was loaded; start again with the new one")
    _worker_envs[spec] = env


def judge_in_worker(spec: str, task: str, reply: str) -> dict[str, Any]:
    asked, answered = Task.from_json(json.loads(task)), Reply.from_json(json.loads(reply))
    return asyncio.run(judge(_worker_envs[spec], asked, answered)).to_json()


def _run_to_end(coroutine: Coroutine[Any, Any, Verdict]) -> Verdict:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    # A running loop cannot be re-entered: another thread runs the coroutine on its own.
    done: Future[Verdict] = Future()

    def run() -> None:
        try:
            done.set_result(asyncio.run(coroutine))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="verdict").start()
    return done.result()
