"""A program as the steps that a backend runs: perhaps a compile, then the run.

Backends know only `Step`; what a language needs, and that a compile with the same inputs is done
once, is decided here for all of them.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from sandbox.fetch import EVERYTHING
from sandbox.languages import PYTHON
from sandbox.models import Execution, Limits, Program, inodes_of

_CACHE_BYTES = 256 << 20
_RUN_MAIN = "import sys\n{source}\nrun_main(open('main.py', encoding='utf-8').read(), sys.argv[1:])\n"


@dataclass(frozen=True)
class Step:
    """One command in an empty work directory with `files` in it.

    warm     fork the warm interpreter and run `main.py` there; `command` is then its arguments only
    command  otherwise what to exec; a first word of `PYTHON` means the backend's interpreter
    fetch    paths to bring back at the end; `(EVERYTHING,)` for every regular file
    keeps_output  False for a dialogue without end: lines that were received are let go of, and
                  only what was not yet received counts against `output_bytes`
    """

    command: tuple[str, ...]
    files: dict[str, bytes]
    limits: Limits
    stdin: bytes = b""
    warm: bool = False
    flavour: str = "slim"
    fetch: tuple[str, ...] = ()
    are_executable: bool = False
    keeps_output: bool = True


def compile_step(program: Program) -> Step | None:
    spec = program.spec
    if spec.compile is None:
        return None
    return Step(spec.compile, _laid_out(program), program.compile_limits, fetch=(EVERYTHING,))


def run_step(program: Program, compiled: dict[str, bytes] | None = None, *, can_be_warm: bool = True) -> Step:
    """The step that runs `program`, on `compiled` files if it was compiled."""
    warm = can_be_warm and program.language == "python" and program.mode == "fast"
    return Step(
        program.argv if warm else (*program.spec.run, *program.argv),
        _laid_out(program) if compiled is None else compiled,
        program.limits,
        stdin=program.stdin,
        warm=warm,
        flavour=program.flavour,
        fetch=program.fetch,
        are_executable=compiled is not None,
    )


def _laid_out(program: Program) -> dict[str, bytes]:
    return {program.spec.file: program.code.encode(), **program.files}


class CompileCache:
    """What compiles left behind, by the content of everything that went in. Safe from any thread."""

    def __init__(self, most_bytes: int = _CACHE_BYTES) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, Execution] = OrderedDict()

    def run(self, step: Step, run: Callable[[Step], Execution]) -> Execution:
        """`run(step)`, or what it gave before. Only a compile that succeeded is kept."""
        key = _digest(step)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        execution = run(step)
        if execution.exit_code == 0:
            self._keep(key, execution)
        return execution

    def _keep(self, key: bytes, execution: Execution) -> None:
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = execution
            self._bytes += _size(execution)
            while self._bytes > self._most_bytes:
                self._bytes -= _size(self._kept.popitem(last=False)[1])


def run_program(program: Program, run: Callable[[Step], Execution], cache: CompileCache, *, warm: bool) -> Execution:
    """Compile if the language does, then run. `run` executes one step and never raises for what the job did."""
    first = compile_step(program)
    if first is None:
        return run(run_step(program, can_be_warm=warm))
    built = cache.run(first, run)
    report = built.model_copy(update={"files": {}})
    if built.status == "unavailable":
        return Execution(status="unavailable", error=built.error, compile=report)
    if built.exit_code != 0:
        return Execution(status="not_compiled", error="the compiler did not succeed", compile=report)
    on_disk = sum(-(-len(content) // 4096) * 4096 for content in built.files.values())
    if on_disk > program.limits.disk_mb << 20:
        error = f"what it compiled to ({on_disk} bytes) exceeds disk_mb = {program.limits.disk_mb}"
        return Execution(status="not_compiled", error=error, compile=report)
    inodes = inodes_of(built.files)
    if inodes > program.limits.disk_inodes:
        error = f"what it compiled to ({inodes} files and folders) exceeds disk_inodes = {program.limits.disk_inodes}"
        return Execution(status="not_compiled", error=error, compile=report)
    return run(run_step(program, built.files)).model_copy(update={"compile": report})


def _digest(step: Step) -> bytes:
    parts = [repr(step.command).encode(), step.limits.model_dump_json().encode(), step.flavour.encode()]
    for path, content in sorted(step.files.items()):
        parts += [path.encode(), hashlib.sha256(content).digest()]
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).digest()


def _size(execution: Execution) -> int:
    return 4096 + len(execution.stdout) + len(execution.stderr) + sum(map(len, execution.files.values()))


def interpreter_command(step: Step, python: str, run_main_source: str) -> tuple[str, ...]:
    """`step.command` with the backend's interpreter in place of `PYTHON`, starting `main.py` as a warm one would."""
    if not step.command or step.command[0] != PYTHON:
        return step.command
    starter = _RUN_MAIN.format(source=run_main_source)
    return (python, "-s", "-P", "-S", "-B", "-c", starter, *step.command[2:])
