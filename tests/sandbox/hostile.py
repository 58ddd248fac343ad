"""What the files of hostile programs share: how to ask one what it met, and where it ran.

Kinds and traps: the field's battery (bubblewrap, nsjail, human-eval, SandboxFusion) and what this house added.
Checks of a dangerous write open the file for writing and never write.
"""

from __future__ import annotations

import os
from typing import Literal

from sandbox import Execution
from sandbox.backend import Backend

Root = Literal["own", "shared", "container"]

BACKENDS = ("local", "docker")


def denied(root: Root, path: str) -> tuple[str, ...]:
    """What a job may meet at a path of this machine. A container has an own one of some names."""
    if root == "container":
        return ("FileNotFoundError 2", "PermissionError 13", "OSError 30", "OSError 6")
    return ("PermissionError 13",) if root == "shared" and os.path.lexists(path) else ("FileNotFoundError 2",)


def outcome_of(run, statement: str, setup: str = "", **limits: float) -> str:
    """The name of the error that a statement meets inside, or 'done' when it worked."""
    code = f"import ctypes, os, socket, sys\n{setup}\ntry:\n    {statement}\nexcept BaseException as e:\n"
    code += "    print(type(e).__name__, getattr(e, 'errno', None))\nelse:\n    print('done')"
    execution = run(code, **limits)
    assert execution.status == "finished", execution
    return execution.stdout.decode().strip()


def system_call(run, call: str) -> str:
    """What `libc.<call>` answers inside: 'ok', or the errno's name."""
    code = (
        "import ctypes, errno, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"r = {call}\nprint('ok' if r >= 0 else errno.errorcode[ctypes.get_errno()])"
    )
    execution = run(code)
    assert execution.status == "finished", execution
    return execution.stdout.decode().strip()


def assert_held(execution: Execution, box: Backend) -> None:
    """It went on until its wall clock ended it.

    Or memory did: what a failed fork takes is charged to the cgroup and given back only after a grace
    period, which on a busy machine comes too late. Or, where nothing else bounds them, its processes.
    """
    found = (execution.status, execution.limit)
    may_be = [("timeout", "wall"), ("killed", "memory")]
    if not box.guarantees().enforces("processes"):
        may_be.append(("killed", "processes"))
    assert found in may_be, execution
