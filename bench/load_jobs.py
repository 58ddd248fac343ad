"""The jobs of the load test: each is unlike any other, and its one right result is known beforehand.

Most are honest; one in twenty crashes in a known way and one in twenty is hostile in a known way.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from sandbox import Execution, Limits, Program
from sandbox.guarantees import Guarantees

_TIGHT = Limits(wall_s=20, cpu_s=20, memory_mb=128, output_bytes=20_000, disk_mb=4, file_size_mb=4)
_CPP = """#include <cstdio>
int main() {{
    long long n, a, b;
    if (scanf("%lld %lld %lld", &n, &a, &b) != 3) return 9;
    printf("%lld %lld\\n", n, a * b + {added});
}}
"""


class Job(NamedTuple):
    """`wrong` tells what is wrong with a result, in a few words; empty when it is the right one."""

    kind: str
    program: Program
    wrong: Callable[[Execution], str]


class Right(NamedTuple):
    """What a job must come to. Each of `limits` may be the one that ends it; `stdout` None: whatever it printed."""

    status: str = "finished"
    exit_code: int | None = 0
    signal: int | None = None
    limits: tuple[str | None, ...] = (None,)
    stdout: bytes | None = None

    def wrong(self, found: Execution) -> str:
        ended = (found.status, found.exit_code, found.signal)
        if ended != (self.status, self.exit_code, self.signal) or found.limit not in self.limits:
            return f"{ended} limit {found.limit} {found.error!r} instead of {self[:3]} limit {self.limits}"
        if self.stdout is not None and found.stdout != self.stdout:
            return f"printed {found.stdout[:80]!r} instead of {self.stdout[:80]!r}"
        return ""


def make_job(seed: int, number: int, guarantees: Guarantees) -> Job:
    """The same job for the same arguments."""
    rng = random.Random(f"{seed}/{number}")
    kinds = {_fast: 50, _fresh: 10, _cpp: 15, _bash: 15, _crashing: 5, _hostile: 5}
    (make,) = rng.choices(list(kinds), list(kinds.values()))
    return make(rng, guarantees)


def _numbers(rng: random.Random) -> tuple[int, int, int, int]:
    return rng.randrange(1 << 62), rng.randrange(30_000), rng.randrange(30_000), rng.randrange(4)


def _fast(rng: random.Random, guarantees: Guarantees, mode: str = "fast") -> Job:
    nonce, a, b, added = _numbers(rng)
    code = f"a, b = map(int, input().split())\nprint({nonce}, a * b + {added})"
    program = Program.model_validate({"code": code, "stdin": b"%d %d\n" % (a, b), "limits": _TIGHT, "mode": mode})
    return Job(f"python, {mode}", program, Right(stdout=b"%d %d\n" % (nonce, a * b + added)).wrong)


def _fresh(rng: random.Random, guarantees: Guarantees) -> Job:
    return _fast(rng, guarantees, "fresh")


def _cpp(rng: random.Random, guarantees: Guarantees) -> Job:
    """One of four sources, so nearly all are compiled already."""
    nonce, a, b, added = _numbers(rng)
    program = Program(language="cpp", code=_CPP.format(added=added), stdin=b"%d %d %d" % (nonce, a, b), limits=_TIGHT)
    return Job("C++", program, Right(stdout=b"%d %d\n" % (nonce, a * b + added)).wrong)


def _bash(rng: random.Random, guarantees: Guarantees) -> Job:
    nonce, a, b, added = _numbers(rng)
    code = f'read a b\necho "{nonce} $((a * b + {added}))"'
    program = Program(language="bash", code=code, stdin=b"%d %d\n" % (a, b), limits=_TIGHT)
    return Job("bash", program, Right(stdout=b"%d %d\n" % (nonce, a * b + added)).wrong)


def _crashing(rng: random.Random, guarantees: Guarantees) -> Job:
    nonce, *_ = _numbers(rng)
    code = 1 + nonce % 255
    ends = {
        f"os._exit({code})": (code, None),
        "raise KeyError": (1, None),
        "os.abort()": (None, 6),
        "ctypes.string_at(0)": (None, 11),
        "os.kill(os.getpid(), 9)": (None, 9),
        "signal.raise_signal(15)": (None, 15),
    }
    statement, (exit_code, signal) = rng.choice(list(ends.items()))
    source = f"import ctypes, os, signal\nprint({nonce}, flush=True)\n{statement}"
    right = Right(exit_code=exit_code, signal=signal, stdout=b"%d\n" % nonce)
    return Job("crashing", Program(code=source, limits=_TIGHT), right.wrong)


def _hostile(rng: random.Random, guarantees: Guarantees) -> Job:
    nonce, *_ = _numbers(rng)
    make = rng.choice([_fork_bomb, _memory_bomb, _flood, _daemon, _deaf, _killer, _forger, _filler])
    source, right, tight = make(nonce, guarantees)
    limits = _TIGHT.model_copy(update=tight)
    return Job(f"hostile: {make.__name__.strip('_').replace('_', ' ')}", Program(code=source, limits=limits), right)


Made = tuple[str, Callable[[Execution], str], dict[str, float]]


def _fork_bomb(nonce: int, guarantees: Guarantees) -> Made:
    source = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"

    def wrong(found: Execution) -> str:
        if not guarantees.enforces("processes") and (found.status, found.limit) == ("killed", "processes"):
            return ""
        if (found.status, found.limit) == ("killed", "memory"):  # the kernel gives back late what failed forks took
            return ""
        return Right("timeout", None, 9, ("wall",)).wrong(found)

    return source, wrong, {"wall_s": 0.3}


def _memory_bomb(nonce: int, guarantees: Guarantees) -> Made:
    source = "x = []\nwhile True: x.append(bytearray(8 << 20))"

    def wrong(found: Execution) -> str:
        if not guarantees.enforces("memory") and b"MemoryError" in found.stderr:
            return ""
        return Right("killed", None, 9, ("memory",)).wrong(found)

    return source, wrong, {"memory_mb": 64}


def _flood(nonce: int, guarantees: Guarantees) -> Made:
    text = b"%d\n" % nonce
    right = Right("killed", None, None, ("output",), (text * 20_000)[:20_000])

    def wrong(found: Execution) -> str:  # by which signal is the slot's own business
        return right.wrong(found.model_copy(update={"signal": None, "exit_code": None}))

    return f"while True: print('{nonce}')", wrong, {}


def _daemon(nonce: int, guarantees: Guarantees) -> Made:
    source = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork():\n"
        f"    print({nonce}, flush=True)\n"
        "    os._exit(0)\n"
        "try: os.setsid()\nexcept OSError: pass\n"
        "os.fork()\nos.fork()\ntime.sleep(600)"
    )
    return source, Right(stdout=b"%d\n" % nonce).wrong, {}


def _deaf(nonce: int, guarantees: Guarantees) -> Made:
    source = (
        "import signal, time\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        f"    except (OSError, ValueError): pass\nprint({nonce}, flush=True)\nwhile True: time.sleep(60)"
    )
    return source, Right("timeout", None, 9, ("wall",), b"%d\n" % nonce).wrong, {"wall_s": 1.0}


def _killer(nonce: int, guarantees: Guarantees) -> Made:
    source = (
        "import os\nif not os.fork():\n    while True: pass\n"
        "for pid in (-1, 1):\n    try: os.kill(pid, 9)\n    except OSError: pass\n"
        f"os.write(1, b'{nonce}')"
    )
    return source, Right(stdout=b"%d" % nonce).wrong, {}


def _forger(nonce: int, guarantees: Guarantees) -> Made:
    """Says in its slot's words, on every descriptor there may be, that it ended well."""
    source = (
        "import os\nfor n in [*range(3, 256), 1]:\n"
        "    for job in range(3):\n"
        "        try: os.write(n, b'done %d 0 0 0 0 -' % job)\n        except OSError: pass\n"
        f"print({nonce}, flush=True)\nos._exit(3)"
    )
    forged = b"".join(b"done %d 0 0 0 0 -" % job for job in range(3))
    return source, Right(exit_code=3, stdout=forged + b"%d\n" % nonce).wrong, {}


def _filler(nonce: int, guarantees: Guarantees) -> Made:
    source = (
        "n = 0\ntry:\n    while True:\n        open(f'f{n}', 'wb').write(bytes(1 << 20)); n += 1\n"
        f"except OSError as e: print({nonce}, e.errno)"
    )

    def wrong(found: Execution) -> str:
        if not guarantees.enforces("disk") and (found.status, found.limit) == ("killed", "disk"):
            return ""
        return Right(stdout=b"%d 28\n" % nonce).wrong(found)

    return source, wrong, {}
