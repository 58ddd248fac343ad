"""Run: untrusted programs, isolated.

`Sandbox().run_sync(Program(code="print(1)"))` is the whole room in one line. Names load when they
are first used, because a slot's process imports this package too and must stay small.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandbox.docker_backend import DockerSandbox
    from sandbox.guarantees import Guarantee, Guarantees
    from sandbox.job import Job
    from sandbox.local import Sandbox, default_sandbox
    from sandbox.models import Execution, Limits, Program
    from sandbox.remote import RemoteSandbox
    from sandbox.slot import SlotLost

_HOME = {
    "DockerSandbox": "sandbox.docker_backend",
    "Execution": "sandbox.models",
    "Guarantee": "sandbox.guarantees",
    "Guarantees": "sandbox.guarantees",
    "Job": "sandbox.job",
    "Limits": "sandbox.models",
    "Program": "sandbox.models",
    "RemoteSandbox": "sandbox.remote",
    "Sandbox": "sandbox.local",
    "SlotLost": "sandbox.slot",
    "default_sandbox": "sandbox.local",
}

__all__ = [
    "DockerSandbox",
    "Execution",
    "Guarantee",
    "Guarantees",
    "Job",
    "Limits",
    "Program",
    "RemoteSandbox",
    "Sandbox",
    "SlotLost",
    "default_sandbox",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sandbox' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
