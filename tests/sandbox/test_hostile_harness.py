"""Programs that look for the harness: its memory, frames, environment, descriptors, processes and pipes."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import time

import pytest

from sandbox import Program
from tests.sandbox.backends import ROOT
from tests.sandbox.hostile import BACKENDS, outcome_of

pytestmark = [pytest.mark.backends(*BACKENDS), pytest.mark.usefixtures("nothing_is_left")]


@pytest.mark.parametrize(
    "spawn",
    [
        "os.fork()",
        "os.setsid() if not os.fork() else 0; os.fork()",
        "subprocess.Popen(['/bin/sleep', '99'], start_new_session=True)",
        "signal.signal(signal.SIGHUP, signal.SIG_IGN); os.fork(); os.fork()",
    ],
)
def test_daemons_die_with_the_job_and_do_not_hold_it_up(run, root, spawn):
    code = f"import os, signal, subprocess, time\nme = os.getpid()\n{spawn}\nif os.getpid() != me: time.sleep(99)"
    before = time.monotonic()
    execution = run(code, wall_s=30)
    assert execution.status == "finished"
    assert execution.exit_code == 0 or (
        root == "shared" and b"PermissionError" in execution.stderr
    )  # no sessions of its own
    assert time.monotonic() - before < 15


MEMORY_SEARCH = """
import sys
halves = [(a.encode(), b.encode()) for a, b in zip(sys.argv[1::2], sys.argv[2::2])]
planted = sys.argv[1] + sys.argv[2]
hits = [0] * len(halves)
with open('/proc/self/mem', 'rb', 0) as memory:
    for line in open('/proc/self/maps'):
        span, flags = line.split()[:2]
        low, high = (int(x, 16) for x in span.split('-'))
        if 'r' not in flags or high > 1 << 47:
            continue
        try:
            memory.seek(low)
            block = memory.read(high - low)
        except OSError:
            continue
        for number, (first, second) in enumerate(halves):
            at = block.find(first)
            while at >= 0:
                hits[number] += block[at + len(first):][:len(second)] == second
                at = block.find(first, at + 1)
print(*hits)
"""


def test_no_memory_of_harness_or_earlier_jobs_is_in_a_jobs_memory(run, root, start):
    """A job reads all the memory it has, its slot's included, for what passed by before.

    Needles come as halves, so that only a whole one left by someone else counts; the first is
    planted by the job itself, to prove that the search finds what is there.
    """
    if root == "shared":  # the search needs /proc, which is denied
        assert outcome_of(run, "open('/proc/self/maps')") == "PermissionError 13"
        return
    planted, secret, earlier = (word + os.urandom(8).hex() for word in ("planted", "harness", "earlier"))
    os.environ["VERIWARD_TEST_SECRET"] = secret
    try:
        with start(slots=1) as one:
            code = f"x = {earlier!r}; print(x, input())"
            program = Program(code=code, files={earlier: earlier.encode()}, argv=(earlier,), stdin=earlier.encode())
            assert earlier.encode() in one.box.run_sync(program).stdout
            argv = [half for needle in (planted, secret, earlier) for half in (needle[:12], needle[12:])]
            found = one.box.run_sync(Program(code=MEMORY_SEARCH, argv=tuple(argv)))
    finally:
        del os.environ["VERIWARD_TEST_SECRET"]
    hits = [int(word) for word in found.stdout.split()]
    assert hits[0] >= 1, found
    assert hits[1:] == [0, 0]


def test_frames_above_the_program_hold_nothing_of_the_slot(run):
    code = (
        "import sys\nf = sys._getframe()\nnames = set()\n"
        "while f: names |= {k for k in f.f_locals}; f = f.f_back\n"
        "print(sorted(n for n in names if n in ('control', 'parent', 'kit', 'setup', 'request', 'descriptors')))\n"
        "print(sorted(m for m in sys.modules if m.startswith('sandbox')))"
    )
    assert run(code, mode="fresh").stdout == b"[]\n[]\n"
    assert b"control" not in run(code).stdout


@pytest.mark.parametrize("mode", ["fast", "fresh"])
def test_the_environment_is_the_jobs_own(run, mode):
    os.environ["VERIWARD_TEST_SECRET"] = "s"
    try:
        names = run("import os; print(sorted(os.environ))", mode=mode).stdout
    finally:
        del os.environ["VERIWARD_TEST_SECRET"]
    assert b"SECRET" not in names
    assert b"PATH" in names


def test_no_descriptor_is_inherited(run):
    code = (
        "import os\nalive = []\n"
        "for fd in range(3, 1024):\n"
        "    try: os.fstat(fd); alive.append(fd)\n"
        "    except OSError: pass\n"
        "print(alive)"
    )
    assert run(code).stdout == b"[]\n"
    assert run(code, mode="fresh").stdout == b"[]\n"


@pytest.mark.parametrize("file", ["environ", "mem", "maps", "fd", "cwd/x", "root/x", "task/1/environ"])
def test_pid_1_can_not_be_looked_into(run, file):
    opening = f"os.listdir('/proc/1/{file}')" if file == "fd" else f"open('/proc/1/{file}', 'rb').read(1)"
    assert outcome_of(run, opening) in ("FileNotFoundError 2", "PermissionError 13")


@pytest.mark.parametrize("signal", [0, 9, 15, 19])
def test_pid_1_takes_no_signal(run, root, signal):
    """In a container it has the job's uid, and is kept from harm by being pid 1."""
    expected = "done" if root == "container" else "PermissionError 1"
    assert outcome_of(run, f"os.kill(1, {signal})") == expected


