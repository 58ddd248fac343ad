"""Run `main.py` as `python main.py` would, in this very process, and end it.

Shared by both modes: a slot calls `run_main` in a fork, a fresh interpreter gets this file's text
with `-c`. Nothing here holds anything a program could profit from by looking at its own frames.
"""

import atexit
import builtins
import os
import sys
import types
from _sitebuiltins import Quitter


def run_main(code, argv):  # type: ignore[no-untyped-def]  # the text also runs alone, without annotations' imports
    sys.argv = ["main.py", *argv]
    sys.path.insert(0, os.getcwd())
    builtins.exit, builtins.quit = Quitter("exit", "Ctrl-D (i.e. EOF)"), Quitter("quit", "Ctrl-D (i.e. EOF)")
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__="main.py", __builtins__=builtins)
    sys.modules["__main__"] = main
    status = 0
    try:
        exec(compile(code, "main.py", "exec", dont_inherit=True), main.__dict__)
    except SystemExit as stop:
        status = _exit_status(stop)
    except BaseException as error:
        status = 1
        trace = error.__traceback__
        sys.excepthook(type(error), error.with_traceback(trace.tb_next if trace else None), trace and trace.tb_next)
    _leave(status)


def _exit_status(stop):  # type: ignore[no-untyped-def]
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def _leave(status):  # type: ignore[no-untyped-def]
    """What an interpreter does at its end that a program can see, without taking the modules apart."""
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except Exception:
            status = 120
    os._exit(status)
