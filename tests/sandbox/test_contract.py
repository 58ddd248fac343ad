"""What every backend promises about an honest program: its input, its output, its end."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sandbox import Program
from sandbox.backend import Backend

pytestmark = pytest.mark.backends("local", "remote", "docker")

MODES = ["fast", "fresh"]
NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..", "main.py")
)
ARGUMENTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


@pytest.mark.parametrize("mode", MODES)
def test_output_streams_and_exit_code_arrive_exactly(run, mode):
    execution = run("import sys\nsys.stdout.write('out')\nsys.stderr.write('err')\nsys.exit(7)", mode=mode)
    assert (execution.status, execution.exit_code, execution.signal, execution.limit) == ("finished", 7, None, None)
    assert (execution.stdout, execution.stderr) == (b"out", b"err")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("code", "exit_code", "stderr"),
    [
        ("import sys; sys.exit()", 0, b""),
        ("import sys; sys.exit(None)", 0, b""),
        ("import sys; sys.exit(True)", 1, b""),
        ("import sys; sys.exit(257)", 1, b""),
        ("import sys; sys.exit('no')", 1, b"no\n"),
        ("exit(4)", 4, b""),
        ("quit()", 0, b""),
        ("raise SystemExit(5)", 5, b""),
        ("import os; os._exit(6)", 6, b""),
        ("import atexit, sys; atexit.register(print, 'bye', file=sys.stderr)", 0, b"bye\n"),
    ],
)
def test_a_program_ends_as_under_plain_python(run, mode, code, exit_code, stderr):
    execution = run(code, mode=mode)
    assert (execution.exit_code, execution.stderr) == (exit_code, stderr)


@pytest.mark.parametrize("mode", MODES)
def test_a_traceback_shows_the_program_and_nothing_of_the_harness(run, mode):
    execution = run("def f():\n    return 1 / 0\n\nf()", mode=mode)
    text = execution.stderr.decode()
    assert execution.exit_code == 1
    assert text.startswith('Traceback (most recent call last):\n  File "main.py", line 4, in <module>\n    f()\n')
    assert text.endswith("ZeroDivisionError: division by zero\n")
    assert "zygote" not in text
    assert "run_main" not in text


@pytest.mark.parametrize("mode", MODES)
def test_the_program_is_the_main_module_of_its_own_script(run, mode):
    code = (
        "import sys, __main__\nx = 41\n"
        "print(__name__, sys.argv, __main__.x, sys.modules['__main__'].__dict__ is globals(), __file__)"
    )
    assert run(code, mode=mode).stdout == b"__main__ ['main.py'] 41 True main.py\n"


def test_arguments_files_and_stdin_reach_the_program(box: Backend):
    program = Program(
        code="import sys, helper\nprint(sys.argv[1:], helper.x, open('data/in.bin', 'rb').read(), input())",
        files={"helper.py": b"x = 'help'", "data/in.bin": b"\x00\xff"},
        argv=("a", "b c"),
        stdin=b"typed",
    )
    expected = b"['a', 'b c'] help b'\\x00\\xff' typed\n"
    assert box.run_sync(program).stdout == expected
    assert box.run_sync(program.model_copy(update={"mode": "fresh"})).stdout == expected


def test_stdin_larger_than_a_pipe_arrives_whole_while_output_flows(run):
    data = bytes(range(256)) * 2000
    execution = run("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())", stdin=data, output_bytes=1 << 20)
    assert execution.stdout == data


def test_input_that_nobody_reads_does_not_hold_the_run_up(run):
    assert run("print('done')", stdin=b"x" * 500_000).stdout == b"done\n"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGABRT", "SIGSEGV", "SIGINT"])
def test_a_signal_is_reported_as_that_signal(run, mode, name):
    """The prototype's user code was pid 1 and survived its own SIGTERM (field notes, section 5)."""
    number = getattr(signal, name)
    reset = f"signal.signal({number}, signal.SIG_DFL);" if name == "SIGINT" else ""
    execution = run(f"import os, signal; {reset} os.kill(os.getpid(), {number})", mode=mode)
    assert (execution.status, execution.signal, execution.exit_code) == ("finished", number, None)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=NAMES, content=st.binary(max_size=300), argv=st.lists(ARGUMENTS, max_size=4), stdin=st.binary(max_size=300))
def test_any_bytes_and_names_arrive_unchanged(box: Backend, name, content, argv, stdin):
    code = (
        "import os, sys\nprint(sys.argv[1:] == " + ascii(argv) + ", os.path.exists(" + ascii(name) + "))\n"
        "sys.stdout.flush()\nsys.stdout.buffer.write(open(" + ascii(name) + ", 'rb').read() + sys.stdin.buffer.read())"
    )
    execution = box.run_sync(Program(code=code, files={name: content}, argv=tuple(argv), stdin=stdin))
    assert (execution.stderr, execution.stdout) == (b"", b"True True\n" + content + stdin)


def test_the_most_arguments_that_are_accepted_can_be_given(run, box: Backend):
    """A fresh interpreter's exec has a limit on them; beyond it the program would seem to have failed."""
    argv = tuple("x" * 1015 for _ in range(96))
    for mode in MODES:
        execution = box.run_sync(Program(code="import sys; print(len(sys.argv))", argv=argv, mode=mode))
        assert execution.stdout == b"97\n"
    with pytest.raises(ValidationError, match="argv"):
        Program(code="", argv=(*argv, "x"))


@pytest.mark.parametrize("mode", MODES)
def test_sets_print_in_the_same_order_in_every_run(run, mode):
    """Else the verdict of a program that prints a set would differ between runs of the same seed."""
    outputs = {run("print({'a', 'b', 'c', 'd', 'e', 'f'})", mode=mode).stdout for _ in range(4)}
    assert len(outputs) == 1


def test_random_numbers_differ_between_jobs(run):
    assert run("import random; print(random.random())").stdout != run("import random; print(random.random())").stdout


def test_child_processes_of_the_program_work(run):
    code = "import subprocess\nprint(subprocess.run(['/bin/echo', 'hi'], capture_output=True).stdout)"
    assert run(code).stdout == b"b'hi\\n'\n"


def test_ordinary_modules_of_the_standard_library_work(run):
    code = "import json, re, collections, tempfile, threading, decimal, sqlite3, hashlib, asyncio\n" + (
        "t = threading.Thread(target=lambda: print('thread')); t.start(); t.join()\n"
        "with tempfile.TemporaryFile() as f: f.write(b'x')\nasyncio.run(asyncio.sleep(0))\nprint('ok')"
    )
    execution = run(code)
    assert (execution.stdout, execution.stderr) == (b"thread\nok\n", b"")


def test_a_thread_still_running_is_waited_for_as_python_does(run):
    code = "import threading, time\ndef late(): time.sleep(0.1); print('late')\n"
    code += "threading.Thread(target=late).start()\nprint('main')"
    assert run(code).stdout == b"main\nlate\n"


def test_code_that_is_no_python_is_a_syntax_error_of_the_program(run):
    for code in ("def", "\x00", "é = '\u2028'\n)"):
        execution = run(code)
        assert (execution.status, execution.exit_code) == ("finished", 1)
        assert b"Error" in execution.stderr


def test_a_pipe_that_nobody_reads_ends_its_writer_quietly(run):
    """Python ignores SIGPIPE, and what it execs would inherit that: `yes` then complains, or never ends."""
    execution = run("yes | head -n 1", language="bash")
    assert (execution.stdout, execution.stderr) == (b"y\n", b"")
