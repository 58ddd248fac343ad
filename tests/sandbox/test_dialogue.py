"""Dialogues with a running program, on the backends that offer them: lines go in, lines come out."""

from __future__ import annotations

import pytest

from sandbox import DockerSandbox, Limits, Program, Sandbox

pytestmark = pytest.mark.backends("local", "docker")

Box = Sandbox | DockerSandbox


def test_a_dialogue_line_by_line(box: Box):
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


def test_waiting_for_a_line_gives_up_distinctly_and_the_job_goes_on(box: Box):
    with box.open(Program(code="input(); print('now')")) as job:
        with pytest.raises(TimeoutError):
            job.receive_line(0.05)
        job.send(b"\n")
        assert job.receive_line(10) == b"now"


def test_closing_stdin_is_seen_as_the_end_of_input(box: Box):
    with box.open(Program(code="import sys; print(len(sys.stdin.read()))", stdin=b"abc")) as job:
        job.send(b"de")
        job.close_stdin()
        assert job.receive_line(10) == b"5"


def test_sending_to_a_program_that_ended_says_so(box: Box):
    with box.open(Program(code="pass")) as job:
        assert job.receive_line(10) is None
        while job.send(b"x" * 1000):
            pass
        assert job.finish().exit_code == 0


def test_the_wall_limit_holds_in_a_dialogue(box: Box):
    with box.open(Program(code="import time; time.sleep(60)", limits=Limits(wall_s=0.3))) as job:
        assert job.receive_line(30) is None
        assert job.finish().limit == "wall"


def test_leaving_the_block_ends_the_job(box: Box):
    with box.open(Program(code="import time; time.sleep(60)")) as job:
        pass
    assert job.finish().status == "killed"


def test_two_jobs_talk_through_the_parent_on_a_sandbox_of_one_slot(start):
    """A checker and a candidate are open at once; taking turns for one slot would lock."""
    with start(slots=1) as other:
        one = other.box
        with one.open(Program(code="print(input().upper())")) as left, one.open(Program(code="print('hi')")) as right:
            left.send((right.receive_line(10) or b"") + b"\n")
            assert left.receive_line(10) == b"HI"
        assert one.run_sync(Program(code="print(1)")).stdout == b"1\n"
