"""What a job costs in every sandbox beside the same program unsandboxed, and whether that keeps its promises.

    make bench-sandbox        # python -m bench.sandbox --jobs 200

One run, kinds taking turns, so that a busy machine slows them alike. CPU counts the caller, the
slot and the job; not what Docker's engine does. bubblewrap is measured where it is installed,
Docker where an engine is reachable (DOCKER_HOST) and has the image.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import time
from importlib.util import find_spec
from typing import NamedTuple

from sandbox import DockerSandbox, Program, Sandbox
from sandbox.errors import VeriwardError
from sandbox.measure import CODE, SCI_CODE, Figures, Kind, bare_python, jobs_per_s, local_kinds, measure, rate
from veriward.output import say, say_table

BARE = "python -I -S, unsandboxed"
BWRAP = "bubblewrap + python -I -S"
DOCKER_RUN = "docker run --rm (CPU: its client's)"
POOLED = "DockerSandbox, pooled (CPU: our side's)"
BARE_SCI = "python -I with numpy and sympy, unsandboxed"
IN_FLIGHT = (1, 2, 4)
_BWRAP = ("bwrap", "--ro-bind", "/", "/", "--proc", "/proc", "--unshare-all")
_PR_SET_CHILD_SUBREAPER = 36
_CPP = Program(language="cpp", code='#include <cstdio>\nint main() { puts("1"); }')


class Promise(NamedTuple):
    """`found` must be at most `limit`, or at least, as `is_ceiling` says."""

    text: str
    found: float
    limit: float
    is_ceiling: bool

    def row(self) -> tuple[str, str, str, str]:
        bound = f"{'at most' if self.is_ceiling else 'at least'} {self.limit:g}"
        is_kept = self.found <= self.limit if self.is_ceiling else self.found >= self.limit
        return self.text, f"{self.found:.3g}", bound, "met" if is_kept else "NOT MET"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200, help="jobs of each kind; a tenth of it of the slow ones")
    parser.add_argument("--image", default=os.environ.get("VERIWARD_TEST_IMAGE", "veriward-sandbox:host"))
    args = parser.parse_args()
    with_sci = all(find_spec(name) is not None for name in ("numpy", "sympy"))
    with contextlib.ExitStack() as stack:
        sandbox = stack.enter_context(Sandbox(slots=4))
        kinds = {BARE: bare_python(), **local_kinds(sandbox, with_sci=with_sci)}
        slow: dict[str, Kind] = {}
        if shutil.which("g++"):
            first_ms = _first_compile_ms(sandbox)
            say(f"C++, compiled for the first time: {first_ms:.0f} ms")
            kinds["sandbox, C++ compiled before"] = lambda: sandbox.run_sync(_CPP)
        if shutil.which("bwrap"):
            kinds[BWRAP] = _in_bubblewrap
        if with_sci:
            slow[BARE_SCI] = bare_python(SCI_CODE, isolated=False)
        docker = _docker(args.image)
        if docker is not None:
            stack.enter_context(docker)
            kinds[POOLED] = lambda: docker.run_sync(Program(code=CODE))
            slow[DOCKER_RUN] = _docker_run(args.image)
        figures = measure(kinds, args.jobs, slow)
        rates = {"sandbox, fast": {n: jobs_per_s(sandbox, n, 2 * args.jobs) for n in IN_FLIGHT}}
        if docker is not None:
            rates[POOLED] = {n: jobs_per_s(docker, n, args.jobs) for n in IN_FLIGHT}
            each = max(2, args.jobs // 20)
            rates[DOCKER_RUN] = {n: rate(_repeated(slow[DOCKER_RUN], each), n, each) for n in IN_FLIGHT}
    _report(figures, rates)


def _in_bubblewrap() -> None:
    """Its front process leaves the one inside to others; reaped here, so that its CPU counts."""
    prctl = ctypes.CDLL(None).prctl
    read, write = os.pipe()
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        bare_python(CODE, *_BWRAP, "--info-fd", str(write), pass_fds=(write,))()
        os.close(write)
        with open(read, encoding="utf-8") as info:
            os.waitpid(json.load(info)["child-pid"], 0)
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _first_compile_ms(sandbox: Sandbox) -> float:
    sandbox.run_sync(Program(language="c", code="int main() { return 0; }"))  # so that a slot is there
    started = time.perf_counter()
    sandbox.run_sync(_CPP)
    return 1e3 * (time.perf_counter() - started)


def _docker(image: str) -> DockerSandbox | None:
    if not shutil.which("docker"):
        say("docker: no client on the PATH, so not measured")
        return None
    docker = DockerSandbox(image, slots=4)
    try:
        docker.guarantees()
    except (VeriwardError, ModuleNotFoundError) as error:
        docker.close()
        say(f"docker: not measured: {error}")
        return None
    return docker


def _docker_run(image: str) -> Kind:
    command = ["docker", "run", "--rm", "--network", "none", image, "python3", "-I", "-S", "-c", CODE]
    return lambda: subprocess.run(command, capture_output=True, check=True)


def _repeated(run: Kind, times: int) -> Kind:
    return lambda: [run() for _ in range(times)]


def _report(figures: dict[str, Figures], rates: dict[str, dict[int, float]]) -> None:
    bare_ms = figures[BARE].cpu_ms
    rows = [
        (name, *(f"{value:.2f}" for value in figure), f"{figure.cpu_ms / bare_ms:.2f}")
        for name, figure in figures.items()
    ]
    say_table("milliseconds a job", ("kind", "min", "p10", "median", "CPU", "CPU of the first"), rows)
    columns = ("jobs/s", *(f"{n} in flight" for n in IN_FLIGHT))
    say_table("throughput", columns, [(name, *(f"{found[n]:.1f}" for n in IN_FLIGHT)) for name, found in rates.items()])
    say_table("promises", ("", "found", "promised", ""), [promise.row() for promise in _promises(figures, rates)])


def _promises(figures: dict[str, Figures], rates: dict[str, dict[int, float]]) -> list[Promise]:
    """Those of issue 3 whose other side could be measured here."""
    fast = figures["sandbox, fast"]
    promises = [Promise("CPU of a fast job / unsandboxed", fast.cpu_ms / figures[BARE].cpu_ms, 0.7, True)]
    if BWRAP in figures:
        bwrap = figures[BWRAP]
        promises.append(Promise("CPU of a fast job / bubblewrap's", fast.cpu_ms / bwrap.cpu_ms, 0.5, True))
        promises.append(Promise("median of a fast job / bubblewrap's", fast.median_ms / bwrap.median_ms, 0.5, True))
    if DOCKER_RUN in rates:
        best = max(rates["sandbox, fast"].values()) / max(rates[DOCKER_RUN].values())
        promises.append(Promise("most fast jobs/s / docker run's", best, 25, False))
    if BARE_SCI in figures:
        sci, bare = figures["sandbox, numpy and sympy"], figures[BARE_SCI]
        promises.append(Promise("CPU of a numpy and sympy job / importing them", sci.cpu_ms / bare.cpu_ms, 0.02, True))
        ratio = sci.median_ms / bare.median_ms
        promises.append(Promise("median of a numpy and sympy job / importing them", ratio, 0.02, True))
    return promises


if __name__ == "__main__":
    main()
