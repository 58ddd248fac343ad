"""What a slot does once so that each of its jobs does not: imports, first uses, and settled memory.

A fork pays for every page that it writes to, by a count in an object too, so a job should find
things as they will stay. Standard library only, apart from what the sci flavour is made of.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys

from sandbox import linux

# Both import and cache much at first use, tens of milliseconds for a job.
_FIRST_USES = """
x, y = sympy.symbols("x y")
sympy.sympify("x**2 - 1/3"), repr(sympy.Rational(1, 3)), str(sympy.expand((x + y) ** 2))
sympy.simplify(sympy.factor(x**2 - 1) / (x - 1)), sympy.solve(x**2 - x - 1, x), sympy.integrate(x * sympy.sin(x), x)
sympy.diff(sympy.sqrt(x), x).subs(x, 2).evalf(), sympy.Matrix([[1, x], [2, 3]]).det()
sympy.limit(sympy.sin(x) / x, x, 0), repr(numpy.arange(3).sum()), str(numpy.linalg.inv(numpy.eye(2)))
"""


def import_sci(folder: str) -> None:
    """What a job of this flavour finds imported already; its fork pays for none of it."""
    sys.path.append(folder)
    names = {name: importlib.import_module(name) for name in ("numpy", "numpy.random", "sympy")}
    exec(_FIRST_USES, names)


def renew_randomness() -> None:
    """At a job's start: Python's `random` does so by itself after a fork, numpy's would repeat in every job."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed(int.from_bytes(os.urandom(4), "little"))


def own_modules() -> list[str]:
    """Names that no program should find imported. A job that looked would write a count into every module's name."""
    return [name for name in sys.modules if name == "sandbox" or name.startswith("sandbox.")]


def settle_memory() -> None:
    """Leave all objects out of later collections, and in huge pages where the kernel can: cheaper to fork and end."""
    gc.collect()
    gc.freeze()
    with contextlib.suppress(OSError), open("/proc/self/maps") as file:
        for line in file.read().splitlines():
            span, access, *rest = line.split()
            if access.startswith("rw") and rest[-1] in ("0", "[heap]"):  # inode 0: memory of no file
                linux.collapse(*(int(end, 16) for end in span.split("-")))