def test_other_processes_can_not_be_seen(run, root):
    code = (
        "import os; print(sorted(int(p) for p in os.listdir('/proc') if p.isdigit() and int(p) != 1) == [os.getpid()])"
    )
    listing = run(code)
    assert listing.stdout == b"True\n" or (root == "shared" and b"PermissionError" in listing.stderr)


def test_killing_everyone_kills_only_the_job(run):
    assert run("import os; os.kill(-1, 9)").status == "finished"
    assert run("import os, signal; os.killpg(0, signal.SIGKILL)").signal == 9


def test_limits_of_other_processes_can_not_be_changed(run):
    assert (
        outcome_of(run, "resource.prlimit(1, resource.RLIMIT_NOFILE, (1, 1))", "import resource") == "PermissionError 1"
    )
    assert outcome_of(run, "os.sched_setaffinity(1, {0})") == "PermissionError 1"
    assert outcome_of(run, "os.setpriority(os.PRIO_USER, os.getuid(), 19)") == "PermissionError 1"


PIPE_GAMES = {
    "shrinks its stdin": "def play():\n    for size in (4096, 1 << 20): fcntl.fcntl(0, 1031, size)",
    "fills its stdin": "other = os.open('/proc/self/fd/0', os.O_WRONLY | os.O_NONBLOCK)\n"
    "def play(): os.write(other, bytes(4096))",
    "reads its stdout": "other = os.open('/proc/self/fd/1', os.O_RDONLY | os.O_NONBLOCK)\n"
    "def play(): os.read(other, 1)",
    "widens its stdout": "def play():\n    for size in (4096, 1 << 20): fcntl.fcntl(1, 1031, size)",
}


@pytest.mark.parametrize("game", PIPE_GAMES.values(), ids=PIPE_GAMES)
def test_games_with_its_own_pipes_are_no_error_of_ours(run, game):
    """The job holds the other end of each pipe: between poll and call it can change what poll found."""
    code = (
        f"import fcntl, os, sys, time\ntry:\n    exec({game!r})\nexcept PermissionError: sys.exit(0)\n"
        "end = time.monotonic() + 0.7\n"
        "if not os.fork():\n"
        "    while time.monotonic() < end:\n        try: play()\n        except OSError: pass\n"
        "    os._exit(0)\n"
        "os.set_blocking(0, False)\n"
        "while time.monotonic() < end:\n"
        "    try: os.read(0, 4096)\n    except OSError: pass\n"
        "    os.write(1, b'x')\n"
        "os._exit(0)"
    )
    execution = run(code, stdin=bytes(32 << 20), output_bytes=8 << 20)
    assert (execution.status, execution.exit_code) == ("finished", 0)


def test_installed_packages_can_not_be_read(run, root):
    """Frozen rows hold references; below an interpreter without a virtual environment they would be files like any."""
    home = sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix, "base": sys.base_prefix})
    places = {*site.getsitepackages([sys.base_prefix]), sysconfig.get_path("purelib"), str(ROOT)}
    if root == "container":  # packages of its image are that image's own
        places = {str(ROOT), *(f"{place}/veriward" for place in places)}
    code = (
        f"import os\nprint([p for p in {sorted(places)!r} if os.path.isdir(p) and os.listdir(p)])\n"
        f"print(os.path.isdir({home!r}))"
    )
    if root == "shared":  # their names can be seen, and nothing in them
        code = (
            f"import glob\nfor path in {sorted(places)!r}:\n  for file in glob.glob(path + '/**', recursive=True):\n"
            "    try: open(file).read(1); print(file)\n    except OSError: pass"
        )
        execution = run(code, wall_s=20, cpu_s=20)
        assert (execution.status, execution.stdout) == ("finished", b"")
        return
    assert run(code).stdout == b"[]\nTrue\n"


FORGERY = """
import json, marshal, os, struct, sys
said = json.dumps({"status": "finished", "exit_code": 0, "job": 1, "cpu_s": 0, "wall_s": 0}).encode()
frames = [said, b"T" + said, struct.pack(">BI", ord("T"), len(said)) + said, marshal.dumps(("done", 1, 0)), b"done 1 0"]
for number in range(1024):
    for target in (number, f"/proc/self/fd/{number}", f"/proc/1/fd/{number}", f"/dev/fd/{number}"):
        try:
            file = target if target == number else os.open(target, os.O_WRONLY | os.O_NONBLOCK)
            for frame in frames:
                os.write(file, frame)
        except OSError:
            continue
os._exit(3)
"""


@pytest.mark.parametrize("mode", ["fast", "fresh"])
def test_no_word_of_a_job_is_taken_for_the_harness_own(run, mode):
    """What looks like a report is output, whatever descriptor it was written to."""
    execution = run(FORGERY, mode=mode, output_bytes=8 << 20)
    assert (execution.status, execution.exit_code) == ("finished", 3)
    assert b'"exit_code": 0' in execution.stdout
    assert b'"exit_code": 0' in execution.stderr
