"""Inside a session's sandbox: the process that has the variables, and runs python cells in itself.

Before each cell it leaves a sleeping copy of itself, which the driver ends when the cell is over, or
wakes in its place when the cell took it down. Standard library only; the text is sent to every backend.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import os
import resource
import signal
import sys
import traceback
import types
import warnings
from collections.abc import Iterable
from typing import Any, NoReturn


def hold(cells: int, wake: int, status: int) -> NoReturn:
    """Run cells in this process for ever; never returns.

    Signals wait until a cell runs: what one cell set off, an alarm perhaps, then meets the next, which
    has a copy to fall back on.
    """
    warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    for name in [name for name in sys.modules if name.partition(".")[0] == "sandbox"]:
        del sys.modules[name]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["main.py"]
    _keep_one_process()
    blocked: Iterable[int] = _shut_out_signals()
    while True:
        number, cell = _next_cell(cells)
        if _leave_copy(number, wake, status):
            continue  # this is the copy, and it has taken over
        me = os.getpid()
        code, blocked = run_cell(cell, f"<cell {number}>", module.__dict__, blocked)
        if os.getpid() != me:  # a child that the cell forked and let run on
            os._exit(code)
        try:
            _say(status, b"done %d %d" % (number, code))
        except OSError:
            os.write(2, b"the cell closed descriptors of its session: variables are as they were before it\n")
            os._exit(1)


def _keep_one_process() -> None:
    """Of the session's limit, for the copy: a cell that used up all others must not cost the next one its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if hard != resource.RLIM_INFINITY and soft == hard > 1:
        resource.setrlimit(resource.RLIMIT_NPROC, (hard - 1, hard))


def _next_cell(cells: int) -> tuple[int, str]:
    header = b""
    while not header.endswith(b"\n"):
        byte = os.read(cells, 1)
        if not byte:
            os._exit(0)
        header += byte
    number, size = map(int, header.split())
    cell = b""
    while len(cell) < size:
        data = os.read(cells, size - len(cell))
        if not data:
            os._exit(0)
        cell += data
    return number, cell.decode("utf-8", "surrogatepass")


def _leave_copy(number: int, wake: int, status: int) -> bool:
    """True in the copy, once it is needed. It is no child of this process, so that no cell waits for it.

    Where none can be made the cell runs without; the driver knows, and says so if that costs the state.
    """
    _flush()
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
    with contextlib.suppress(OSError):  # also for waitpid: a cell may have had SIGCHLD ignored
        between = os.fork()
        if not between:
            _become_copy(number, wake, status)
            resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
            return True
        os.waitpid(between, 0)
    resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
    return False


def _become_copy(number: int, wake: int, status: int) -> None:
    """Returns in the copy of this process when the driver wakes it."""
    try:
        copy = os.fork()
    except OSError:
        os._exit(1)
    if copy:
        _say(status, b"copy %d %d" % (number, copy))
        os._exit(0)
    if not os.read(wake, 1):
        os._exit(0)
    while pending := signal.sigpending():  # what was meant for the one that went down
        signal.sigwait(pending)
    _say(status, b"took %d %d" % (number, os.getpid()))


def run_cell(text: str, name: str, variables: dict[str, Any], blocked: Iterable[int]) -> tuple[int, Iterable[int]]:
    """As a notebook would: the value of a last expression is shown. Returns an exit code and the signals it blocked."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    code = 0
    try:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            tree = ast.parse(text, name)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, name, "exec", dont_inherit=True), variables)
            if last is not None:
                exec(compile(ast.Interactive([last]), name, "single", dont_inherit=True), variables)
        finally:
            blocked = _shut_out_signals()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        if not isinstance(stop.code, int) and stop.code is not None:
            _complain(stop.code)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != name:
            trace = trace.tb_next
        _complain("".join(traceback.format_exception(type(error), error, trace)), end="")
        code = 1
    _flush()
    return code & 0xFF, blocked


def _shut_out_signals() -> Iterable[int]:
    """All of them; returns those that were already."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return before


def _complain(what: object, end: str = "\n") -> None:
    with contextlib.suppress(Exception):  # a cell may have closed or replaced it
        print(what, end=end, file=sys.stderr)


def _say(status: int, line: bytes) -> None:
    os.write(status, b"\n" + line + b"\n")  # whatever a cell has written there, this is a line of its own


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
