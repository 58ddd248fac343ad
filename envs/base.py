"""What an author writes: tasks, and how a reply to one is verified.

An Env has no reset and no step. It yields tasks for a split and judges replies; everything
else (sampling, groups, rewards) happens around it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from rewards.verdict import Verdict

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
Message = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One question.

    id         unique within the env, over all splits.
    prompt     chat messages, each {"role", "content"}.
    reference  what `verify` compares with; plain JSON. Never shown to the policy nor to a
               candidate's process.
    """

    id: str
    prompt: list[Message]
    reference: Any
    split: Split
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Task:
        return cls(**data)


@dataclass(frozen=True)
class Reply:
    """What the policy answered: the raw text, what `Env.parse` made of it, the whole transcript."""

    text: str
    parsed: Any = None
    transcript: list[Message] = field(default_factory=list)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    is_truncated: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reply:
        return cls(**data)


@dataclass(frozen=True)
class EnvSpec:
    """What an env was loaded from: a name `load_env` takes, and the options given, plain JSON.

    Enough to load the same env again in another process, and recorded with every result.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "options": dict(self.options)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EnvSpec:
        return cls(data["name"], data["options"])


@dataclass(frozen=True)
class Golden:
    """A reply whose verdict is known; `status` is the verdict it must get."""

    task: Task
    text: str
    status: str
    why: str = ""


class Env:
    """A named, versioned set of tasks and their verifier. Subclass it; `tasks` and `verify` are yours.

    name     default: the class's name in snake case.
    version  required; results record it, and a resume under another one is refused.
    inline   True only when `verify` is known to be cheap on any text whatever: it then runs in
             the caller's process instead of a killable worker.
    """

    name: ClassVar[str]
    version: ClassVar[str]
    inline: ClassVar[bool] = False
    system_prompt: ClassVar[str] = ""
    rewards: ClassVar[Mapping[str, Any]] = {}
    spec: EnvSpec | None = None  # set by load_env; None on an env made by hand

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def tasks(self, split: Split) -> Iterable[Task]:
        raise NotImplementedError(f"{type(self).__name__}.tasks(split) must yield Task objects")

    def verify(self, task: Task, reply: Reply) -> Verdict | bool | float | Awaitable[Verdict | bool | float]:
        raise NotImplementedError(f"{type(self).__name__}.verify(task, reply) must return a Verdict, bool or float")

    def prepare(self) -> None:
        """Called once, in the process that starts the work, before any reply is judged.

        Raise VeriwardError when this machine cannot verify, so that it is said before anything
        starts rather than once a reply.
        """

    def messages(self, task: Task) -> list[Message]:
        """What the policy is shown: the system prompt, when there is one, then the task's prompt."""
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        return [*system, *task.prompt]

    def parse(self, text: str) -> Any:
        """What of the text counts as the answer; None when there is none. Default: the text itself."""
        return text

    def canonical(self, task: Task) -> str:
        """What makes two tasks the same; splits are disjoint by it. Default: the normalised prompt."""
        return " ".join(" ".join(str(message["content"]) for message in task.prompt).lower().split())

    def golden(self) -> Iterable[Golden]:
        return ()
