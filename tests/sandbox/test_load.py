"""The load test in small, and that it sees what it is there to see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.load import growth_of
from bench.load_jobs import make_job
from bench.load_server import Life, Sample
from sandbox import Execution, Sandbox

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.xdist_group("load")


@pytest.fixture(autouse=True)
def needs_a_sandbox(box: Sandbox) -> None:
    """Skips where this machine can't confine."""


def load(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.load", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170)


def test_300_mixed_jobs_outlast_the_death_of_a_keeper_the_server_and_a_slot():
    done = load("--jobs", "300", "--clients", "8", "--slots", "2", "--kills", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every promise was kept" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert all(victim in rows for victim in (["keeper", "1"], ["server", "1"], ["pid", "1", "1"])), done.stdout


def test_every_kind_of_job_runs_right_and_no_other_result_passes_for_it(box: Sandbox):
    """A check that took any result would let the load test pass whatever happened."""
    guarantees = box.guarantees()
    kinds = {}
    for number in range(400):
        job = make_job(7, number, guarantees)
        kinds.setdefault(job.kind, (job, number))
    assert len(kinds) >= 12
    executions = {kind: box.run_sync(job.program) for kind, (job, _) in kinds.items()}
    for kind, (job, number) in kinds.items():
        assert job.wrong(executions[kind]) == ""
        assert job.wrong(Execution(status="killed", error="it ended its slot, twice"))
        others = [found for other, found in executions.items() if other != kind]
        if kind not in ("hostile: fork bomb", "hostile: memory bomb"):  # whose output is anyone's
            assert all(job.wrong(found) for found in others), (kind, number)


LEAVING = """
import bench.load_server, subprocess
from bench.load import Tally, violations
with bench.load_server.Server(1) as server:
    tally = Tally()
    print(violations(server, tally, 0, 10.0, 0))
    tally.wrong.append("x")
    tally.wall_s = 11.0
    for text in violations(server, tally, 1, 10.0, 2):
        print(text)
    (server.temp / "left").write_text("x")
    bench.load_server._SETTLED_S = 0.1
    sleeper = subprocess.Popen(["sleep", "30"])
    print([text.split()[0] for text in server.stop()])
    sleeper.kill()
"""


def test_what_is_wrong_missing_waited_for_or_left_is_a_violation():
    done = subprocess.run([sys.executable, "-c", LEAVING], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "[]",
        "wrong result: x",
        "0 requests of 1 came to an end",
        "jobs took 11 s, more than 1 slots had in 10 s",
        "2 descriptors more than at the start",
        "['process', 'file']",
    ], done.stderr


def test_growing_memory_is_told_from_flat_and_from_answers_that_are_kept():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    life = Life(process, slots=1)
    for per_sample_kb, kept_bytes in ((0, 0), (1000, 0), (1000, 1 << 20)):
        life.samples = [Sample(50_000 + per_sample_kb * n, kept_bytes * n) for n in range(100)]
        before, after, kept = growth_of(life)
        assert (after <= 1.1 * before + kept) == (per_sample_kb == 0 or kept_bytes > 0)
    process.communicate("\n")
    assert os.waitstatus_to_exitcode(process.returncode) == 0
