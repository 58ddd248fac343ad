"""The few public names, lazy; and the check that our rooms are the ones that will be imported.

Outside code imports from here only. Nothing is loaded before it is asked for, so `import veriward`
costs next to nothing and works without torch. The rooms have plain names (`envs`, `trainer`, ...)
that another folder on the path can shadow; that is found here, once, instead of as a strange
AttributeError later.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envs.audit import audit
    from envs.base import Env, Golden, Reply, Task
    from envs.registry import load_env
    from rewards.instructions import instruction_verdict
    from rewards.mathematics import math_verdict
    from rewards.programs import code_verdict
    from rewards.tool_calls import tool_verdict
    from rewards.verdict import Verdict
    from sandbox.local import Sandbox
    from sandbox.models import Program
    from trainer.evaluation import evaluate
    from trainer.train import train

__all__ = [
    "Env",
    "Golden",
    "Program",
    "Reply",
    "Sandbox",
    "Task",
    "Verdict",
    "audit",
    "code_verdict",
    "evaluate",
    "instruction_verdict",
    "load_env",
    "math_verdict",
    "tool_verdict",
    "train",
]

_HOMES = {
    "Env": "envs.base",
    "Golden": "envs.base",
    "Program": "sandbox.models",
    "Reply": "envs.base",
    "Sandbox": "sandbox.local",
    "Task": "envs.base",
    "Verdict": "rewards.verdict",
    "audit": "envs.audit",
    "code_verdict": "rewards.programs",
    "evaluate": "trainer.evaluation",
    "instruction_verdict": "rewards.instructions",
    "load_env": "envs.registry",
    "math_verdict": "rewards.mathematics",
    "tool_verdict": "rewards.tool_calls",
    "train": "trainer.train",
}
_ROOMS = ("sandbox", "rewards", "envs", "trainer")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'veriward' has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        home = importlib.import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        from veriward.extras import advice_for

        advice = advice_for(error)
        if advice is None:
            raise
        raise ImportError(f"veriward.{name}: {advice}", name=error.name) from None
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _check_rooms() -> None:
    house = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for room in _ROOMS:
        found = _place(room)
        if found != os.path.join(house, room):
            raise ImportError(
                f"veriward needs its own package {room!r} from {house}, but Python finds {found or 'none'} first: "
                f"rename that folder or take its parent off sys.path (run from another folder, unset PYTHONPATH), "
                f"or install veriward again if its own is missing"
            )


def _place(room: str) -> str | None:
    """The real folder (or single file) a top-level name would be imported from; None when nowhere."""
    try:
        spec = importlib.util.find_spec(room)
    except ValueError:  # already in sys.modules, and not by the import system
        return "a module that some code put into sys.modules"
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    return os.path.realpath(folders[0]) if folders else spec.origin


_check_rooms()
