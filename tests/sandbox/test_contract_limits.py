"""What every backend promises about limits: each ends its job by its own name, and what was used is told."""

from __future__ import annotations

import pytest

from sandbox import Limits, Program
from sandbox.backend import Backend
from sandbox.languages import Language

pytestmark = pytest.mark.backends("local", "remote", "docker")


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


def test_a_small_job_after_a_big_one_reports_its_own_peak(start):
    with start(slots=1) as one:
        big = one.box.run_sync(Program(code="x = bytearray(80 << 20)"))
        small = one.box.run_sync(Program(code="pass"))
    assert big.peak_memory_mb > 78
    assert small.peak_memory_mb < 30


def test_a_file_that_grows_over_its_limit_ends_the_program_by_that_name(run):
    execution = run("exec head -c 9000000 /dev/zero > big", language="bash", file_size_mb=2, disk_mb=64)
    assert (execution.status, execution.limit, execution.signal) == ("killed", "file_size", 25)


def test_memory_over_its_limit_ends_the_program_by_that_name(run, box: Backend):
    execution = run("x = []\nwhile True: x.append(bytearray(4 << 20))", memory_mb=64)
    if box.guarantees().enforces("memory"):
        assert (execution.status, execution.limit, execution.signal) == ("killed", "memory", 9)
    else:  # an address space of its own, or looked at from outside: whichever is met first
        assert execution.limit == "memory" or b"MemoryError" in execution.stderr


def test_what_a_program_meets_itself_ends_nothing(run, box: Backend):
    """One process, one open file or one byte too many is an error that the program may handle."""
    code = (
        "import os, time\nmet = []\nfiles = []\n"
        "try:\n    while True: files.append(os.dup(0))\nexcept OSError as e: met.append(e.errno)\n"
        "for file in files: os.close(file)\n"
        "try:\n    while True: os.fork() or time.sleep(9)\nexcept OSError as e: met.append(e.errno)\n"
        "print(met)"
    )
    execution = run(code, processes=4, open_files=16)
    if box.guarantees().enforces("processes"):
        assert (execution.status, execution.exit_code, execution.stdout) == ("finished", 0, b"[24, 11]\n")
    else:
        assert (execution.status, execution.limit) == ("killed", "processes")


def test_a_limit_of_one_job_is_not_the_next_ones(run):
    assert run("x = bytearray(90 << 20); print(1)", memory_mb=64).stdout == b""
    assert run("x = bytearray(90 << 20); print(1)", memory_mb=256).stdout == b"1\n"
    assert run("print('x' * 3000)", output_bytes=100).limit == "output"
    assert len(run("print('x' * 3000)").stdout) == 3001


def test_the_wall_limit_ends_compile_and_run_each_by_its_own_clock(box: Backend):
    slow = Language(file="m", compile=("sleep", "0.6"), run=("sleep", "0.6"))
    fits = box.run_sync(Program(language=slow, code="", limits=Limits(wall_s=5), compile_limits=Limits(wall_s=5)))
    assert (fits.status, fits.compile.status) == ("finished", "finished")
    assert fits.wall_s >= 0.6
    cut = box.run_sync(Program(language=slow, code="b", limits=Limits(wall_s=0.2), compile_limits=Limits(wall_s=5)))
    assert (cut.status, cut.limit, cut.compile.exit_code) == ("timeout", "wall", 0)
