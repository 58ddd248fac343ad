"""What every backend promises about an honest program: its output, its end, its limits."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sandbox import Execution, Limits, Program, Sandbox

MODES = ["fast", "fresh"]


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


def test_arguments_files_and_stdin_reach_the_program(box: Sandbox):
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


def test_the_wall_limit_ends_a_sleeper_that_ignores_signals(run):
    code = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(60)"
    execution = run(code, wall_s=0.4)
    assert (execution.status, execution.limit, execution.stdout) == ("timeout", "wall", b"up\n")
    assert 0.4 <= execution.wall_s < 5


def test_the_cpu_limit_ends_one_busy_process(run):
    execution = run("while True: pass", cpu_s=0.3)
    assert (execution.status, execution.limit) == ("timeout", "cpu")
    assert 0.25 < execution.cpu_s < 3


def test_the_cpu_limit_counts_all_processes_together(run):
    code = "import os\nfor _ in range(3):\n    if not os.fork(): break\nwhile True: pass"
    execution = run(code, cpu_s=0.6, wall_s=30)
    assert (execution.status, execution.limit) == ("timeout", "cpu")


def test_output_over_its_cap_is_cut_there_and_ends_the_job(run):
    execution = run("while True: print('x' * 1000)", output_bytes=5000)
    assert (execution.status, execution.limit) == ("killed", "output")
    assert len(execution.stdout) + len(execution.stderr) == 5000


def test_output_of_exactly_the_cap_is_fine(run):
    execution = run("print('x' * 4999)", output_bytes=5000)
    assert (execution.status, len(execution.stdout)) == ("finished", 5000)


def test_both_streams_share_the_cap(run):
    execution = run("import os\nos.write(2, b'e' * 3000)\nos.write(1, b'o' * 3000)", output_bytes=5000)
    assert execution.limit == "output"


def test_times_and_peak_memory_are_measured(run):
    execution = run(
        "import time\nx = bytearray(60 << 20)\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    )
    assert 0.2 <= execution.cpu_s < 2
    assert execution.wall_s > 0.15
    assert 58 < execution.peak_memory_mb < 100


def test_a_small_job_after_a_big_one_reports_its_own_peak(box: Sandbox):
    with Sandbox(slots=1) as one:
        big = one.run_sync(Program(code="x = bytearray(80 << 20)"))
        small = one.run_sync(Program(code="pass"))
    assert big.peak_memory_mb > 78
    assert small.peak_memory_mb < 30


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


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "a//b", "./x", "", "a\0b", "main.py", "x" * 300])
def test_files_outside_the_work_directory_are_refused_when_the_program_is_made(path):
    with pytest.raises(ValidationError, match="files:"):
        Program(code="", files={path: b""})


def test_a_file_can_not_also_be_a_directory():
    with pytest.raises(ValidationError, match="below a path that is a file"):
        Program(code="", files={"a": b"", "a/b/c": b""})


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..", "main.py")
)
ARGUMENTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=NAMES, content=st.binary(max_size=300), argv=st.lists(ARGUMENTS, max_size=4), stdin=st.binary(max_size=300))
def test_any_bytes_and_names_arrive_unchanged(box: Sandbox, name, content, argv, stdin):
    code = (
        "import os, sys\nprint(sys.argv[1:] == " + ascii(argv) + ", os.path.exists(" + ascii(name) + "))\n"
        "sys.stdout.flush()\nsys.stdout.buffer.write(open(" + ascii(name) + ", 'rb').read() + sys.stdin.buffer.read())"
    )
    execution = box.run_sync(Program(code=code, files={name: content}, argv=tuple(argv), stdin=stdin))
    assert (execution.stderr, execution.stdout) == (b"", b"True True\n" + content + stdin)


def test_a_program_larger_than_its_own_limits_is_refused():
    with pytest.raises(ValidationError, match="exceed this program's own limits"):
        Program(code="", files={"big": bytes(2 << 20)}, limits=Limits(disk_mb=1))


def test_impossible_limits_are_refused():
    for bad in ({"wall_s": 0}, {"wall_s": float("nan")}, {"memory_mb": -1}, {"processes": 0}, {"colour": 1}):
        with pytest.raises(ValidationError):
            Limits(**bad)


def test_a_dialogue_line_by_line(box: Sandbox):
    code = "print('ready', flush=True)\nfor line in iter(input, 'quit'):\n    print(int(line) ** 2, flush=True)\n"
    code += "print('last', end='')"
    with box.open(Program(code=code)) as job:
        assert job.receive_line(10) == b"ready"
        for number in (3, 12):
            assert job.send(b"%d\n" % number)
            assert job.receive_line(10) == b"%d" % number**2
        job.send(b"quit\n")
        assert job.receive_line(10) == b"last"
        assert job.receive_line(10) is None
        execution = job.finish()
    assert (execution.status, execution.exit_code) == ("finished", 0)
    assert execution.stdout == b"ready\n9\n144\nlast"


def test_waiting_for_a_line_gives_up_distinctly_and_the_job_goes_on(box: Sandbox):
    with box.open(Program(code="input(); print('now')")) as job:
        with pytest.raises(TimeoutError):
            job.receive_line(0.05)
        job.send(b"\n")
        assert job.receive_line(10) == b"now"


def test_closing_stdin_is_seen_as_the_end_of_input(box: Sandbox):
    with box.open(Program(code="import sys; print(len(sys.stdin.read()))", stdin=b"abc")) as job:
        job.send(b"de")
        job.close_stdin()
        assert job.receive_line(10) == b"5"


def test_sending_to_a_program_that_ended_says_so(box: Sandbox):
    with box.open(Program(code="pass")) as job:
        assert job.receive_line(10) is None
        while job.send(b"x" * 1000):
            pass
        assert job.finish().exit_code == 0


def test_the_wall_limit_holds_in_a_dialogue(box: Sandbox):
    with box.open(Program(code="import time; time.sleep(60)", limits=Limits(wall_s=0.3))) as job:
        assert job.receive_line(30) is None
        assert job.finish().limit == "wall"


def test_leaving_the_block_ends_the_job(box: Sandbox):
    with box.open(Program(code="import time; time.sleep(60)")) as job:
        pass
    assert job.finish().status == "killed"


def test_two_jobs_talk_through_the_parent_on_a_sandbox_of_one_slot():
    """A checker and a candidate are open at once; taking turns for one slot would lock."""
    with Sandbox(slots=1) as one:
        with one.open(Program(code="print(input().upper())")) as left, one.open(Program(code="print('hi')")) as right:
            left.send((right.receive_line(10) or b"") + b"\n")
            assert left.receive_line(10) == b"HI"
        assert one.run_sync(Program(code="print(1)")).stdout == b"1\n"


def test_eight_threads_share_two_slots_and_each_gets_its_own_answer(box: Sandbox):
    wrong: list[tuple[int, Execution]] = []

    def work(worker: int) -> None:
        for turn in range(6):
            number = worker * 100 + turn
            execution = box.run_sync(Program(code=f"print({number})"))
            if execution.stdout != b"%d\n" % number:
                wrong.append((number, execution))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


async def test_run_sync_works_inside_a_running_loop(box: Sandbox):
    assert box.run_sync(Program(code="print(1)")).stdout == b"1\n"


async def test_async_runs_go_side_by_side(box: Sandbox):
    executions = await asyncio.gather(*(box.run(Program(code=f"print({n})")) for n in range(6)))
    assert [e.stdout for e in executions] == [b"%d\n" % n for n in range(6)]


async def test_cancelling_a_run_frees_its_slot():
    with Sandbox(slots=1) as one:
        task = asyncio.create_task(one.run(Program(code="import time; time.sleep(60)", limits=Limits(wall_s=100))))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(task, 0.3)
        assert (await one.run(Program(code="print(1)"))).stdout == b"1\n"


def test_waiting_for_a_slot_is_not_the_jobs_time():
    with Sandbox(slots=1) as one:
        one.run_sync(Program(code="pass"))
        first = threading.Thread(target=one.run_sync, args=(Program(code="import time; time.sleep(0.7)"),))
        first.start()
        second = one.run_sync(Program(code="print(1)", limits=Limits(wall_s=0.5)))
        first.join(30)
    assert second.status == "finished"
    assert second.wall_s < 0.5


def test_a_closed_sandbox_says_so():
    sandbox = Sandbox(slots=1)
    sandbox.close()
    with pytest.raises(RuntimeError, match="closed"):
        sandbox.run_sync(Program(code=""))


def test_files_count_by_the_pages_they_take():
    """Else 300 tiny files would find no space on the disk they were admitted to."""
    with pytest.raises(ValidationError, match="exceed this program's own limits"):
        Program(code="", files={f"f{n}": b"x" for n in range(300)}, limits=Limits(disk_mb=1))


def test_the_most_arguments_that_are_accepted_can_be_given(run, box: Sandbox):
    """A fresh interpreter's exec has a limit on them; beyond it the program would seem to have failed."""
    argv = tuple("x" * 1015 for _ in range(96))
    for mode in MODES:
        execution = box.run_sync(Program(code="import sys; print(len(sys.argv))", argv=argv, mode=mode))
        assert execution.stdout == b"97\n"
    with pytest.raises(ValidationError, match="argv"):
        Program(code="", argv=(*argv, "x"))
